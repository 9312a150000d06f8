"""The README's Python code runs as printed, and its YAML is a recipe."""

import re
from pathlib import Path

import torch

from tests.worlds.pipeline import write_data, write_model
from unmdpo.recipe import load_recipe

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
RUN, LOSS = re.findall(r"```python\n(.*?)```", README, flags=re.S)
(RECIPE,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.S)


def test_the_loss_of_a_training_loop():
    names = ("chosen", "rejected", "ref_chosen", "ref_rejected", "evidence")
    given = {name: torch.randn(9) for name in names}
    given |= {"chosen_tokens": torch.arange(1, 10), "rejected_tokens": torch.arange(1, 10)}
    given |= {"unit": torch.arange(9), "features": torch.randn(9, 4), "strength": torch.ones(9)}
    exec(LOSS, given)
    assert given["loss"].isfinite()


def test_the_recipe_is_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    assert [*load_recipe(str(path)).policies] == ["dpo", "ulnm-wr"]


def test_a_run_from_python(tmp_path, monkeypatch, capsys):
    """Runs on a small model and small data, in place of the names in the README."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_data(tmp_path / "pairs.jsonl")
    here = [
        "model.path=model", "data={source: helpsteer3, path: pairs.jsonl, validation: {fraction: 0.25}}",
        "training.batch=8", "pilots={folds: 2, updates: 1}",
        "evaluation.judge={function: 'tests.worlds.judges:longest'}", "evaluation.max_new_tokens=4",
    ]  # fmt: skip
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    path.write_text(load_recipe(str(path), here).to_yaml())
    exec(RUN, {})
    win_rate, folder = re.search(r"^([\d.]+) (\S+)$", capsys.readouterr().out, re.M).groups()
    assert 0 <= float(win_rate) <= 100
    assert (tmp_path / folder / "config.json").is_file()
