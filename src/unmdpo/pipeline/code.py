"""Which code and which libraries made a result, and where a run mixes several.

A stage's version says when the same settings give another result, and belongs to its key. That is a promise of people;
this is what they can be held to, and what tells those who change the code themselves.
"""

import ast
import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from unmdpo.pipeline.run import Run
    from unmdpo.pipeline.stage import Kind

ROOT = Path(__file__).parents[1]
# The rooms whose code makes results. Others read settings, keep files, run stages and show what was found.
ROOMS = ("adamw.py", "catalog/", "data/", "engine/", "objectives/", "placement.py", "scale/", "stats/")
STAGES = ("pipeline/stages/", "pipeline/units.py")
NAMED = re.compile(r"(unmdpo(?:\.\w+)+)([.:]\w*)?")  # code in a string, which is imported when it is needed
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")
SHOWN = 3  # names in a message


def code_of(kind: "Kind[Any]") -> dict[str, str]:
    """Module → digest, for the stage's own and all that its work may reach."""
    own = Path(inspect.getfile(inspect.unwrap(kind.work)))
    if not own.is_relative_to(ROOT):  # somebody else's stage
        return {own.name: _module(own).digest}
    return {path.relative_to(ROOT).with_suffix("").as_posix(): _module(path).digest for path in sorted(_reached(own))}


@cache
def _reached(start: Path) -> frozenset[Path]:
    """The module and all modules in our rooms that it imports, directly or not."""
    found, waiting = set[Path](), [start]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _module(path).imports
    return frozenset(found)


def _named(node: ast.AST) -> list[str]:
    """The modules that an import or a string names; what is imported from one may be a module too."""
    if isinstance(node, ast.ImportFrom):
        return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    found = NAMED.fullmatch(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
    if found is None:
        return []
    if found[2] != ".":
        return [found[1]]
    folder = ROOT.joinpath(*found[1].split(".")[1:])  # the name goes on with what is chosen later: any module of it
    return [f"{found[1]}.{path.stem}" for path in folder.glob("*.py")]


def _places(name: str) -> Iterator[Path]:
    """The file of a module of ours."""
    first, *rest = name.split(".")
    place = ROOT.joinpath(*rest)
    for file in (place / "__init__.py", place.with_name(f"{place.name}.py")) if first == "unmdpo" and rest else ():
        if file.is_file():
            yield file


class _Module(NamedTuple):
    digest: str
    imports: tuple[Path, ...]  # of our rooms


@cache
def _module(path: Path) -> _Module:
    """Docstrings, comments and layout are not part of its digest."""
    tree, names = ast.parse(path.read_text("utf-8")), set[str]()
    for node in ast.walk(tree):
        names.update(_named(node))
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and _is_text(node.body[:1]):
            node.body = node.body[1:]
    places = (place for name in sorted(names) for place in _places(name))
    imports = tuple(place for place in places if place.relative_to(ROOT).as_posix().startswith((*ROOMS, *STAGES)))
    return _Module(hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12], imports)


def _is_text(statements: list[ast.stmt]) -> bool:
    return any(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in statements)


def mixed(run: "Run") -> list[str]:
    """In words, which of a run's results were made by other code than there is now, or with several versions of a
    library."""
    finished = {name: artifact.manifest for name, artifact in run.finished.items()}
    told = []
    unknown = [name for name, manifest in finished.items() if "code" not in manifest]
    if unknown:
        told.append(f"{_some(unknown)}: made by a version that did not note its code")
    changed, modules = [], Counter[str]()
    for name, manifest in finished.items():
        made, now = manifest.get("code"), code_of(run.stages[name].kind)
        if made is not None and made != now:
            changed.append(name)
            modules.update(module for module in {*made, *now} if made.get(module) != now.get(module))
    if changed:
        where = _some([module for module, _ in modules.most_common()])
        told.append(f"{_some(changed)}: made by other code than there is now ({where}); `--force` redoes them")
    return told + [line for library in LIBRARIES for line in _several(library, finished)]


def _several(library: str, finished: dict[str, dict[str, Any]]) -> Iterator[str]:
    by_version: dict[str, list[str]] = {}
    for name, manifest in finished.items():
        by_version.setdefault(manifest["versions"].get(library, "of an unknown version"), []).append(name)
    if len(by_version) > 1:
        yield "made with several versions: " + "; ".join(
            f"{library} {version}: {_some(names)}" for version, names in sorted(by_version.items())
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
