"""Rows of any shape, read by a function of the user: `source: package.module:function`.

The function gets a row as a dictionary and returns a pair, a list of pairs, or None: dictionaries with `prompt`,
`chosen` and `rejected`, and whatever else the source `preference` reads, such as `strength`, `votes` and `domain`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.core.functions import FunctionName
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source
from unmdpo.data.sources.preference import PREFERENCE


def source_of(name: FunctionName) -> Source:
    """The source that reads rows with this function."""
    function = _imported(name)

    def read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        lists = bad.parse(rows, lambda row: _pairs(name, function, row))
        return PREFERENCE.read(source, (pair for pairs in lists for pair in pairs), bad)

    return Source((), read, f"what `{name}` returns", uses=PREFERENCE.uses, finds_strength=True)


def _imported(name: FunctionName) -> Callable[[dict[str, Any]], Any]:
    module, _, function_name = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # after what is installed: a file named like a library must not replace it
    try:
        function: Callable[[dict[str, Any]], Any] = getattr(import_module(module), function_name)
    except Exception as error:  # the user's own code may raise anything
        raise UserError(f"source '{name}' cannot be imported: {type(error).__name__}: {error}") from error
    return function


def _pairs(name: FunctionName, function: Callable[[dict[str, Any]], Any], row: Row) -> list[Row]:
    try:
        returned = function(dict(row.values))
    except Exception as error:
        raise row.error(f"{name} raised {type(error).__name__}: {error}") from error
    if returned is None:
        raise row.no_comparison(f"{name} returned no pair")
    pairs = returned if isinstance(returned, list) else [returned]
    if not all(isinstance(pair, Mapping) for pair in pairs):
        raise row.error(f"{name} should return a dictionary, a list of them, or None")
    return [row.with_values(pair) for pair in pairs]
