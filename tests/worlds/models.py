"""Tiny random models of several families, pairs of random tokens, and slow counterparts of the fast paths."""

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from unmdpo.engine.text.encoded import EncodedPair

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
TINY = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS = {
    "llama, tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama, wide": (  # widths are multiples of 64, a block of four-bit weights, which some processors insist on
        LlamaForCausalLM,
        LlamaConfig,
        {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16},
    ),
    "llama, untied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": False}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
    "gemma2, soft-capped, sliding": (Gemma2ForCausalLM, Gemma2Config, {"sliding_window": 6}),
    "gemma3, sliding": (Gemma3ForCausalLM, Gemma3TextConfig, {"sliding_window": 6}),
}


def tiny(name, attention="eager", dtype=torch.float64):
    kind, config, extra = MODELS[name]
    torch.manual_seed(0)
    model = kind._from_config(config(**(TINY | extra)), attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def pair(prompt, chosen, rejected, seed=0):
    rng = np.random.default_rng(seed)
    return EncodedPair(*(rng.integers(3, 64, n).astype(np.int32) for n in (prompt, chosen, rejected)), True)


PAIRS = [pair(5, 7, 4, 1), pair(1, 1, 9, 2), pair(12, 3, 1, 3), pair(3, 8, 8, 4)]


def one_by_one(model, pairs):
    """(n, 2) sums from plain forward passes, one sequence at a time: slow and obvious."""
    sums = []
    for item in pairs:
        for response in (item.chosen, item.rejected):
            whole = torch.from_numpy(np.concatenate([item.prompt, response]).astype(np.int64))
            logs = model(whole[None], use_cache=False).logits[0].log_softmax(-1)
            start = len(item.prompt)
            sums.append(sum(logs[i - 1, whole[i]] for i in range(start, len(whole))))
    return torch.stack(sums).view(-1, 2)


def word_tokenizer(template=TEMPLATE):
    """Sixty words and four special tokens."""
    words = ["<pad>", "<end>", "<user>", "<assistant>", *(f"w{i}" for i in range(60))]
    word_level = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=word_level, pad_token="<pad>", eos_token="<end>")
    made.chat_template = template
    return made
