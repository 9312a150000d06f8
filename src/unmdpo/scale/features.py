"""The fixed inputs of a scale head: sketched prompt embeddings and their standardization.

("Scale fitting and features", "Feature construction".)
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DIMENSION, WIDE = 64, 512
PROMPT_PREFIX = "pair-prompt-v1:"
FLOOR = 1e-6
FACTS = ("log characters", "log words")  # what is known about a prompt besides its embedding
RESPONSE_PREFIX = "pair-response-v1:"
WORD = re.compile(r"\w+")


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
    """(n, d + 2) embeddings, sketched unless they have fewer than 512 numbers, and how long the prompts are."""
    known = embeddings.float() if embeddings.shape[1] < WIDE else count_sketch(embeddings, WIDE)
    lengths = torch.tensor([[math.log1p(len(text)), math.log1p(len(text.split()))] for text in texts])
    return torch.cat([known, lengths.reshape(-1, len(FACTS)).to(known)], dim=1)


def narrow_features(wide: Tensor) -> Tensor:
    """(n, 64) the sketch of the embeddings in wide features. A sketch of them is folded: a bucket's number, modulo 64,
    is that of the narrow sketch, with the same sign."""
    known = wide[:, : -len(FACTS)]
    if known.shape[1] < WIDE:
        return count_sketch(known)
    return known.reshape(len(known), WIDE // DIMENSION, DIMENSION).sum(dim=1) / math.sqrt(WIDE / DIMENSION)


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


class HashedResponses(NamedTuple):
    vectors: NDArray[np.float32]  # (n, 64) signed word counts, L2-normalized
    words: NDArray[np.int64]  # (n,) number of words
    vocabularies: list[NDArray[np.int64]]  # (n,) sorted ids of each response's distinct words


def pair_features(prompts: Tensor, first: Sequence[str], second: Sequence[str]) -> Tensor:
    """(n, 64) prompt sketches and two responses each → (n, 388) float32."""
    if prompts.shape != (len(first), DIMENSION) or len(first) != len(second):
        raise ValueError(f"expected (n, {DIMENSION}) prompt sketches and n first and second responses")
    texts = [*first, *second]
    position = {text: i for i, text in enumerate(dict.fromkeys(texts))}  # each distinct text is hashed once
    hashed = hash_responses(list(position))
    one = np.array([position[text] for text in first], dtype=np.int64)
    two = np.array([position[text] for text in second], dtype=np.int64)
    a, b = hashed.vectors[one], hashed.vectors[two]
    total, difference = a + b, np.abs(a - b)
    log_lengths = np.log1p(hashed.words.astype(np.float32))
    prompt = prompts.float().numpy()
    blocks = [
        prompt,
        total,
        difference,
        a * b,
        prompt * total,
        prompt * difference,
        (log_lengths[one] + log_lengths[two])[:, None],
        np.abs(log_lengths[one] - log_lengths[two])[:, None],
        (a * b).sum(axis=1)[:, None],  # cosine: both are unit vectors (or zero)
        _overlaps(hashed.vocabularies, one, two)[:, None],
    ]
    return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))


def words_of(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def hash_responses(texts: Sequence[str]) -> HashedResponses:
    """Signed hashed word counts; each distinct word is hashed once, no matter how often it occurs."""
    ids: dict[str, int] = {}
    coded = [np.array([ids.setdefault(word, len(ids)) for word in words_of(text)], dtype=np.int64) for text in texts]
    hashes = np.array([signed_bucket(RESPONSE_PREFIX + word) for word in ids], dtype=np.int64).reshape(-1, 2)
    vectors = np.zeros((len(texts), DIMENSION), dtype=np.float32)
    vocabularies = []
    for i, codes in enumerate(coded):
        distinct, counts = np.unique(codes, return_counts=True)
        bucket, sign = hashes[distinct].T
        vectors[i] = np.bincount(bucket, sign * counts, DIMENSION)
        vocabularies.append(distinct)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    words = np.array([len(codes) for codes in coded], dtype=np.int64)
    np.divide(vectors, norms, out=vectors, where=norms > 0)
    return HashedResponses(vectors, words, vocabularies)


def _overlaps(
    vocabularies: list[NDArray[np.int64]], one: NDArray[np.int64], two: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(n,) Jaccard overlap of the two responses' distinct words; 0 if neither has any."""
    overlaps = np.zeros(len(one), dtype=np.float32)
    for i, (a, b) in enumerate(zip(one, two, strict=True)):
        shared = len(np.intersect1d(vocabularies[a], vocabularies[b], assume_unique=True))
        union = len(vocabularies[a]) + len(vocabularies[b]) - shared
        overlaps[i] = shared / union if union else 0.0
    return overlaps
