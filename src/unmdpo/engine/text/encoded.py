"""Token ids of comparisons, in flat arrays that are small in memory and saved without pickle."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of one comparison. An invalid pair is never trained on, but keeps its loader slot.

    Tokens of a response that the assistant did not write, such as what a tool returns, are read but not scored: they
    are marked by their complement, ~id.
    """

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens
    valid: bool

    @property
    def tokens(self) -> int:
        """Length of the shared layout: prompt, chosen, rejected."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)


def unmarked(tokens: Tokens) -> Tokens:
    """Token ids, of marked ones too."""
    return np.where(tokens < 0, ~tokens, tokens)


def longest(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n,) tokens of each pair's longer sequence, from (n, 3)."""
    tokens: NDArray[np.int32] = lengths[:, 0] + lengths[:, 1:].max(axis=1, initial=0)
    return tokens


@dataclass(frozen=True)
class EncodedPairs:
    """All encoded pairs in flat arrays: small in memory, and saved without pickle."""

    tokens: Tokens  # all token ids, pair after pair: prompt, chosen, rejected
    lengths: NDArray[np.int32]  # (n, 3)
    valid: NDArray[np.bool_]  # (n,)

    @classmethod
    def of(cls, pairs: Iterable[EncodedPair]) -> "EncodedPairs":
        parts, lengths, valid = [], [], []
        for pair in pairs:
            parts += [pair.prompt, pair.chosen, pair.rejected]
            lengths.append([len(pair.prompt), len(pair.chosen), len(pair.rejected)])
            valid.append(pair.valid)
        return cls(
            np.concatenate(parts) if parts else np.empty(0, dtype=np.int32),
            np.array(lengths, dtype=np.int32).reshape(-1, 3),
            np.array(valid, dtype=np.bool_),
        )

    def __len__(self) -> int:
        return len(self.valid)

    def save(self, path: Path) -> None:
        """Saves as safetensors; a dataset is tokenized once for all runs that share it."""
        save_file({name: np.ascontiguousarray(array) for name, array in self._arrays().items()}, path)

    @classmethod
    def load(cls, path: Path) -> "EncodedPairs":
        return cls(**load_file(path))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {"tokens": self.tokens, "lengths": self.lengths, "valid": self.valid}

    def within(self, most: int) -> int:
        """How many pairs have sequences of at most this many tokens."""
        return int((longest(self.lengths) <= most).sum())

    @cached_property
    def digest(self) -> str:
        """Of all tokens, and where they belong."""
        found = hashlib.sha256()
        for array in self._arrays().values():
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

    @cached_property
    def scored(self) -> NDArray[np.int32]:
        """(n, 2) tokens of chosen and rejected that are scored."""
        if not (self.tokens < 0).any():
            return self.lengths[:, 1:]
        before = np.concatenate([[0], np.cumsum(self.tokens < 0)])  # marked tokens before each
        ends = self.starts[:, None] + np.cumsum(self.lengths, axis=1)  # (n, 3)
        marked = before[ends[:, 1:]] - before[ends[:, :2]]
        found: NDArray[np.int32] = (self.lengths[:, 1:] - marked).astype(np.int32)
        return found

    @property
    def valid_lengths(self) -> NDArray[np.int32]:
        """(m, 3) lengths of the valid pairs."""
        lengths: NDArray[np.int32] = self.lengths[self.valid]
        return lengths

    @property
    def valid_tokens(self) -> int:
        """Total tokens of the valid pairs, each prompt counted once."""
        return int(self.valid_lengths.sum())

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(n,) where each pair's tokens begin."""
        totals = self.lengths.sum(axis=1, dtype=np.int64)
        starts: NDArray[np.int64] = np.cumsum(totals) - totals
        return starts

    def pair(self, index: int) -> EncodedPair:
        start = int(self.starts[index])
        a, b, c = (int(length) for length in self.lengths[index])
        tokens = self.tokens[start : start + a + b + c]
        return EncodedPair(tokens[:a], tokens[a : a + b], tokens[a + b :], bool(self.valid[index]))

    def select(self, indices: Iterable[int]) -> list[EncodedPair]:
        return [self.pair(i) for i in indices]
