"""Comparisons of one split, read from files."""

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.data.bad import as_lines
from unmdpo.data.comparison import BOTH_BAD, Comparisons
from unmdpo.data.load import load
from unmdpo.data.panels import split_prompts
from unmdpo.data.sources.preference import strengths_come_later
from unmdpo.data.table import ComparisonTable, concatenate
from unmdpo.recipe.settings import MixedRows, ValidationRecipe
from unmdpo.stages.shared.base import Job, Kind, Notes, Stage
from unmdpo.stages.shared.files import BAD_ROWS, COMPARISONS

Split = Literal["train", "validation"]
TRAIN: Split = "train"
VALIDATION: Split = "validation"
READ = "read"  # the stage with comparisons as they were read, where a judge gives them strengths afterwards
TRAINED = "trained"  # the input of a validation stage: the training rows, where their margins were cut
Quantiles = Mapping[str, tuple[float, ...]]  # by part of a mixture, where margins were cut
LOST_TO = {"read": "rows read", "bad": "bad", "ties": "ties"}


def read_comparisons(
    job: Job, *, parts: dict[str, MixedRows], split: Split, validation: ValidationRecipe | None
) -> Notes:
    """Reads the rows of a split. Training rows come without ties and held-out prompts; validation rows with ties:
    panels take any prompt from them.

    `parts` is a mixture by name, or one part without a name; `validation` says which rows are for validation, as far
    as it affects the split.
    """
    if split == TRAIN:
        return _read_training_rows(job, parts, validation)
    assert validation is not None
    return _read_validation_rows(job, parts, validation)


def _read_training_rows(job: Job, parts: Mapping[str, MixedRows], validation: ValidationRecipe | None) -> Notes:
    loaded = LoadedRows.of(job, parts, {})
    excluded = loaded.held_out(validation)
    held_out = loaded.rows_of(excluded)
    rows = concatenate(loaded.training(excluded))
    if not rows:
        counts = ", ".join(f"{loaded.notes[name]:,} {words}" for name, words in LOST_TO.items())
        raise UserError(f"no comparison is left to train on: {counts}, {held_out:,} held out")
    job.save(COMPARISONS, rows)
    prompts = len(set(rows.prompt_hashes()))
    shares: Notes = {}
    if len(parts) > 1:
        weights = {name: part.weight for name, part in parts.items()}
        shares = {"parts": dict(Counter(rows.column("part"))), "weights": weights}
    return {"comparisons": len(rows), "prompts": prompts, "held_out": held_out, **loaded.notes, **shares}


def _read_validation_rows(job: Job, parts: Mapping[str, MixedRows], validation: ValidationRecipe) -> Notes:
    trained: Mapping[str, list[float]] = job.inputs[TRAINED].manifest["notes"]["quantiles"]
    quantiles = {part: tuple(cuts) for part, cuts in trained.items()}
    loaded = LoadedRows.of(job, _validation_parts(parts, validation), quantiles)
    rows = concatenate([table for part in loaded.parts.values() for table in (part.rows, part.ties)])
    if validation.fraction is not None:
        held_out = loaded.held_out(validation)
        rows = rows.where(np.fromiter((name in held_out for name in rows.prompt_hashes()), bool, len(rows)))
    job.save(COMPARISONS, rows)
    own_cuts = {part: cuts for part, cuts in loaded.notes["quantiles"].items() if cuts != quantiles.get(part)}
    return {
        "comparisons": len(rows.without_ties()),
        "prompts": len(set(rows.prompt_hashes())),
        "cut_apart": bool(own_cuts),  # not where the training rows were cut
        **loaded.notes,
    }


def _validation_parts(parts: Mapping[str, MixedRows], validation: ValidationRecipe) -> dict[str, MixedRows]:
    if validation.path is not None:
        (first, *_) = parts.values()
        rules = first if len(parts) == 1 else MixedRows(path=validation.path)
        return {"": rules.model_copy(update={"path": validation.path, "split": TRAIN})}
    if validation.fraction is None:
        return {name: part.model_copy(update={"split": validation.split}) for name, part in parts.items()}
    return dict(parts)


