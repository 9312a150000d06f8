"""Symmetric features of a prompt and an unordered pair of responses (388 = 64 + 3·64 + 2·64 + 4).

Swapping the two responses changes nothing, and neither the winner nor the strength is an input.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmdpo.scale.features import DIMENSION, signed_bucket

RESPONSE_PREFIX = "pair-response-v1:"
WORD = re.compile(r"\w+")


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
