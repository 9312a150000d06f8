"""References to code that a table names without importing it."""

import os
from collections.abc import Mapping, Sequence
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


def call_with(environment: Mapping[str, str], code: Code, arguments: Sequence[Any]) -> None:
    """Calls the code in this process, which has only begun, with more environment variables than it was born with."""
    os.environ.update(environment)
    code(*arguments)
