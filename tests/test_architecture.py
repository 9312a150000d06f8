"""The house has floors: imports only go down."""

import ast
import sys
from pathlib import Path

import unmdpo

ROOT = Path(unmdpo.__file__).parent

# Rooms that may be imported by each room, besides the ground (errors, nearest, scores).
GROUND = {"errors", "nearest", "scores", "catalog", "adamw"}
FLOOR_0 = {"data", "objectives", "scale", "stats"}
FLOOR_1 = {"engine", "audit", "lab"}
FLOORS: list[set[str]] = [GROUND, FLOOR_0, FLOOR_1, {"pipeline"}, {"report", "integrations"}]
TOP = {"yamls", "recipe", "recipes", "cli"}  # may use everything; `pipeline` may read a recipe

# What each room may use besides the standard library and the rooms below.
LIBRARIES = {
    "errors": set(),
    "nearest": set(),
    "scores": {"torch"},
    "catalog": set(),
    "adamw": {"torch"},
    "data": {"numpy", "pyarrow", "datasets"},
    "objectives": {"torch", "scipy"},
    "scale": {"torch", "numpy", "safetensors"},
    "stats": {"numpy", "scipy", "sklearn"},
    "audit": {"numpy", "scipy"},
    "lab": set(),
    "engine": {"torch", "numpy", "jinja2", "transformers", "safetensors", "peft", "wandb", "openai"},
    "pipeline": {
        "torch",
        "numpy",
        "scipy",
        "transformers",
        "tokenizers",
        "safetensors",
        "pyarrow",
        "filelock",
        "ray",
    },
    "report": {"numpy", "safetensors", "jinja2", "markupsafe"},
    "integrations": {"torch", "trl", "datasets", "packaging"},
    "yamls": {"yaml"},
    "recipe": {"pydantic", "pydantic_core", "yaml"},
    "recipes": {"pydantic"},
    "cli": {"typer", "rich"},
}

HEAVY_AT_TOP = {"torch", "transformers", "datasets", "pandas"}


def allowed(room: str) -> set[str]:
    if room in TOP:
        return set().union(*FLOORS, TOP)
    level = next(i for i, floor in enumerate(FLOORS) if room in floor)
    below = set().union(*FLOORS[:level])
    same = GROUND if level == 0 else set()
    return below | same | ({"recipe", "recipes"} if room == "pipeline" else set())


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        room = relative.parts[0].removesuffix(".py")
        yield relative, room, ast.parse(path.read_text("utf-8"))


def imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "unmdpo":
                yield from ((f"unmdpo.{alias.name}", node) for alias in node.names)
            else:
                yield node.module or "", node


def test_every_room_has_a_floor():
    known = set().union(*FLOORS, TOP, {"__init__"})
    assert {room for _, room, _ in modules()} <= known


def test_imports_only_go_down():
    climbing = [
        f"{path} imports {name}"
        for path, room, tree in modules()
        if room != "__init__"
        for name, _ in imported(tree)
        if name.startswith("unmdpo.") and name.split(".")[1] not in {room, *allowed(room)}
    ]
    assert not climbing


def test_each_room_uses_its_own_libraries():
    strangers = [
        f"{path} imports {name}"
        for path, room, tree in modules()
        if room != "__init__"
        for name, _ in imported(tree)
        if name.split(".")[0] not in {"unmdpo", *sys.stdlib_module_names, *LIBRARIES[room]}
    ]
    assert not strangers


def test_the_check_itself_refuses_a_climb():
    assert "audit" not in allowed("data")
    assert "stats" not in allowed("data")  # neighbours on one floor do not import each other
    assert "cli" not in allowed("audit")
    assert {"data", "stats", "scores"} <= allowed("audit")


def test_commands_import_nothing_heavy_at_the_top():
    heavy = [
        f"{path}: {name}"
        for path, room, tree in modules()
        if room in {"cli", "errors", "nearest"}
        for name, node in imported(tree)
        if name.split(".")[0] in HEAVY_AT_TOP and node in tree.body
    ]
    assert not heavy
