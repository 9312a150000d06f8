"""What a comparison is: a prompt, two responses, which one is better and by how much.

Every source yields `Comparison` objects and nothing else, so training, audits and theory never need to know which file
format a row came from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from unmdpo.data.identity import Prompt, prompt_hash
from unmdpo.errors import DataError


class Origin(NamedTuple):
    """Where a row came from; rows are counted from one, as in editors."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}"


@dataclass(frozen=True)
class Comparison:
    """One oriented comparison z = (y, x⁺, x⁻, k) of the paper's preliminaries.

    A tie has strength 0 and an arbitrary orientation; it is never trained on (`Comparisons.ties` keeps ties
    separate).
    """

    prompt: Prompt
    chosen: str
    rejected: str
    strength: int  # 1…K, or 0 for a tie
    source: Origin
    domain: str = ""
    language: str = ""
    votes: tuple[int, ...] = ()  # one per annotator, positive for `chosen`

    @cached_property
    def prompt_hash(self) -> str:
        return prompt_hash(self.prompt)

    @property
    def pair(self) -> tuple[str, str]:
        """The unordered pair of responses: equal for both orientations."""
        return (min(self.chosen, self.rejected), max(self.chosen, self.rejected))


@dataclass(frozen=True)
class Comparisons:
    """What a source yields: rows to train on, ties kept separate, and errors of rows that could not be read."""

    rows: tuple[Comparison, ...]
    ties: tuple[Comparison, ...] = ()
    skipped: tuple[DataError, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.rows)
