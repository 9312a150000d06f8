"""A user's function, imported and called in a process of its own. Only light modules are imported here."""

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.data.identity import Message

_path_stats = SourceFileLoader.path_stats


class Turn(Message):
    """A message whose parts are also `turn["role"]` and `turn["content"]`, as most libraries write them."""

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else super().__getitem__(key)


def find(name: str) -> None:
    """Fails if there is no such function."""
    _function(name)


def scores(name: str, prompts: list[list[list[str]]], responses: list[str]) -> list[float]:
    """What the function returns for prompts, each a list of roles and contents, and responses to them."""
    turns = [tuple(Turn(*turn) for turn in prompt) for prompt in prompts]
    found = _function(name)(turns, responses)
    if isinstance(found, Mapping | str | bytes):
        raise UserError(f"should return a list of numbers, not {type(found).__name__}")
    return [float(score) for score in found]


def _no_bytecode(loader: SourceFileLoader, path: str) -> Any:
    """Python takes compiled code for a file's own if size and time, in seconds, are the same, which tools that keep
    times make possible. For the user's files, what is in the file counts: without its time, it is compiled anew."""
    if "site-packages" in path or "dist-packages" in path or path.startswith(sys.base_prefix):
        return _path_stats(loader, path)
    raise OSError(path)


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    SourceFileLoader.path_stats = _no_bytecode  # type: ignore[method-assign, assignment]
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # after what is installed: a file named like a library must not replace it
    found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise UserError("is not callable")
    return found
