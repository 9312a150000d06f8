"""Which code makes a stage's result: part of its key, so that one table never mixes the results of two versions.

What counts is the syntax tree without docstrings: comments, line breaks and docstrings may change without retraining
anybody's policies.
"""

import ast
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# The rooms whose code makes results. Others read settings, keep files, run stages and show what was found.
ROOMS = ("core/adamw.py", "core/margins.py", "data/", "engine/", "objectives/", "scale/", "stages/", "stats/")
REFERENCE = re.compile(r"unmdpo(\.\w+)+(:\w+)?")  # a module, as tables name it in a `Code` reference


class Parsed(NamedTuple):
    digest: str
    modules: tuple[Path, ...]  # ours that it imports, or names in a reference


_PARSED: dict[tuple[Path, int, int], Parsed] = {}  # by path, size and modification time


def code_digest(module: Path) -> str:
    """Of all files whose code makes a result, as they are now."""
    digests = sorted(_parsed(path).digest for path in reached(module))
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def reached(module: Path) -> set[Path]:
    """A module's file, and all files in our rooms that it imports, directly or not."""
    files: set[Path] = set()
    waiting = [module]
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.add(path)
            waiting += _parsed(path).modules
    return files


def _parsed(path: Path) -> Parsed:
    status = path.stat()
    key = (path, status.st_size, status.st_mtime_ns)
    if key not in _PARSED:
        tree = ast.parse(path.read_bytes())
        modules = tuple(file for file in _modules(tree) if file.relative_to(ROOT).as_posix().startswith(ROOMS))
        _drop_docstrings(tree)
        _PARSED[key] = Parsed(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), modules)
    return _PARSED[key]


def _drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]


def _modules(tree: ast.Module) -> list[Path]:
    """Our files that a module imports, lazily or for types too, or names as `package.module:name` in a table."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and REFERENCE.fullmatch(node.value):
            names.append(node.value.partition(":")[0])
    return [file for name in names for file in _files(name)]


def _files(module: str) -> list[Path]:
    package, *parts = module.split(".")
    if package != "unmdpo" or not parts:
        return []
    path = ROOT.joinpath(*parts)
    return [file for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()]
