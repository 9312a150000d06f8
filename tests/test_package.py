"""What is shipped: a wheel with everything that `unmdpo demo` needs, and nothing else."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDED = (
    "lab/model/model.safetensors",
    "lab/demo.yaml",
    "report/assets/page.html",
    "recipe/packaged/hs3-1b.yaml",
    "py.typed",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


def test_the_wheel_has_the_package_and_its_files(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"unmdpo/{name}" for name in NEEDED} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"unmdpo", f"{wheel.name.split('-py3')[0]}.dist-info"}


def test_the_source_can_be_built_and_tested(built):
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "Makefile", "constraints.txt", "tests/test_package.py", "examples/slurm.sh"} <= inside
    assert not any(name.startswith((".venv", ".ci", ".cache", "unmdpo-store")) for name in inside)


DISTRIBUTIONS = {
    "yaml": "pyyaml", "sklearn": "scikit-learn", "flash_attn": "flash-attn-4", "pydantic_core": "pydantic",
    "lm_eval": "lm-eval",
}  # fmt: skip
WITH_TORCH = {"triton"}  # comes with its GPU builds


def test_everything_that_is_imported_is_declared():
    described = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = (name for names in described["optional-dependencies"].values() for name in names)
    declared = {re.split(r"[\[>=<]", name)[0].lower() for name in (*described["dependencies"], *extras)}
    used = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            used |= {name.split(".")[0] for name in names}
    ours = {"unmdpo", *sys.stdlib_module_names, *WITH_TORCH}
    assert {DISTRIBUTIONS.get(name, name.lower()) for name in used - ours} <= declared
