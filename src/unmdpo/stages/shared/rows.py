"""The parts of a recipe's data as a stage reads them, with counts of what became of every row."""

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from unmdpo.data.bad import as_lines
from unmdpo.data.comparison import BOTH_BAD, Comparisons
from unmdpo.data.load import load
from unmdpo.data.panels import split_prompts
from unmdpo.data.sources.preference import strengths_come_later
from unmdpo.data.table import ComparisonTable
from unmdpo.recipe.settings import MixedRows, ValidationRecipe
from unmdpo.stages.shared.base import Job, Notes
from unmdpo.stages.shared.files import BAD_ROWS

Quantiles = Mapping[str, tuple[float, ...]]  # by part, where margins were cut
NO_QUANTILES: Quantiles = {}


@dataclass(frozen=True)
class Part:
    rows: ComparisonTable
    ties: ComparisonTable
    weight: float

    @cached_property
    def names(self) -> list[str]:
        """Each row's prompt hash."""
        return list(self.rows.prompt_hashes())


@dataclass(frozen=True)
class LoadedRows:
    parts: dict[str, Part]
    notes: Notes

    @classmethod
    def of(cls, job: Job[Any], parts: Mapping[str, MixedRows], quantiles: Quantiles = NO_QUANTILES) -> "LoadedRows":
        """Reads all parts. Their bad rows are listed in the work folder, also if they are too many to go on. Strengths
        are cut at each part's `quantiles`, or else at its own."""
        read, ready = dict[str, Comparisons](), dict[str, Part]()
        for name, spec in parts.items():
            listing = job.folder / BAD_ROWS.name
            with strengths_come_later() if spec.strength.judge is not None else contextlib.nullcontext():
                data = load(spec.as_read, quantiles=quantiles.get(name), listing=listing, part=name)
            assert isinstance(data.rows, ComparisonTable)
            assert isinstance(data.ties, ComparisonTable)
            read[name], ready[name] = data, Part(data.rows, data.ties, spec.weight)
        bad = [error for data in read.values() for error in data.skipped]
        if bad:
            job.save(BAD_ROWS, as_lines(bad))
        return cls(ready, _counts(read))

    def held_out(self, spec: ValidationRecipe | None) -> set[str]:
        """The prompts of the share that is kept for validation."""
        if spec is None or spec.fraction is None:
            return set()
        hashes = {name for part in self.parts.values() for name in part.names}
        return split_prompts(hashes, spec.fraction, spec.seed)

    def rows_of(self, prompts: set[str]) -> int:
        """How many comparisons these prompts have."""
        if not prompts:
            return 0
        return sum(name in prompts for part in self.parts.values() for name in part.names)

    def training(self, excluded: set[str]) -> list[ComparisonTable]:
        """Every part as often as its weight says; of a fraction, that share of its prompts."""
        tables = []
        for part in self.parts.values():
            kept = np.array([name not in excluded for name in part.names], dtype=np.bool_)
            whole = math.floor(part.weight)
            tables += [part.rows.where(kept)] * whole
            if part.weight > whole:
                drawn = [in_share(name, part.weight - whole) for name in part.names]
                tables.append(part.rows.where(kept & np.array(drawn, dtype=np.bool_)))
        return tables


def in_share(prompt_hash: str, share: float) -> bool:
    """Whether a prompt is in the share, by its hash alone; apart from the draw of validation prompts."""
    digest = hashlib.sha256(f"weight:{prompt_hash}".encode("ascii")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _counts(read: Mapping[str, Comparisons]) -> Notes:
    """What became of all rows; nothing is left out without a number here."""
    left_out = Counter[str]()
    for data in read.values():
        left_out.update(data.left_out)
    ties = Counter(tie for data in read.values() for tie in _ties(data))
    return {
        "read": sum(data.read for data in read.values()),
        "bad": sum(len(data.skipped) for data in read.values()),
        "left_out": dict(left_out),
        "found": sum(len(data) + len(data.ties) for data in read.values()),
        "ties": ties.total(),
        "both_bad": ties[BOTH_BAD],
        "sources": {name: data.source for name, data in read.items()},
        "thresholds": {name: data.thresholds for name, data in read.items() if data.thresholds is not None},
        "quantiles": {name: data.quantiles for name, data in read.items() if data.quantiles is not None},
    }


def _ties(data: Comparisons) -> list[str]:
    assert isinstance(data.ties, ComparisonTable)
    return list(data.ties.column("tie"))
