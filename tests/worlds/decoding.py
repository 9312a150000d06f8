"""Models whose answers end at different times, and a batch of prompts for them."""

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from tests.worlds.models import TINY, tiny
from unmdpo.engine.pairs.padding import padded

PAD = 0
FAMILIES = {
    "granite, scaled otherwise": (GraniteForCausalLM, GraniteConfig, {"attention_multiplier": 0.05}),
    "gpt2, learned positions": (GPT2LMHeadModel, GPT2Config, {"n_positions": 13 + 39}),
    "mixtral": (MixtralForCausalLM, MixtralConfig, {"num_local_experts": 4}),
    "deepseek, wide keys": (
        DeepseekV3ForCausalLM, DeepseekV3Config,
        {"num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "head_dim": 4,
         "first_k_dense_replace": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6},
    ),
}  # fmt: skip


def made(name):
    if name not in FAMILIES:
        return tiny(name, "sdpa", torch.float32)
    kind, config, extra = FAMILIES[name]
    torch.manual_seed(0)
    return kind._from_config(config(**(TINY | extra)), attn_implementation="sdpa", dtype=torch.float32)


def lively(name):
    """A model whose rows end at different times."""
    model = made(name).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model


def batch():
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 9, 1, 13, 8, 2)
    return padded([torch.randint(8, 64, (n,), generator=generator).tolist() for n in lengths], PAD, "left")
