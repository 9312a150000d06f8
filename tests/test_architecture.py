"""The package has layers: imports, lazy ones included, only go down, and no two modules import each other."""

import ast
import subprocess
import sys
from pathlib import Path

import networkx as nx

import unmdpo

ROOT = Path(unmdpo.__file__).parent
TESTS = Path(__file__).parent

# Rooms on one floor do not import each other. Lazy imports and imports for types count.
FLOORS: list[set[str]] = [
    {"core", "version"},
    {"data", "objectives", "scale", "stats"},
    {"engine", "audit"},
    {"recipe"},
    {"store"},
    {"stages"},
    {"execute"},
    {"results"},
    {"report", "integrations", "lab"},
    {"cli"},
]
HEAVY = {"torch", "transformers", "datasets", "pandas"}
MOST_FILES = 20  # in one folder

# What each room may use besides the standard library and the rooms below.
LIBRARIES = {
    "version": set(),
    "core": {"pydantic", "pydantic_core", "torch"},
    "data": {"numpy", "pyarrow", "datasets", "pydantic"},
    "objectives": {"torch", "scipy", "pydantic"},
    "scale": {"torch", "numpy", "scipy", "safetensors", "pydantic"},
    "stats": {"numpy", "scipy", "sklearn"},
    "audit": {"numpy", "scipy"},
    "engine": {
        "torch", "numpy", "scipy", "jinja2", "transformers", "safetensors", "bitsandbytes", "peft", "wandb", "openai",
        "lm_eval", "yaml", "tokenizers", "pydantic", "flash_attn", "triton", "huggingface_hub",
    },
    "recipe": {"pydantic", "yaml", "ruamel"},
    "store": {"filelock", "safetensors", "pydantic"},
    "stages": {"torch", "numpy", "transformers", "safetensors", "pyarrow", "pydantic"},
    "execute": {"torch", "numpy", "ray", "rich"},
    "results": {"torch", "numpy", "pyarrow", "pandas", "yaml", "huggingface_hub"},
    "lab": {"numpy", "scipy"},
    "report": {"numpy", "jinja2", "markupsafe"},
    "integrations": {"torch", "transformers", "trl", "datasets", "packaging"},
    "cli": {"typer", "rich", "torch"},
}  # fmt: skip


def allowed(room: str) -> set[str]:
    level = next(i for i, floor in enumerate(FLOORS) if room in floor)
    return set().union(*FLOORS[:level]) | (FLOORS[0] if level == 0 else set())


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        room = relative.parts[0].removesuffix(".py")
        yield relative, room, ast.parse(path.read_text("utf-8"))


def imported(tree: ast.AST):
    """Every import with its node, wherever it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "unmdpo":
                yield from ((f"unmdpo.{alias.name}", node) for alias in node.names)
            else:
                yield node.module or "", node


def test_every_room_has_a_floor_and_says_what_it_is_for():
    known = set().union(*FLOORS, {"__init__", "__main__"})
    for path, room, tree in modules():
        assert room in known, path
        assert ast.get_docstring(tree), f"{path} has no docstring"


def test_imports_only_go_down():
    climbing = [
        f"{path} imports {name}"
        for path, room, tree in modules()
        if room not in ("__init__", "__main__")
        for name, _ in imported(tree)
        if name.startswith("unmdpo.") and name.split(".")[1] not in {room, *allowed(room)}
    ]
    assert not climbing


def test_no_circles():
    """No cycles between modules; lazy imports and imports for types count."""
    names = {
        ".".join(["unmdpo", *path.with_suffix("").parts]).removesuffix(".__init__"): tree
        for path, _, tree in modules()
    }
    graph = nx.DiGraph()
    for name, tree in names.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            wanted = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [target if target in names else node.module for target in wanted]
            graph.add_edges_from((name, target) for target in wanted if target in names and target != name)
    circles = [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]
    assert not circles


def test_each_room_uses_its_own_libraries():
    strangers = [
        f"{path} imports {name}"
        for path, room, tree in modules()
        if room not in ("__init__", "__main__")
        for name, _ in imported(tree)
        if name.split(".")[0] not in {"unmdpo", *sys.stdlib_module_names, *LIBRARIES[room]}
    ]
    assert not strangers


def test_the_check_itself_refuses_a_climb():
    assert "audit" not in allowed("data")
    assert "stats" not in allowed("data")  # packages in one layer do not import each other
    assert "cli" not in allowed("audit")
    assert {"data", "stats", "core"} <= allowed("audit")


def test_commands_and_recipes_import_nothing_heavy():
    """So that `--help` answers at once, and a typo in a recipe is found in a moment."""
    look = f"import sys, unmdpo.cli, unmdpo.recipe; print(*{HEAVY!r} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "\n"


def test_rooms_stay_small():
    for folder in {path.parent for path in ROOT.rglob("*.py")}:
        count = len([*folder.glob("*.py")])
        assert count <= MOST_FILES, f"{folder.relative_to(ROOT)} has {count} files"


def test_files_and_functions_stay_small():
    for path, _, tree in modules():
        lines = (ROOT / path).read_text("utf-8").count("\n")
        assert lines <= 500, f"{path} has {lines} lines: split it"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                length = node.end_lineno - node.lineno
                assert length <= 70, f"{path}: {node.name} has {length} lines"


def test_tests_share_only_worlds():
    """No test file imports another, so any of them can be moved or read by itself."""
    sharing = [
        f"{path.relative_to(TESTS)} imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name, _ in imported(ast.parse(path.read_text("utf-8")))
        if name.startswith("tests") and not name.startswith("tests.worlds")
    ]
    assert not sharing


def test_tests_mirror_the_source():
    ours = {"worlds", "gpu", "soak", "fuzz", "benchmarks"}
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py") if path.parent != TESTS}
    missing = [folder for folder in folders if folder not in ours and not (ROOT / folder).is_dir()]
    assert not missing
