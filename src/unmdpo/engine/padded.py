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
from unmdpo.engine.padding import padded


@dataclass(frozen=True)
class PaddedBatch(PairBatch):
    mask: Tensor  # (2·pairs, length) 1 where a row has a token

    @classmethod
    def of(cls, pairs: Sequence[EncodedPair], pad_token: int = 0) -> "PaddedBatch":
        rows = [np.concatenate([p.prompt, ids]) for p in pairs for ids in (p.chosen, p.rejected)]
        tokens, mask = padded(rows, pad_token, "right")
        longest, predictors, responses = tokens.shape[1], [], []
        for number, row in enumerate(rows):
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
