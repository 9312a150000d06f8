"""Reads AlpacaEval's annotations and writes outputs for it."""

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmdpo.core.errors import DataError, UserError
from unmdpo.core.files import write_text
from unmdpo.data.readers.files import read_strictly
from unmdpo.data.rows import Row

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Annotations:
    """One model's judged answers against a baseline's; (n,) each."""

    baseline: str
    model: str
    preference: Floats  # probability that the model's answer is preferred; NaN if the judge failed
    baseline_length: Floats  # characters
    model_length: Floats
    index: NDArray[np.int64]  # the instruction's number

    def __len__(self) -> int:
        return len(self.preference)

    @property
    def count(self) -> int:
        """Answers with a preference; AlpacaEval leaves out the others."""
        return int(np.isfinite(self.preference).sum())

    @property
    def win_rate(self) -> float:
        return 100 * float(np.nanmean(self.preference))


def read_annotations(path: Path) -> Annotations:
    """Reads an annotations file: `output_1` is the baseline's answer, `preference` is in [1, 2]."""
    rows = list(read_strictly(path))
    names = [{str(row.values.get(f"generator_{side}")) for row in rows} for side in (1, 2)]
    for side, generators in zip((1, 2), names, strict=True):
        if len(generators) != 1:
            several = ", ".join(sorted(generators)[:4])
            raise UserError(
                f"{path}: generator_{side} should be the same in every row, but there are several: {several}"
            )
    return Annotations(
        baseline=names[0].pop(),
        model=names[1].pop(),
        preference=np.array([_preference(row) for row in rows]),
        baseline_length=np.array([_length(row, "output_1") for row in rows]),
        model_length=np.array([_length(row, "output_2") for row in rows]),
        index=np.array([_index(row, place) for place, row in enumerate(rows)], dtype=np.int64),
    )


def _preference(row: Row) -> float:
    """In [0, 1]; AlpacaEval writes 0 for a tie and null if its judge gave no answer."""
    value = row.values.get("preference")
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value == 0 or 1 <= value <= 2):
        raise DataError(row.origin, f"'preference' should be from 1 to 2, or 0 for a tie, not {value!r}")
    return 0.5 if value == 0 else float(value) - 1


def _length(row: Row, column: str) -> float:
    text = row.values.get(column)
    if not isinstance(text, str):
        raise DataError(row.origin, f"'{column}' should be text, not {type(text).__name__}")
    return float(len(text))


def _index(row: Row, place: int) -> int:
    index = row.values.get("index", place)
    if not isinstance(index, int):
        raise DataError(row.origin, f"'index' should be a whole number, not {index!r}")
    return index


@dataclass(frozen=True)
class GamedTable:
    """`df_gamed.csv`: the baseline prompted to be short or long, and every instruction's difficulty."""

    preference: Floats
    length_difference: Floats
    difficulty: Floats
    by_index: Mapping[int, float]

    def difficulties(self, annotations: Annotations) -> Floats:
        missing = sorted({int(i) for i in annotations.index} - self.by_index.keys())
        if missing:
            raise UserError(f"the difficulty of instructions {missing[:8]} is not known")
        return np.array([self.by_index[int(i)] for i in annotations.index])


def read_gamed(path: Path) -> GamedTable:
    columns = ("preference", "std_delta_len", "instruction_difficulty", "index")
    read: dict[str, list[float]] = {name: [] for name in columns}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                for name in columns:
                    try:
                        not_judged = name == "preference" and row[name] == ""  # as pandas writes a gap
                        read[name].append(float("nan") if not_judged else float(row[name]))
                    except (KeyError, TypeError, ValueError) as error:
                        raise DataError(f"{path}, line {number}", f"no number in column '{name}'") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    values = {name: np.array(numbers) for name, numbers in read.items()}
    by_index = dict(zip(map(int, read["index"]), read["instruction_difficulty"], strict=True))
    return GamedTable(values["preference"], values["std_delta_len"], values["instruction_difficulty"], by_index)


def write_outputs(path: Path, generator: str, answers: Iterable[tuple[str, str]], dataset: str = "") -> None:
    """Writes instructions and answers in AlpacaEval's format."""
    rows = [
        {"instruction": instruction, "output": output, "generator": generator, "dataset": dataset}
        for instruction, output in answers
    ]
    write_text(path, json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
