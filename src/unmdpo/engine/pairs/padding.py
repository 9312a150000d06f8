"""Pads rows to one length, groups rows of similar length, and lays out pairs that way.

In a padded batch, every response gets its own row, after its prompt. That is slower than packing, because prompts are
computed twice and rows are padded, but it only needs the usual attention mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmdpo.engine.pairs.packing import PairBatch, rounded_up, same_responses
from unmdpo.engine.text.encoded import EncodedPair, unmarked


def alike(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups indices of rows of similar length, longest first; a group padded to its longest row fits the budget."""
    groups: list[list[int]] = []
    room = 0
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            groups.append([])
            room = max(1, budget // max(1, lengths[place]))  # a group's first row is its longest
        groups[-1].append(place)
        room -= 1
    return [sorted(members) for members in groups]


def padded(
    rows: Sequence[Sequence[int] | NDArray[np.int32]],
    pad_token: int,
    side: Literal["left", "right"],
    multiple: int = 1,
) -> tuple[Tensor, Tensor]:
    """(n, longest) tokens and mask; the longest row, rounded up to a multiple."""
    longest = rounded_up(max(map(len, rows)), multiple)
    tokens = torch.full((len(rows), longest), pad_token, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        tokens[number, place] = torch.as_tensor(row, dtype=torch.int64)
        mask[number, place] = 1
    return tokens, mask


@dataclass(frozen=True)
class PaddedBatch(PairBatch):
    mask: Tensor  # (2·pairs, length) 1 where a row has a token
    masked: bool  # the model needs it

    @property
    def real(self) -> Tensor:
        """(2·pairs, length) bool: not padding."""
        return self.mask.bool()

    @classmethod
    def of(cls, pairs: Sequence[EncodedPair], *, multiple: int = 1, masked: bool = True) -> "PaddedBatch":
        """Rows have a multiple of so many tokens."""
        rows = _sequences(pairs)
        tokens, mask = padded([unmarked(row) for row in rows], 0, "right", multiple)
        longest, predictors, responses = tokens.shape[1], [], []
        for number, row in enumerate(rows):
            prompt = len(pairs[number // 2].prompt)
            scored = prompt + torch.from_numpy(np.flatnonzero(row[prompt:] >= 0))
            predictors.append(number * longest + scored - 1)
            responses.append(torch.full((len(scored),), number))
        predictor = torch.cat(predictors)
        return cls(
            tokens=tokens,
            mask=mask,
            masked=masked,
            predictor=predictor,
            target=tokens.flatten()[predictor + 1],
            response=torch.cat(responses),
            same=same_responses(pairs),
            last=torch.tensor([number * longest + len(row) - 1 for number, row in enumerate(rows)]),
            pairs=len(pairs),
        )


@dataclass(frozen=True)
class SingleBatch(PairBatch):
    """Pairs whose sequences go through the model one at a time, as plainly as can be."""

    lengths: tuple[int, ...]  # of each row of `tokens`

    @classmethod
    def of(cls, pairs: Sequence[EncodedPair]) -> "SingleBatch":
        rows, batch = _sequences(pairs), PaddedBatch.of(pairs)
        return cls(
            tokens=batch.tokens,
            predictor=batch.predictor,
            target=batch.target,
            response=batch.response,
            same=batch.same,
            last=batch.last,
            pairs=batch.pairs,
            lengths=tuple(map(len, rows)),
        )


def _sequences(pairs: Sequence[EncodedPair]) -> list[NDArray[np.int32]]:
    """Each prompt with its chosen response, then with its rejected one; tokens that are not scored are marked."""
    return [np.concatenate([p.prompt, ids]) for p in pairs for ids in (p.chosen, p.rejected)]
