"""Useful arithmetic, and how fast a device does it at best."""

import time
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from unmdpo.engine.memory import LayerShape
from unmdpo.engine.scoring import body


def forward_flops(model: PreTrainedModel, lengths: NDArray[np.int32]) -> float:
    """Of one pass over pairs of these lengths (n, 3): each prompt counted once, the head on response
    tokens only, attention as far as it sees. Padding and recomputation are not useful."""
    shape, config = LayerShape.of(model), model.config.get_text_config()
    linear = sum(m.weight.numel() for m in body(model).modules() if isinstance(m, nn.Linear))
    prompt, chosen, rejected = lengths.astype(np.float64).T
    seen = prompt**2 / 2 + chosen * (prompt + chosen / 2) + rejected * (prompt + rejected / 2)
    tokens, responses = prompt + chosen + rejected, chosen + rejected
    attention = shape.layers * 4 * shape.queries * seen
    return float((2 * linear * tokens + attention + 2 * shape.width * config.vocab_size * responses).sum())


def training_passes(model: PreTrainedModel, adaptive: bool = False) -> float:
    """An update in forward passes: forward, gradients of activations, of trained weights, and the pass
    before them that adaptive objectives need."""
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 2 + trained / total + adaptive


@lru_cache(maxsize=4)
def matrix_rate(device: torch.device) -> float:
    """FLOP/s of a large matrix product of random data, measured: bfloat16 on a GPU, float32 on a CPU."""
    on_gpu = device.type == "cuda"
    size, repeats, dtype = (8192, 30, torch.bfloat16) if on_gpu else (768, 4, torch.float32)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))

    def seconds(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            a @ b
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds(5 if on_gpu else 1)  # warm up
    return repeats * 2 * size**3 / seconds(repeats)
