"""The notebooks run from top to bottom, on smaller worlds."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.worlds.pipeline import write_data, write_model
from unmdpo.cli import app

EXAMPLES = Path(__file__).parent.parent / "examples"
FEW = [
    "training={updates: 2, batch: 8, learning_rate: 1.0e-3}", "pilots={folds: 2, updates: 2}",
    "evaluation.panels={held-out: {size: 4, seed: 1}}", "evaluation.max_new_tokens=4",
    "policies={dpo: {objective: dpo}, ulnm-wr: {objective: ulnm-wr, scale: ln}}",
]  # fmt: skip


def cells(name):
    book = json.loads((EXAMPLES / name).read_text("utf-8"))
    assert all(cell["cell_type"] == "markdown" or cell["outputs"] == [] for cell in book["cells"])
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]


def run(code, changes):
    """As a notebook does, with some lines changed; what the cells define."""
    known = {}
    for cell in code:
        for before, after in changes.items():
            cell = cell.replace(before, after)
        exec(cell, known)
    return known


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.soak  # the other notebook does as much
def test_ten_minutes(capsys):
    changes = {"PROMPTS, OVERRIDES = 1500, []": f"PROMPTS, OVERRIDES = 100, {FEW}", "jobs=2": "jobs=1"}
    known = run(cells("ten-minutes.ipynb"), changes)
    assert {row["policy"] for row in known["run"].table()} >= {"ulnm-wr"}
    assert capsys.readouterr().out.count(" → ") == 3


def test_your_own_data(here, capsys):
    write_model(here / "model")
    write_data(here / "pairs.jsonl")
    judge = {"function": "tests.worlds.judges:longest"}
    smaller = {
        "training": {"updates": 2, "batch": 8, "learning_rate": 1e-3},
        "data": {"path": "pairs.jsonl", "max_length": 64, "validation": {"fraction": 0.25}},
    }
    changes = {
        '"HuggingFaceTB/SmolLM2-135M-Instruct"': repr(str(here / "model")),
        '{"path": "Skywork/Skywork-Reward-V2-Qwen3-0.6B"}': repr(judge),
        "SMALLER = {}": f"SMALLER = {smaller}",
        "What is a good name for a cat?": "w1 w2 w3",
    }
    run(cells("your-own-data.ipynb"), changes)
    assert (here / "my-model" / "config.json").is_file()
    assert "read as 'helpsteer3'; strengths as they are given" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["kuberay.yaml", "skypilot.yaml", "slurm.sh"])
def test_jobs_call_commands_that_there_are(name):
    """And with options that these commands have."""
    text = (EXAMPLES / name).read_text("utf-8")
    if name.endswith(".yaml"):
        described = yaml.safe_load(text)
        text = described["spec"]["entrypoint"] if name == "kuberay.yaml" else described["run"]
    lines = re.findall(r"unmdpo (\w+)(.*)", text)
    assert lines
    for command, rest in lines:
        known = CliRunner().invoke(app, [command, "--help"])
        assert known.exit_code == 0, command
        for option in re.findall(r"--[\w-]+", rest):
            assert option in known.output, option
