"""The documentation's examples run one after another, as a reader would type them."""

import doctest
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unmdpo.lab import model_folder
from unmdpo.lab.shapes import write
from unmdpo.lab.world import Knobs, World

DOCS = Path(__file__).parent.parent / "docs"


def python_examples():
    return re.findall(r"```python\n(.*?)```", (DOCS / "reference" / "python.md").read_text("utf-8"), flags=re.S)


def test_the_pieces_work_as_documented(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, *blocks, _ = python_examples()  # the first and the last are run by other tests
    assert len(blocks) == 7
    shared = {}
    for block in blocks:
        exec(block, shared)
    said = capsys.readouterr().out
    assert "comparisons and" in said
    assert shared["outcome"].prompts == 20
    assert shared["run"].finished
    assert shared["policy"].is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "data.comparison",
        "data.load",
        "objectives.pairs",
        "objectives.table",
        "scale.data",
        "scale.pooled",
        "stats.evaluation",
    ],
)
def test_examples_in_docstrings_are_right(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "prompt": "Why is the sky blue?",
            "chosen": "Because of Rayleigh scattering.",
            "rejected": "No.",
            "strength": 2,
        },
        {"prompt": "Why?", "chosen": "Because.", "rejected": "Yes.", "strength": 1},
    ]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found = doctest.testmod(importlib.import_module(f"unmdpo.{name}"))
    assert found.attempted > 0
    assert not found.failed


@pytest.mark.filterwarnings("ignore")  # TRL and its dependencies warn about themselves
def test_trl_works_as_documented(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("pairs.jsonl"), World(Knobs(prompts=30, pairs_per_prompt=2)).comparisons(), "preference")
    Path("mine.yaml").write_text(
        f"""
name: mine
model: {{path: {model_folder()}}}
data: {{source: preference, path: pairs.jsonl, max_length: 128, validation: {{fraction: 0.2}}}}
training: {{updates: 1, batch: 4}}
pilots: {{folds: 2, updates: 1}}
scales: {{ln: {{estimator: pooled, length_normalized: true}}}}
policies: {{ulnm-wr: {{objective: ulnm-wr, scale: ln}}}}
"""
    )
    *_, block = python_examples()
    shared = {}
    exec(block, shared)
    assert shared["trainer"].state.global_step == 2


def test_every_link_of_the_documentation_leads_somewhere():
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_on_the_site():
    listed = set(re.findall(r"- .*?([\w/-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text("utf-8"), re.M))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


@pytest.mark.soak  # some minutes
@pytest.mark.timeout(3600)
def test_the_tutorial_runs_as_it_stands(tmp_path):
    script = "\n".join(re.findall(r"```sh\n(.*?)```", (DOCS / "guide" / "tutorial.md").read_text("utf-8"), re.DOTALL))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "checks, all passed" in done.stdout
    assert (tmp_path / "my-model" / "model.safetensors").is_file()
    assert (tmp_path / "report.html").is_file()
