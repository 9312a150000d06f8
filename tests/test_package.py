"""What is shipped: a wheel with everything that `unmdpo demo` needs, and nothing else."""

import subprocess
import sys
import tarfile
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
