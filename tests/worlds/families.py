"""A tiny random model of every causal language model that Transformers registers and that can be built small."""

import os

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WINDOW, CONTEXT = 8, 64  # tokens; test sequences are longer than the window
LARGEST = 2e7  # parameters; a configuration that does not shrink below this is not tried
SMALL = {
    "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": CONTEXT,
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "word_embed_proj_dim": 32, "embedding_size": 32,
    "intermediate_size": 48, "ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_ffn_dim": 48, "n_inner": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 1, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "n_positions": CONTEXT, "max_seq_len": CONTEXT,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "first_k_dense_replace": 1,
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "sliding_window": WINDOW, "attention_window_size": WINDOW, "window_size": WINDOW, "chunk_size": 16,
    "num_codebooks": 1, "dim_model_base": 16, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
    "mamba_d_ssm": 64, "mamba_chunk_size": 8, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "lru_width": 32, "is_decoder": True, "rotary_dim": 4, "image_size": 32, "patch_size": 8,
}  # fmt: skip
# What the general sizes do not fit, by model type.
SPECIAL: dict[str, dict[str, object]] = {
    "bamba": {"attn_layer_indices": [1]},
    "dots1": {"num_key_value_heads": 2, "n_shared_experts": 1},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": WINDOW},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 48},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "kimi_linear": {"linear_head_dim": 8, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_text": {"attention_chunk_size": 16, "intermediate_size_mlp": 48, "no_rope_layers": [1, 0]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16]},
    "xlstm": {"qk_dim_factor": 1.0},
    "zamba": {"num_hidden_layers": 4},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
# Settings of a family that change its forward pass, beyond the defaults.
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "llama, dynamic rope": ("llama", {"rope_parameters": {
        "rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16,
    }, "max_position_embeddings": 16}),
    "llama, dynamic rope, plain": ("llama", {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
    }),
    "llama, linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama, yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}),
    "phi3, longrope": ("phi3", {
        "original_max_position_embeddings": 16, "max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 16, "factor": 4.0,
        },
    }),
    "phi3, full": ("phi3", {"sliding_window": None}),
    "mistral, full": ("mistral", {"sliding_window": None}),
    "qwen2, sliding": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "granite, scaled": ("granite", {"logits_scaling": 7.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}),
    "cohere, scaled": ("cohere", {"logit_scale": 0.3}),
    "llama4_text, wide chunks": ("llama4_text", {"attention_chunk_size": 512}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
}  # fmt: skip


# What cannot be built small here, or needs something else than tokens, and why.
NOT_TRIED = {
    "blt": "its byte patches need a second model",
    "cohere_compass_text": "its default configuration cannot be built",
    "dbrx": "its default configuration cannot be built",
    "gemma3n": "its vision tower needs timm",
    "gemma4_assistant": "drafts for another model",
    "gemma4_unified_assistant": "drafts for another model",
    "moshi": "speech",
    "moss_transcribe_diarize": "speech",
    "musicgen": "music",
    "musicgen_melody": "music",
    "phi4_multimodal": "its encoders do not shrink",
    "qwen4_exp": "its default configuration cannot be built",
    "qwen4_exp_text": "its default configuration cannot be built",
    "reformer": "its backward pass works with dropout only",
    "xmod": "needs the language of its input",
}


NAMES = [name for name in [*VARIANTS, *sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)] if name not in NOT_TRIED]


def config_of(name: str, **sizes: object):
    kind, more = VARIANTS.get(name, (name, {}))
    known = {*CONFIG_MAPPING[kind]().to_dict(), *vars(CONFIG_MAPPING[kind]).get("attribute_map", {})}
    return _shrunk(CONFIG_MAPPING[kind], {key: value for key, value in sizes.items() if key in known} | more)


def _shrunk(kind: type, more: dict[str, object], depth: int = 0):
    """A configuration with every size that has a familiar name made small, in nested configurations too."""
    whole = kind()
    known = whole.to_dict()
    small = {
        name: value for name, value in SMALL.items() if name in known or name in vars(kind).get("attribute_map", {})
    }
    for name in getattr(kind, "sub_configs", None) or {}:
        inner = getattr(whole, name, None)
        if inner is not None and not isinstance(inner, dict) and depth < 2:
            small[name] = _shrunk(type(inner), {}, depth + 1)
    if "qk_rope_head_dim" in known:  # latent attention: heads have two parts, and keys are not shared
        small |= {"head_dim": SMALL["qk_rope_head_dim"], "num_key_value_heads": SMALL["num_attention_heads"]}
    given = small | SPECIAL.get(kind.model_type, {}) | more
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):  # one entry for each layer of the full size
        if isinstance(known.get(name), list) and name not in given and "num_hidden_layers" in given:
            kinds = list(dict.fromkeys(known[name]))
            given[name] = (kinds * 4)[: given["num_hidden_layers"]]
    return kind(**given)


def build(
    name: str, attention: str | None = "eager", dtype: torch.dtype = torch.float32, **sizes: object
) -> PreTrainedModel:
    """A model with random weights that are large enough for every part to matter."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    config = config_of(name, **sizes)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    kind = kind[0] if isinstance(kind, tuple) else kind
    if not isinstance(config, kind.config_class):  # as `AutoModelForCausalLM` does
        config = config.get_text_config()
    with torch.device("meta"):
        size = sum(p.numel() for p in kind._from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million parameters at the smallest")
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model.to(dtype).eval()


# What people bring, and one of every kind of layer. `make test` tries these, `make soak` all.
USUAL = {
    "bloom", "cohere2", "deepseek_v2", "deepseek_v3", "falcon", "falcon_h1", "gemma", "gemma2", "gemma3_text",
    "gemma3n_text", "glm4", "glm4_moe", "gpt2", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite",
    "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "llama", "llama4_text", "mamba", "mamba2", "mistral",
    "mixtral", "nemotron_h", "olmo2", "olmoe", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "qwen3_next", "recurrent_gemma", "rwkv", "smollm3", "stablelm", "starcoder2", "xlstm", *VARIANTS,
}  # fmt: skip


def some_now(names):
    """Parameters of a test: the usual ones, and the others for `make soak`."""
    return [name if name in USUAL else pytest.param(name, marks=pytest.mark.soak) for name in names]
