"""Well-known shapes of models and of data, for plans and benchmarks without either. Needs no Transformers, so that
benchmarks can measure libraries that pin another version of it."""

from typing import Any

import numpy as np

LONGEST = 4096  # tokens in the longest sequence of HelpSteer3's length distribution
SHAPES: dict[str, dict[str, Any]] = {
    "70b": {
        "vocab_size": 128_256, "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
    "8b": {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
    "1b": {
        "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
    },
    "135m": {
        "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
    },
}  # fmt: skip


def pair_lengths(count: int, cap: int, seed: int = 7) -> list[tuple[int, int, int]]:
    """Prompt, chosen and rejected tokens: log-normal, with HelpSteer3's median response of 364.5.

    Sequences longer than 4,096 tokens are redrawn; a smaller cap shrinks all lengths in proportion.
    """
    rng, drawn = np.random.default_rng(seed), list[tuple[int, int, int]]()
    shrink = min(1.0, cap / LONGEST)
    while len(drawn) < count:
        prompt = int(np.clip(np.exp(rng.normal(np.log(300), 1.0)), 12, 3000))
        mean, spread = np.exp(rng.normal(np.log(364.5), 0.65)), rng.normal(0, 0.3)
        chosen, rejected = (int(max(8, mean * np.exp(sign * spread / 2))) for sign in (1, -1))
        if prompt + max(chosen, rejected) <= LONGEST:
            drawn.append((_shrunk(prompt, shrink), _shrunk(chosen, shrink), _shrunk(rejected, shrink)))
    return drawn


def _shrunk(tokens: int, share: float) -> int:
    return max(1, int(tokens * share))
