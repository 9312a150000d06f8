"""The README's Python code runs as printed, and its commands are commands."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import write_data, write_model
from unmdpo.cli import app

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
(PYTHON,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)


def test_a_policy_from_python(tmp_path, monkeypatch, capsys):
    """On a small model and small data, in place of the names in the README."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_data(tmp_path / "pairs.jsonl")  # as HelpSteer3 is
    here = {
        "HuggingFaceTB/SmolLM2-135M-Instruct": "model",
        "nvidia/HelpSteer3": "pairs.jsonl",
        '{"updates": 60}': '{"updates": 2, "batch": 8}',
    }
    code = PYTHON
    for printed, replaced in here.items():
        assert printed in code
        code = code.replace(printed, replaced)
    exec(code, {})
    folder = capsys.readouterr().out.partition(" [")[0]
    assert (tmp_path / folder / "config.json").is_file()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^unmdpo (\w+)", README, flags=re.M))))
def test_commands_are_commands(command):
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_it_fits_on_two_screens():
    assert len(README.splitlines()) <= 90
