"""Functions of the user in settings, and the files that they depend on, found without importing anything."""

import ast
import re
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Self

from unmdpo.core.places import Place


def function_files(function: str) -> dict[str, Path]:
    """Module → file: the one that defines `package.module:function`, and all of the same package or of the user's own
    that it imports. When one is edited, responses are judged again. Nothing is imported."""
    name = function.partition(":")[0]
    waiting = [name]
    files: dict[str, Path] = {}
    while waiting:
        module = waiting.pop()
        spec = _spec(module)
        origin = None if spec is None else spec.origin
        ours = module.partition(".")[0] == name.partition(".")[0] or not _installed(origin)
        if module not in files and origin is not None and origin.endswith(".py") and ours:
            files[module] = Path(origin)
            package = module if spec and spec.submodule_search_locations else module.rpartition(".")[0]
            above = module.rpartition(".")[0]  # is imported with it
            waiting += [*_imports(Path(origin), package), *([above] if above else [])]
    return files


def _spec(module: str) -> ModuleSpec | None:
    search: list[str] | None = [*sys.path, str(Path.cwd())]
    spec = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, search)
        if spec is None:
            return None
        search = None if spec.submodule_search_locations is None else [*spec.submodule_search_locations]
    return spec


def _installed(origin: str | None) -> bool:
    """Whether a module is Python's own, or was installed: another version of it is another environment."""
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return origin is None or (
        bool({"site-packages", "dist-packages"} & {*Path(origin).parts})
        or any(Path(origin).is_relative_to(place) for place in standard)
    )


def _imports(file: Path, package: str) -> list[str]:
    """What a file may import, as absolute names; of `from a import b`, both a and a.b."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []  # running it shows the error
    names = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            names += [start, *(f"{start}.{alias.name}" for alias in node.names)] if start else []
    return names


class FunctionName(Place):
    """`package.module:function`. What it does is in its module, and in those of the user's own that it imports."""

    @classmethod
    def checked(cls, value: object) -> Self:
        name = super().checked(value)
        if not re.fullmatch(r"[\w.]+:\w+", name):
            raise ValueError("should be package.module:function")
        return name

    @property
    def identity(self) -> Any:
        return {"name": str(self), **super().identity}

    @property
    def missing(self) -> bool:
        return False  # it is looked for when it is called

    def files(self) -> dict[str, Path]:
        return function_files(self)
