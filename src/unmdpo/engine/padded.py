"""Plain padded batches, for models whose attention cannot take our packed layout.

Every response is a row of its own behind its prompt. Slower, because prompts are computed twice and
rows are padded, but it asks nothing of a model beyond a usual attention mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmdpo.engine.encode import EncodedPair
from unmdpo.engine.packing import PairBatch


def alike(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups of positions of like length whose two padded rows each fit the budget; longest first."""
    groups: list[list[int]] = []
    room = 0
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            groups.append([])
            room = max(1, budget // (2 * lengths[item]))  # the group's first is its longest
        groups[-1].append(item)
        room -= 1
    return [sorted(members) for members in groups]


@dataclass(frozen=True)
class PaddedBatch(PairBatch):
    mask: Tensor  # (2·pairs, length) 1 where a row has a token

    @classmethod
    def of(cls, pairs: Sequence[EncodedPair], pad_token: int = 0) -> "PaddedBatch":
        rows = [np.concatenate([p.prompt, ids]) for p in pairs for ids in (p.chosen, p.rejected)]
        longest = max(len(row) for row in rows)
        tokens = torch.full((len(rows), longest), pad_token, dtype=torch.int64)
        mask = torch.zeros(len(rows), longest, dtype=torch.int64)
        predictors, responses = [], []
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = torch.from_numpy(row.astype(np.int64))
            mask[number, : len(row)] = 1
            prompt = len(pairs[number // 2].prompt)
            predictors.append(number * longest + torch.arange(prompt - 1, len(row) - 1))
            responses.append(torch.full((len(row) - prompt,), number))
        predictor = torch.cat(predictors)
        return cls(
            tokens=tokens,
            mask=mask,
            predictor=predictor,
            target=tokens.flatten()[predictor + 1],
            response=torch.cat(responses),
            pairs=len(pairs),
        )
