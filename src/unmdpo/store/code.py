"""Which code makes a stage's result: part of its key, so one table never mixes the results of two versions."""

import hashlib
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The rooms whose code makes results. Others read settings, keep files, run stages and show what was found.
ROOMS = ("core/adamw.py", "core/margins.py", "data/", "engine/", "objectives/", "scale/", "stages/", "stats/")
NAMED = re.compile(r"\bunmdpo(?:\.\w+)+(?: import [\w, ]+| import \([^)]*\)|\.(?=\{))?")


@cache
def code_digest(module: Path) -> str:
    """Of the files whose code makes a result."""
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in reached(module))
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def reached(module: Path) -> set[Path]:
    """A module's file, and all files in our rooms that it imports, directly or not."""
    found, waiting = set[Path](), [module]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _named(path)
    return found


@cache
def _named(path: Path) -> list[Path]:
    """The files of our modules that a file imports or names, also in the string of a table's row."""
    found = list[Path]()
    for text in NAMED.findall(path.read_text("utf-8")):
        module, _, names = text.partition(" import ")
        place = ROOT.joinpath(*module.strip(".").split(".")[1:])
        found += place.glob("*.py") if text.endswith(".") else _files(place)  # the name goes on: any module of it
        found += [file for name in re.findall(r"\w+", names) for file in _files(place / name)]
    return [file for file in found if file.relative_to(ROOT).as_posix().startswith(ROOMS)]


def _files(place: Path) -> list[Path]:
    return [file for file in (place / "__init__.py", place.with_name(f"{place.name}.py")) if file.is_file()]
