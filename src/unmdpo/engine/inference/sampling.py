"""Which token comes next: the likeliest, or one that is drawn.

Every answer has random numbers of its own, one for each token, made from its seed alone. So what is drawn does not
depend on the batch, on other answers, or on where a run was resumed.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from unmdpo.engine.settings import Sampling


@dataclass(frozen=True)
class Picker:
    """Picks the next token of each row: with `uniform` (n, tokens), it draws; without, it takes the likeliest."""

    sampling: Sampling | None = None
    uniform: Tensor | None = None

    def rows(self, number: Tensor, start: int, count: int) -> "Picker":
        """For some of the rows, and so many tokens from `start` on."""
        if self.uniform is None:
            return self
        return Picker(self.sampling, self.uniform[number, start : start + count])

    def __call__(self, logits: Tensor, step: Tensor) -> Tensor:
        """(n, 1) the tokens at place `step` (1,), from the (n, v) logits of what came before."""
        if self.sampling is None or self.uniform is None:
            return logits.argmax(dim=-1, keepdim=True)
        chances = (logits.float() / self.sampling.temperature).softmax(dim=-1)
        ranked, token = chances.sort(dim=-1, descending=True, stable=True)
        up_to = ranked.cumsum(dim=-1)
        kept = up_to - ranked < self.sampling.top_p
        whole = torch.where(kept, ranked, 0.0).sum(dim=-1, keepdim=True)
        drawn = self.uniform.index_select(1, step) * whole
        place = (up_to <= drawn).sum(dim=-1, keepdim=True)
        return token.gather(1, torch.minimum(place, kept.sum(dim=-1, keepdim=True) - 1))


class Drawing(LogitsProcessor):
    """For Transformers' own loop: leaves only the picked token."""

    def __init__(self, picker: Picker, prompt: int) -> None:
        self.picker, self.prompt = picker, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = torch.tensor([input_ids.shape[1] - self.prompt], device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, self.picker(scores, step), 0.0)


def seeds_of(prompts: Sequence[object], seed: int) -> list[int]:
    """A seed for each answer, from its prompt and how often that prompt was asked before."""
    asked = Counter[str]()
    seeds = []
    for text in map(repr, prompts):
        digest = hashlib.sha256(f"{seed}:{asked[text]}:{text}".encode()).digest()
        seeds.append(int.from_bytes(digest[:16], "big"))
        asked[text] += 1
    return seeds


def uniform_numbers(seeds: Sequence[int], tokens: int) -> Tensor:
    """(n, tokens) in [0, 1), each row from its seed."""
    rows = [np.random.Generator(np.random.Philox(key=seed)).random(tokens, dtype=np.float32) for seed in seeds]
    return torch.from_numpy(np.stack(rows))
