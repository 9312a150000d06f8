"""The fixed inputs of a scale head: sketched prompt embeddings and their standardization.

("Scale fitting and features", "Feature construction".)
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

DIMENSION, WIDE = 64, 512
PROMPT_PREFIX = "pair-prompt-v1:"
FLOOR = 1e-6
FACTS = ("log characters", "log words")  # what is known about a prompt besides its embedding


def signed_bucket(text: str, buckets: int = DIMENSION) -> tuple[int, int]:
    """SHA-256 of `text`: the first four bytes (big-endian) give the bucket, the low bit of the fifth the sign."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") % buckets, 1 if digest[4] & 1 else -1


@lru_cache(maxsize=8)
def _sketch_matrix(dimension: int, buckets: int, prefix: str) -> Tensor:
    """(d, buckets) with one ±1 per row."""
    matrix = torch.zeros(dimension, buckets)
    for j in range(dimension):
        bucket, sign = signed_bucket(f"{prefix}{j}", buckets)
        matrix[j, bucket] = sign
    return matrix


def count_sketch(embeddings: Tensor, buckets: int = DIMENSION, prefix: str = PROMPT_PREFIX) -> Tensor:
    """(n, d) embeddings → (n, buckets) float32 signed bucket sums over √max(1, d/buckets)."""
    dimension = embeddings.shape[1]
    matrix = _sketch_matrix(dimension, buckets, prefix).to(embeddings.device)
    sums: Tensor = embeddings.float() @ matrix
    return sums / math.sqrt(max(1.0, dimension / buckets))


def wide_features(embeddings: Tensor, texts: Sequence[str]) -> Tensor:
    """(n, d + 2) embeddings, sketched to 512 numbers if they have more, and how long the prompts are."""
    known = embeddings.float() if embeddings.shape[1] <= WIDE else count_sketch(embeddings, WIDE)
    lengths = torch.tensor([[math.log1p(len(text)), math.log1p(len(text.split()))] for text in texts])
    return torch.cat([known, lengths.reshape(-1, len(FACTS)).to(known)], dim=1)


def narrow_features(wide: Tensor) -> Tensor:
    """(n, 64) the sketch of the embeddings in wide features."""
    return count_sketch(wide[:, : -len(FACTS)])


@dataclass(frozen=True)
class Standardizer:
    """Featurewise means and deviations, frozen once fitted."""

    mean: Tensor  # (d,)
    deviation: Tensor  # (d,) population deviation, floored

    @classmethod
    def fit(cls, features: Tensor, weights: Tensor | None = None) -> "Standardizer":
        """Fits to the given units or, with `weights` (u,), to their rows: each unit counts as often as it occurs."""
        values = features.double()
        w = torch.ones(len(values), dtype=torch.float64) if weights is None else weights.double()
        w = (w / w.sum())[:, None]
        mean = (w * values).sum(0)
        deviation = (w * (values - mean) ** 2).sum(0).sqrt()
        return cls(mean.float(), deviation.clamp(min=FLOOR).float())

    def __call__(self, features: Tensor) -> Tensor:
        if features.shape[1:] != self.mean.shape:
            raise ValueError(f"features have {features.shape[1]} dimensions; the scale was fitted to {len(self.mean)}")
        return (features.float() - self.mean) / self.deviation


def row_counts(unit: Tensor, units: int) -> Tensor:
    """(u,) how many rows each unit has."""
    return torch.bincount(unit, minlength=units)
