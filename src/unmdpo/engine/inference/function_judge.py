"""Judges that are Python functions of the user, called in a process of their own. Nothing here imports torch."""

import ast
import math
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.core.isolated import isolated
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.judges import FunctionSettings, Judge

CHILD = "unmdpo.engine.inference.user_code"
ADVICE = "name it as package.module:function, importable from the current folder or PYTHONPATH"


def open_function(settings: FunctionSettings) -> Judge:
    """A judge that calls `package.module:function`."""

    def judge(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        turns = [[list(message) for message in prompt] for prompt in prompts]
        scores: list[float] = isolated(f"{CHILD}:scores", settings.function, turns, [*responses], who="the judge")
        return scores

    return judge


def check_function(settings: FunctionSettings) -> None:
    """Raises now what judging would raise hours later: a function that cannot be imported or called."""
    isolated(f"{CHILD}:find", settings.function, who=f"judge function '{settings.function}'", advice=ADVICE)


def function_files(settings: FunctionSettings) -> list[str]:
    """The file that defines the function, and all modules of the same package or of the user's own that it imports;
    when one is edited, responses are judged again. Nothing is imported."""
    name = settings.function.partition(":")[0]
    waiting, found = [name], dict[str, str]()
    while waiting:
        module = waiting.pop()
        spec = _spec(module)
        origin = None if spec is None else spec.origin
        ours = module.partition(".")[0] == name.partition(".")[0] or not _installed(origin)
        if module not in found and origin is not None and origin.endswith(".py") and ours:
            found[module] = origin
            package = module if spec and spec.submodule_search_locations else module.rpartition(".")[0]
            above = module.rpartition(".")[0]  # is imported with it
            waiting += [*_imports(Path(origin), package), *([above] if above else [])]
    return sorted(found.values())


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


def checked(judge: Judge, prompts: Sequence[Prompt], responses: Sequence[Any]) -> list[float]:
    """A judge's scores: one finite number per response, or an error that says which are not."""
    found = judge(prompts, responses)
    if len(found) != len(responses):
        raise UserError(f"the judge returned {len(found)} scores for {len(responses)} responses")
    bad = [place for place, score in enumerate(found) if not math.isfinite(score)]
    if bad:
        raise UserError(f"the judge's scores of prompts {bad[:8]} are not finite")
    return found
