"""Reads RewardBench 2: prompts with right and wrong responses, in subsets."""

from pathlib import Path
from typing import NamedTuple

from unmdpo.data.identity import Prompt
from unmdpo.data.readers.files import read_strictly
from unmdpo.data.rows import Row

TIES = "Ties"
COLUMNS = {"id", "subset", "prompt", "chosen", "rejected"}


class BenchRow(NamedTuple):
    id: str
    subset: str
    prompt: Prompt
    right: list[str]
    wrong: list[str]


def is_reward_bench(path: Path) -> bool:
    """Whether a file has its columns, with lists of responses."""
    if not path.is_file():
        return False
    first = next(iter(read_strictly(path)), None)
    return first is not None and first.values.keys() >= COLUMNS and isinstance(first.values["chosen"], list | tuple)


def read_reward_bench(path: Path) -> list[BenchRow]:
    return [_row(row) for row in read_strictly(path)]


def _row(row: Row) -> BenchRow:
    right, wrong = (_texts(row, column) for column in ("chosen", "rejected"))
    name, subset = row.text("id"), row.text("subset")
    if subset == TIES and name.partition(":")[0] not in ("ref", "tied"):
        raise row.error(f"the id of a row of {TIES} should begin with 'ref:' or 'tied:', not {name!r}")
    if subset != TIES and len(right) != 1:
        raise row.error(f"{len(right)} right responses, but only {TIES} has several")
    return BenchRow(name, subset, row.prompt("prompt"), right, wrong)


def _texts(row: Row, column: str) -> list[str]:
    found = row.items(column)
    if not found or not all(isinstance(one, str) for one in found):
        raise row.error(f"'{column}' should be a list of texts")
    return found
