"""Settings in which local files are named by what is in them: a result does not depend on where they lie."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def by_content(settings: Any) -> Any:
    """The same settings with a digest in place of every path whose checksums are known."""
    return _renamed(settings, _places(settings))


def _places(settings: Any) -> dict[str, str]:
    """Path → digest, from every `files` of the settings: those of a model stand beside its path, others by theirs."""
    found = dict[str, str]()
    if isinstance(settings, dict):
        files = settings.get("files")
        for path, sums in files.items() if isinstance(files, dict) else ():
            if isinstance(sums, dict):
                found[path] = _digest(path, sums)
        if isinstance(files, dict) and isinstance(settings.get("path"), str) and settings["path"] not in found:
            found[settings["path"]] = _digest(settings["path"], files)
    parts = settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ()
    for part in parts:
        found |= _places(part)
    return found


def _digest(path: str, sums: Mapping[str, Any]) -> str:
    """Of one file, only its type and content; names within a folder may mean something, such as a split."""
    suffixes = "".join(PurePath(path).suffixes[-2:])
    known = [suffixes, *sums.values()] if [*sums] == [PurePath(path).name] else sums
    return "sha256:" + hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _renamed(settings: Any, places: Mapping[str, str]) -> Any:
    if isinstance(settings, dict):
        return {
            places.get(name, name): None if name in places else _renamed(value, places)
            for name, value in settings.items()
        }
    if isinstance(settings, list):
        return [_renamed(value, places) for value in settings]
    return places.get(settings, settings) if isinstance(settings, str) else settings
