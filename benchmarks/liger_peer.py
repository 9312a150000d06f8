"""Liger's fused DPO loss in a plain training loop, on the workload of `benchmarks.engine`.

    python -m benchmarks.liger_peer [--updates 3]

A careful loop around `LigerFusedLinearDPOLoss`: Liger's layers, chosen and rejected padded on the right without
a mask, pairs sorted by length, the head only where a response is predicted, bfloat16 weights with float32 masters, and
reference log-probabilities from before, which Liger's interface does not take, so a small wrapper hands them over.
Batches lie on the GPU before the clock starts. Needs a GPU and liger-kernel; prints one JSON line.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.trl_peer import BATCH, speed
from unmdpo.engine.shapes import SHAPES, pair_lengths

MICRO = 8  # pairs
IGNORED = -100
Pair = tuple[list[int], list[int], list[int]]  # prompt, chosen, rejected


class Batch(NamedTuple):
    """n pairs as 2n rows, chosen first: tokens (2n, t), targets (2n, r) and the places that predict them (2n, r)."""

    ids: Tensor
    targets: Tensor
    where: Tensor

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "Batch":
        sides = [(pair[0], pair[0] + pair[side]) for side in (1, 2) for pair in pairs]
        longest, widest = max(len(ids) for _, ids in sides), max(len(ids) - len(prompt) for prompt, ids in sides)
        ids, targets = torch.zeros(len(sides), longest, dtype=torch.long), torch.full((len(sides), widest), IGNORED)
        where = torch.zeros(len(sides), widest, dtype=torch.long)
        for row, (prompt, whole) in enumerate(sides):
            ids[row, : len(whole)] = torch.tensor(whole)
            targets[row, : len(whole) - len(prompt)] = torch.tensor(whole[len(prompt) :])
            where[row] = (len(prompt) - 1 + torch.arange(widest)).clamp(max=longest - 1)
        return cls(*(tensor.cuda() for tensor in (ids, targets, where)))

    def hidden(self, model: Any) -> Tensor:
        """(2n, r, d) last hidden states where responses are predicted. Causal attention needs no mask."""
        states = model.model(input_ids=self.ids, use_cache=False).last_hidden_state
        return torch.take_along_dim(states, self.where[..., None], dim=1)


@torch.no_grad()
def log_probs(model: Any, batch: Batch) -> Tensor:
    """(2n, 2) each response's log-probability, twice: rows of "hidden states" that the wrapper below understands."""
    sums = []
    for states, target in zip(batch.hidden(model), batch.targets, strict=True):
        logits = model.lm_head(states).float()
        picked = logits.gather(-1, target.clamp(min=0)[:, None])[:, 0] - logits.logsumexp(-1)
        sums.append((picked * (target != IGNORED)).sum())
    return torch.stack(sums)[:, None].expand(-1, 2).contiguous()


def take_log_probs() -> None:
    """Lets Liger's loss take reference log-probabilities in place of a reference's hidden states."""
    base: Any = import_module("liger_kernel.chunked_loss.fused_linear_preference").LigerFusedLinearPreferenceBase
    original = base._compute_loss

    def compute(
        states: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *, ref_input_chunk: Tensor,
        use_ref_model: bool, ref_weight: Tensor | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        assert use_ref_model
        assert ref_weight is None
        known, n = ref_input_chunk[:, 0], len(target) // 2
        return original(
            states, weight, target, bias, use_ref_model=False, ref_chosen_logps=known[:n],
            ref_rejected_logps=known[n:], **more,
        )  # fmt: skip

    base._compute_loss = staticmethod(compute)


def microbatches(updates: int, vocabulary: int) -> Iterator[list[Batch]]:
    """For each update, its pairs, longest first."""
    rng = np.random.default_rng(1)

    def tokens(count: int) -> list[int]:
        drawn: list[int] = rng.integers(0, vocabulary - 2, count).tolist()
        return drawn

    lengths = list(pair_lengths(BATCH * updates, 4096))
    for start in range(0, len(lengths), BATCH):
        pairs = [
            (tokens(p), [*tokens(c - 1), vocabulary - 1], [*tokens(r - 1), vocabulary - 1])
            for p, c, r in lengths[start : start + BATCH]
        ]
        pairs.sort(key=lambda pair: -(len(pair[0]) + max(len(pair[1]), len(pair[2]))))
        yield [Batch.of(pairs[place : place + MICRO]) for place in range(0, BATCH, MICRO)]


def add_gradients(masters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Adds the gradients of bfloat16 weights to their float32 masters'."""
    for master, weight in zip(masters, weights, strict=True):
        assert weight.grad is not None
        master.grad = weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
        weight.grad = None


def measure(updates: int) -> dict[str, Any]:
    layers, losses = (import_module(f"liger_kernel.{name}") for name in ("transformers", "chunked_loss"))
    layers.apply_liger_kernel_to_llama(
        rope=True, rms_norm=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=False
    )
    take_log_probs()
    shape = SHAPES["1b"]
    torch.manual_seed(0)
    config = LlamaConfig(**shape, max_position_embeddings=8192)
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM._from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    model.to(torch.bfloat16).train()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(masters, lr=1e-6, fused=True)
    loss_of = losses.LigerFusedLinearDPOLoss(
        beta=0.05, compute_nll_loss=False, use_ref_model=True, average_log_prob=False, chunk_size=1
    )
    prepared = list(microbatches(updates + 1, shape["vocab_size"]))  # the first update is a warm-up
    references = [[log_probs(model, batch) for batch in update] for update in prepared]
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for update, known in zip(prepared, references, strict=True):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for batch, reference in zip(update, known, strict=True):
            loss, _ = loss_of(model.lm_head.weight, batch.hidden(model), batch.targets, ref_input=reference)
            (loss * (MICRO / BATCH)).backward()
            add_gradients(masters, weights)
        torch.nn.utils.clip_grad_norm_(masters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {"peer": "liger", **speed(seconds[1:])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--updates", type=int, default=3, help="updates to time, after one warm-up update")
    print(json.dumps(measure(parser.parse_args().updates)))
