"""Paths in settings, as a type: the digest of what lies there enters a stage's key, and the path itself never does.

A `Place` is text to whoever opens it. When a run begins, each place in its settings is pinned: from then on it carries
the digest of its content (`store/pins.py`), which is all that `store/keys.py` looks at.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, PydanticSerializationUnexpectedValue, core_schema

from unmdpo.core.files import expand_home, files_below

MAX_CHARACTERS = 4096
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
FILE_SUFFIXES = (".json", ".jsonl", ".parquet", ".csv", ".tsv", ".gz", ".arrow", ".yaml", ".txt")


class Place(str):
    """A file or folder of this machine. Subclasses say what else it may be, and which files of a folder are read."""

    hub: ClassVar[Literal["model", "dataset"] | None] = None  # what a name that is no path means on the Hub
    digest: str | None = None  # of its content, once a run has pinned it

    @classmethod
    def checked(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("string_type", "should be text")
        if not value.strip() or "\0" in value or len(value) > MAX_CHARACTERS:
            raise ValueError("should be a path or a name: not blank, not longer than 4,096, without null characters")
        return cls(expand_home(value)) if value.startswith("~") else cls(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.checked,
            json_schema_input_schema=core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(_as_text),
        )

    def pinned(self, digest: str) -> Self:
        place = type(self)(self)
        place.digest = digest
        return place

    @property
    def identity(self) -> Any:
        """What enters a key."""
        assert self.digest is not None, f"{self} enters a key before it is known what lies there"
        return {"content": self.digest}

    @property
    def local(self) -> Path | None:
        """The path on this machine, if something is there."""
        path = Path(self)
        try:
            return path if path.exists() else None
        except OSError:  # too long, or no permission to look
            return None

    @property
    def is_hub_name(self) -> bool:
        """Whether this names something on the Hub: nothing lies there, and it looks like `name` or `owner/name`."""
        could_be = self.hub is not None and HUB_NAME.fullmatch(self) is not None
        return could_be and self.local is None and not self.endswith(FILE_SUFFIXES)

    @property
    def missing(self) -> bool:
        return self.local is None and not self.is_hub_name

    def files(self) -> dict[str, Path]:
        """Name → file, for all that is read of it on this machine."""
        path = self.local
        if path is None:
            return {}
        if not path.is_dir():
            return {path.name: path} if path.is_file() else {}
        return {file.relative_to(path).as_posix(): file for file in self.files_read(path)}

    def files_read(self, folder: Path) -> Iterable[Path]:
        return files_below(folder)


def _as_text(place: Any) -> str:
    if not isinstance(place, Place):  # in a union, another member knows how to write it
        raise PydanticSerializationUnexpectedValue(f"{type(place).__name__} is not a place")
    return str(place)


def places_in(settings: Any, key: str = "") -> Iterator[tuple[str, Place]]:
    """Every place in some settings, with the dotted key that leads to it."""
    if isinstance(settings, Place):
        yield key, settings
        return
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(settings, BaseModel):
        parts = ((name, getattr(settings, name)) for name in type(settings).model_fields)
    elif isinstance(settings, Mapping):
        parts = settings.items()
    elif isinstance(settings, list | tuple):
        parts = enumerate(settings)
    for name, part in parts:
        yield from places_in(part, f"{key}.{name}" if key else str(name))


def with_places(settings: Any, pin: Callable[[Place, str | None], tuple[Place, str | None]]) -> Any:
    """The same settings with each place replaced by what `pin` makes of it and of the `revision` beside it."""
    if isinstance(settings, Place):
        return pin(settings, None)[0]
    if isinstance(settings, BaseModel):
        changes: dict[str, Any] = {}
        for name in type(settings).model_fields:
            value = getattr(settings, name)
            if isinstance(value, Place) and value.hub is not None and hasattr(settings, "revision"):
                changes[name], changes["revision"] = pin(value, settings.revision)
            elif name != "revision":
                changes[name] = with_places(value, pin)
        return settings.model_copy(update=changes)
    if isinstance(settings, Mapping):
        return {name: with_places(value, pin) for name, value in settings.items()}
    if isinstance(settings, list):
        return [with_places(value, pin) for value in settings]
    if type(settings) is tuple:
        return tuple(with_places(value, pin) for value in settings)
    return settings
