"""How policies order pairs that nobody was trained on."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from unmdpo.data import Comparison
from unmdpo.engine.models import load_model
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.settings import ModelPlace, ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs


def fitting(model: str, rows: Sequence[Comparison], length: int) -> list[Comparison]:
    """The rows that are not too long."""
    valid = EncodedPairs.of(
        Encoder.of(ModelSource(path=ModelPlace(model)), max_length=length).encode(list(rows))
    ).valid
    return [row for row, fits in zip(rows, valid, strict=True) if fits]


def margins(
    model: str, policies: Mapping[str, Path], normalized: Collection[str], rows: Sequence[Comparison], length: int
) -> dict[str, np.ndarray]:
    """By how much each policy prefers the chosen response, for the rows that fit: by the log-ratio to the initial
    model, divided by each response's length for the policies in `normalized`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pairs = EncodedPairs.of(Encoder.of(ModelSource(path=ModelPlace(model)), max_length=length).encode(list(rows)))
    tokens = torch.from_numpy(pairs.lengths[:, 1:])

    def log_probs(path: str) -> torch.Tensor:
        return score(
            PairScorer(load_model(ModelSource(path=ModelPlace(path)), device=device, dtype=dtype)), pairs
        ).cpu()

    initial, found = log_probs(model), {}
    for name, place in policies.items():
        ratio = log_probs(str(place)) - initial  # (n, 2)
        ratio = ratio / tokens if name in normalized else ratio
        found[name] = (ratio[:, 0] - ratio[:, 1])[torch.from_numpy(pairs.valid)].numpy()
    return found
