"""Rows that cannot be read: all of them are collected before anything is reported, and a few may be skipped."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter

from unmdpo.core.errors import DataError, UnmdpoWarning, UserError, printable
from unmdpo.core.files import write_lines
from unmdpo.data.comparison import Origin
from unmdpo.data.rows import LeftOut

EXAMPLES = 3  # rows named for each kind of problem
KINDS = 8  # kinds named
A_FEW = 0.01
SMALL = 20  # rows, below which a share allows none
ADVICE = "fix the data, or raise the limit (data.max_bad_rows in a recipe, --max-bad-rows for a command)"
Item = TypeVar("Item")
Parsed = TypeVar("Parsed")


def _limit(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*%\s*", value):
        value = float(value.strip(" %")) / 100
    if isinstance(value, float) and value >= 1:
        raise ValueError("a number of rows is whole, and a share is below 1 (or written as 5%)")
    return value


BadRowLimit = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)],
    BeforeValidator(_limit),
    Field(description="how many unreadable rows to skip: a number, or a share such as 1%, which is one row at least"),
]


def limit_of(text: str) -> int | float:
    """The limit that a command's option says."""
    try:
        given = text if "%" in text else int(text) if text.isdecimal() else float(text)
        limit: int | float = TypeAdapter(BadRowLimit).validate_python(given)
    except ValueError as error:
        raise UserError(f"--max-bad-rows should be a number of rows or a share such as 1%, not '{text}'") from error
    return limit


class Enough(Exception):
    """Nothing but bad lines so far."""


@dataclass
class BadRows:
    """Counts rows as they are read, and collects what is wrong with those that cannot be."""

    limit: int | float = A_FEW  # a number of rows, or a share below 1
    read: int = 0
    errors: list[DataError] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    most: int | None = None  # bad lines, after which there is no use in reading on

    def add(self, error: DataError) -> None:
        if isinstance(error, LeftOut):
            self.left_out[error.problem] += 1
        else:
            self.errors.append(error)

    def unreadable(self, error: DataError) -> None:
        """A line that is not even a row."""
        self.read += 1
        self.add(error)
        if self.most is not None and len(self.errors) >= self.most:
            raise Enough

    def counted(self, rows: Iterable[Item]) -> Iterator[Item]:
        for row in rows:
            self.read += 1
            yield row

    def parse(self, items: Iterable[Item], parse: Callable[[Item], Parsed]) -> Iterator[Parsed]:
        """Applies `parse` to rows (or values made from them) and skips the ones it rejects."""
        for item in items:
            try:
                parsed = parse(item)
            except DataError as error:
                self.add(error)
            else:
                yield parsed

    @property
    def allowed(self) -> int:
        """As many as the limit says; of a share, one at least in all but the smallest files."""
        if isinstance(self.limit, int):
            return self.limit
        return max(math.floor(self.limit * self.read + 1e-9), int(self.limit > 0 and self.read >= SMALL))

    def settle(self, place: str, listing: Path | None = None) -> None:
        """Once everything was read: warns of bad rows, or lists them and raises if they are too many."""
        if not self.errors:
            return
        if len(self.errors) > self.allowed:
            if listing is not None:
                write_lines(listing, as_lines(self.errors))
            raise self._too_many(place, "" if listing is None else f"\nall of them are in {listing}")
        warnings.warn(f"{place}: {self._counts()}, and skipped:\n{self._kinds()}", UnmdpoWarning, stacklevel=3)

    def _too_many(self, place: str, listed: str) -> DataError:
        share = f" ({100 * self.limit:g} %)" if isinstance(self.limit, float) else ""
        advice = f"max_bad_rows allows {self.allowed}{share}: {ADVICE}"
        if len(self.errors) == self.read > 1:
            advice = "no row can be read: is this the right source? `columns` can say which column holds what"
        if len(self.errors) == 1:
            (error,) = self.errors
            return DataError(error.where, f"{error.problem}; this is the one bad row of {self.read:,}; {advice}")
        return DataError(place, f"{self._counts()}:\n{self._kinds()}{listed}\n{advice}")

    def _counts(self) -> str:
        count = len(self.errors)
        return f"{count:,} of {self.read:,} rows {'is' if count == 1 else 'are'} bad"

    def _kinds(self) -> str:
        """Every kind of problem, with its first rows."""
        kinds: dict[str, list[DataError]] = {}
        for error in self.errors:
            kinds.setdefault(kind_of(error), []).append(error)
        common = sorted(kinds.values(), key=len, reverse=True)
        lines = [f"  {len(errors):,} × {errors[0].problem} ({_rows(errors)})" for errors in common[:KINDS]]
        if len(common) > KINDS:
            lines.append(f"  {sum(map(len, common[KINDS:])):,} of {len(common) - KINDS:,} other kinds")
        return "\n".join(lines)


def as_lines(errors: Iterable[DataError]) -> list[dict[str, Any]]:
    """Bad rows as they are written to a file."""
    lines = []
    for error in errors:
        where = error.where
        known = {"file": where.file, "row": where.row} if isinstance(where, Origin) else {"file": str(where)}
        lines.append(known | {"problem": printable(error.problem)})
    return lines


def kind_of(error: DataError) -> str:
    """The problem without its numbers: rows with other values of the same fault are of one kind."""
    return re.sub(r"-?\d+(\.\d+)?", "#", error.problem)


def _rows(errors: list[DataError]) -> str:
    origins = [error.where for error in errors if isinstance(error.where, Origin)]
    several = len({origin.file for origin in origins}) > 1
    numbers = [f"{Path(file).name}:{row}" if several else f"{row:,}" for file, row in origins[:EXAMPLES]]
    more = ", …" if len(errors) > EXAMPLES else ""
    return f"{'row' if len(errors) == 1 else 'rows'} {', '.join(numbers)}{more}"
