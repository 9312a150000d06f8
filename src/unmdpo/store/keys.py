"""A stage's key: a digest of its settings, its inputs' keys and the code that makes its result."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from unmdpo.core.places import Place

KEY_CHARACTERS = 32


def stage_key(kind: str, code: str, settings: BaseModel, inputs: Mapping[str, str]) -> str:
    """Equal if and only if everything that affects the result is equal. `inputs` maps roles to keys."""
    described = {"kind": kind, "code": code, "settings": identity_of(settings), "inputs": dict(inputs)}
    return digest_of(described)[:KEY_CHARACTERS]


def identity_of(value: Any) -> Any:
    """A value as it enters a key. The type of each part decides, never how a name or a text is spelt."""
    if isinstance(value, Place):
        return value.identity
    if isinstance(value, BaseModel):
        return {name: identity_of(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(name): identity_of(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [identity_of(part) for part in value]
    if value is None or isinstance(value, str | int | float):  # also true and false
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of a key")


def digest_of(value: Any) -> str:
    """SHA-256 of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
