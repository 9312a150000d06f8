"""References to code that a table names without importing it."""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Code:
    """`package.module:name`, imported on first use, so tables stay light although the code needs torch."""

    place: str

    @cached_property
    def loaded(self) -> Any:
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.loaded(*arguments, **named)
