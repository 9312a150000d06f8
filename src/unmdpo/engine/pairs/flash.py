"""Attention by FlashAttention: version 4 where it is installed (`unmdpo[fa4]`) and the GPU is one that it was made
for, else version 2, which comes with torch.

It skips what FlexAttention's blocks only mask, and takes any length (docs/evidence/performance.md). It computes in
16 bits only, so the layout is proven with the model's usual attention, and the kernel by itself, on the model's own
heads.
"""

import os
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from unmdpo.engine.pairs.masks import CannotPack
from unmdpo.engine.pairs.sequences import ATTENTION, Sequences, repeated

CAPABILITY = {2: (8, 0), 4: (9, 0)}  # Ampere and later, Hopper and later
WIDTH = 32  # version 4 is right for heads whose width is a multiple of this
HALF = (torch.bfloat16, torch.float16)
NOT_OURS = ("softcap", "s_aux", "position_bias", "head_mask")  # what some models want besides
CLOSE = 0.03  # largest error of an output or gradient, relative to the largest value: a few bits of bfloat16


# docs/evidence/performance.md: 1.15 times as fast as FlexAttention with a 1B shape; not measured against version 2
MISSED = "FlashAttention 2 is used; version 4 may be faster on this GPU: pip install 'flash-attn-4[cu13]'"


def can_flash(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether FlashAttention is worth trying."""
    return _suits(2, device) and model.dtype in HALF


def is_missed(device: torch.device) -> bool:
    """Whether version 4 would be worth trying, but is not installed."""
    return _suits(4, device) and not installed()


def _suits(version: int, device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY[version]


@lru_cache(maxsize=1)
def installed() -> bool:
    """Whether version 4 can be used: one whose own libraries are missing is as good as none."""
    try:
        _kernels()
    except Exception:  # whatever its libraries make of this machine
        return False
    return True


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """(1, length, heads, d) from queries (1, heads, length, d), keys and values (1, key heads, length, d)."""
    if not isinstance(attention_mask, Sequences):
        raise CannotPack("a layer was not given sequences")
    for name in NOT_OURS:
        if more.get(name) is not None:
            raise CannotPack(f"its attention has a {name}")
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    return over_sequences(queries, keys, values, attention_mask, scaling)[None], None


def over_sequences(
    queries: Tensor, keys: Tensor, values: Tensor, sequences: Sequences, scaling: float | None = None
) -> Tensor:
    """(length, heads, d) from queries (length, heads, d), keys and values (length, key heads, d)."""
    scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
    window = -1 if sequences.window is None else sequences.window
    keys, values = repeated(keys, sequences), repeated(values, sequences)
    made: Tensor
    made, _ = flash(
        queries.contiguous(), keys, values, sequences.queries, sequences.keys, sequences.longest, float(scale), window
    )
    return made


@torch.library.custom_op("unmdpo::flash", mutates_args=(), device_types="cuda")
def flash(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, longest: int, scale: float, window: int
) -> tuple[Tensor, Tensor]:
    """Output, and the log-sum-exp that the backward pass needs. A `window` of −1 sees everything."""
    if is_newest(q):
        made = _kernels()._flash_attn_fwd(
            q, k, v, cu_seqlens_q=queries, cu_seqlens_k=keys, softmax_scale=scale, return_lse=True, **_reach(window)
        )
    else:
        made = torch.ops.aten._flash_attention_forward(
            q, k, v, queries, keys, longest, longest, 0.0, True, False, scale=scale, **_reach_in_torch(window)
        )
    return made[0], made[1]


@flash.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("unmdpo::flash_backward", mutates_args=(), device_types="cuda")
def flash_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    made: Tensor,
    normalizer: Tensor,
    queries: Tensor,
    keys: Tensor,
    longest: int,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    if is_newest(q):
        by_q, by_k, by_v = _kernels()._flash_attn_bwd(
            q, k, v, made, gradient, normalizer, softmax_scale=scale, cu_seqlens_q=queries, cu_seqlens_k=keys,
            deterministic=torch.are_deterministic_algorithms_enabled(), **_reach(window),
        )  # fmt: skip
    else:
        no_dropout, unused = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
        by_q, by_k, by_v = torch.ops.aten._flash_attention_backward(
            gradient, q, k, v, made, normalizer, queries, keys, longest, longest, 0.0, True, no_dropout, unused,
            scale=scale, **_reach_in_torch(window),
        )  # fmt: skip
    return by_q, by_k, by_v


@flash_backward.register_fake
def _(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, queries, keys, ctx.longest, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(q, k, v, *output, queries, keys)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    by = flash_backward(gradient.contiguous(), *ctx.saved_tensors, ctx.longest, ctx.scale, ctx.window)
    return *by, None, None, None, None, None


flash.register_autograd(_differentiate, setup_context=_keep)


def _reach(window: int) -> dict[str, Any]:
    return {"causal": True} if window < 0 else {"window_size_left": window - 1, "window_size_right": 0}


def _reach_in_torch(window: int) -> dict[str, int]:
    return {"window_size_left": max(window - 1, -1), "window_size_right": 0}


def is_newest(queries: Tensor) -> bool:
    """Whether version 4 is used. Its gradients are wrong for heads of 16 and 80 (4.0.0b36 on an H200)."""
    return queries.shape[-1] % WIDTH == 0 and _suits(4, queries.device) and installed()


@lru_cache(maxsize=1)
def _kernels() -> Any:
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")  # compiled once on a machine, not per process
    from flash_attn.cute import interface  # noqa: PLC0415 - an extra

    return interface


def check_kernel(model: PreTrainedModel, sequences: Sequences, visible: Tensor) -> None:
    """Raises unless the kernel does, on random heads of the model's sizes, what plain attention does in float32 where
    `visible` (1, 1, length, length) allows it; gradients too. The row must not be padded."""
    config, length = model.config.get_text_config(), visible.shape[-1]
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    rng = torch.Generator(visible.device).manual_seed(0)

    def drawn(count: int) -> Tensor:
        return torch.randn(length, count, width, device=visible.device, generator=rng).to(model.dtype)

    inputs, weights = (drawn(heads), drawn(key_heads), drawn(key_heads)), drawn(heads)
    results = []
    fast, plain = partial(over_sequences, sequences=sequences), partial(_with_mask, visible=visible)
    for way in (fast, plain):
        with torch.enable_grad():
            q, k, v = leaves = [values.detach().requires_grad_() for values in inputs]
            made = way(q, k, v).float()
            results.append([made.detach(), *torch.autograd.grad((made * weights).sum(), leaves)])
    for found, right in zip(*results, strict=True):
        error = (found.float() - right.float()).abs().max()
        largest = right.float().abs().max().clamp(min=1.0)  # gradients vanish where a token sees only itself
        if not bool(error <= CLOSE * largest):
            raise CannotPack(f"FlashAttention is off by {float(error / largest):.2g} of the largest value")


def _with_mask(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """As `over_sequences`, in float32."""
    queries, keys, values = (part.float().transpose(0, 1)[None] for part in (q, k, v))  # (1, heads, length, d)
    made = scaled_dot_product_attention(queries, keys, values, attn_mask=visible, enable_gqa=True)
    return made[0].transpose(0, 1)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)  # while packed, `packed_masks` replaces it