@dataclass(frozen=True)
class Part:
    rows: ComparisonTable
    ties: ComparisonTable
    weight: float

    @cached_property
    def prompt_hashes(self) -> list[str]:
        """Each row's."""
        return list(self.rows.prompt_hashes())


@dataclass(frozen=True)
class LoadedRows:
    """The parts of a recipe's data, with counts of what became of every row."""

    parts: dict[str, Part]
    notes: Notes

    @classmethod
    def of(cls, job: Job, settings: Mapping[str, MixedRows], quantiles: Quantiles) -> "LoadedRows":
        """Reads all parts. Their bad rows are listed in the work folder, also if they are too many to go on. Strengths
        are cut at each part's `quantiles`, or else at its own."""
        loaded: dict[str, Comparisons] = {}
        parts: dict[str, Part] = {}
        for name, wanted in settings.items():
            listing = job.folder / BAD_ROWS.name
            with strengths_come_later() if wanted.strength.judge is not None else contextlib.nullcontext():
                data = load(wanted.as_read, quantiles=quantiles.get(name), listing=listing, part=name)
            assert isinstance(data.rows, ComparisonTable)
            assert isinstance(data.ties, ComparisonTable)
            loaded[name] = data
            parts[name] = Part(data.rows, data.ties, wanted.weight)
        bad_rows = [error for data in loaded.values() for error in data.skipped]
        if bad_rows:
            job.save(BAD_ROWS, as_lines(bad_rows))
        return cls(parts, _counts(loaded))

    def held_out(self, validation: ValidationRecipe | None) -> set[str]:
        """The prompts of the share that is kept for validation."""
        if validation is None or validation.fraction is None:
            return set()
        hashes = {name for part in self.parts.values() for name in part.prompt_hashes}
        return split_prompts(hashes, validation.fraction, validation.seed)

    def rows_of(self, prompts: set[str]) -> int:
        """How many comparisons these prompts have."""
        if not prompts:
            return 0
        return sum(name in prompts for part in self.parts.values() for name in part.prompt_hashes)

    def training(self, excluded: set[str]) -> list[ComparisonTable]:
        """Every part as often as its weight says; of a fraction, that share of its prompts."""
        tables = []
        for part in self.parts.values():
            kept = np.array([name not in excluded for name in part.prompt_hashes], dtype=np.bool_)
            whole = math.floor(part.weight)
            tables += [part.rows.where(kept)] * whole
            if part.weight > whole:
                drawn = [in_share(name, part.weight - whole) for name in part.prompt_hashes]
                tables.append(part.rows.where(kept & np.array(drawn, dtype=np.bool_)))
        return tables


def in_share(prompt_hash: str, share: float) -> bool:
    """Whether a prompt is in the share, by its hash alone; apart from the draw of validation prompts."""
    digest = hashlib.sha256(f"weight:{prompt_hash}".encode("ascii")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _counts(loaded: Mapping[str, Comparisons]) -> Notes:
    """What became of all rows; nothing is left out without a number here."""
    left_out = Counter[str]()
    for data in loaded.values():
        left_out.update(data.left_out)
    ties = Counter(tie for data in loaded.values() for tie in _kinds_of_ties(data))
    return {
        "read": sum(data.read for data in loaded.values()),
        "bad": sum(len(data.skipped) for data in loaded.values()),
        "left_out": dict(left_out),
        "found": sum(len(data) + len(data.ties) for data in loaded.values()),
        "ties": ties.total(),
        "both_bad": ties[BOTH_BAD],
        "sources": {name: data.source for name, data in loaded.items()},
        "thresholds": {name: data.thresholds for name, data in loaded.items() if data.thresholds is not None},
        "quantiles": {name: data.quantiles for name, data in loaded.items() if data.quantiles is not None},
    }


def _kinds_of_ties(data: Comparisons) -> list[str]:
    assert isinstance(data.ties, ComparisonTable)
    return list(data.ties.column("tie"))


COMPARISONS_STAGE = Kind("comparisons", read_comparisons)


def read_stage(stages: Mapping[str, Stage]) -> Stage:
    """The stage that reads the training comparisons, among all stages of a run."""
    return stages.get(READ) or stages[COMPARISONS_STAGE.name]
