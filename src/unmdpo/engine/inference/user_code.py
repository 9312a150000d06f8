"""A user's function, imported and called in a process of its own. Only light modules are imported here."""

import importlib
import sys
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.data.identity import Message


def find(name: str) -> None:
    """Fails if there is no such function."""
    _function(name)


def scores(name: str, prompts: list[list[list[str]]], responses: list[str]) -> list[float]:
    """What the function returns for prompts, each a list of roles and contents, and responses to them."""
    turns = [tuple(Message(*turn) for turn in prompt) for prompt in prompts]
    return [float(score) for score in _function(name)(turns, responses)]


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # after what is installed: a file named like a library must not replace it
    found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise UserError("is not callable")
    return found
