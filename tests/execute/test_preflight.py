"""Everything that would stop a run is told at once, before anything is trained."""

import importlib.util
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from tests.worlds.pipeline import Seen, judged_by, recipe
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.execute.preflight import too_many_ranks
from unmdpo.results.run import open_run
from unmdpo.store.store import Store


def evaluation(folder, **changes):
    return recipe(folder).model_dump()["evaluation"] | changes


def refused(run):
    """The message, and what was made before it."""
    seen = Seen()
    with pytest.raises(UserError) as caught:
        execute(run, view=seen)
    return str(caught.value), [name for name, _ in seen.events]


def test_all_problems_at_once_and_nothing_is_written(folder, tmp_path):
    panels = {"one": {"size": 3, "seed": 1}, "large": {"size": 200, "seed": 2}}
    changes = {
        "model": {"path": str(folder / "nowhere")},
        "training": {"updates": 2, "batch": 64, "learning_rate": 1e-3},
        "pilots": {"folds": 40, "updates": 2},
        "evaluation": evaluation(folder, panels=panels, judge={"path": "./no-judge"}),
    }
    said, made = refused(open_run(recipe(folder, **changes), Store(tmp_path / "store")))
    assert made == []
    assert not (tmp_path / "store").exists()
    for part in (
        "model.path: there is no file or folder",
        "evaluation.judge.path: there is no file or folder './no-judge'",
        "panel[large]: a panel of 200 prompts is too large: only 3 are left",
        "policy[dpo]: a batch of 64 is larger than its",
        "pilot[0]: a batch of 64 is larger than its",
        "pilots.folds: 40 folds, and",
    ):
        assert part in said
    assert said.startswith(f"{said.count(chr(10))} problems to solve")


def test_a_panel_that_does_not_fit_is_reported_before_training(folder, tmp_path):
    changes = {"evaluation": evaluation(folder, panels={"large": {"size": 200, "seed": 2}})}
    said, made = refused(open_run(recipe(folder, **changes), Store(tmp_path)))
    assert said == "panel[large]: a panel of 200 prompts is too large: only 6 are left"
    assert set(made) == {"comparisons", "comparisons[validation]"}


def test_a_judge_function_is_tried_before_training(folder, tmp_path):
    run = open_run(recipe(folder, evaluation=judged_by("nasty_judge")), Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"judge function 'tests.worlds.judges:nasty_judge': the judge: ValueError"):
        execute(run)
    assert {name.partition("[")[0] for name in run.finished} == {"comparisons", "panel"}


def test_missing_packages(folder, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else found(name))
    changes = {"policies": {"dpo": {"objective": "dpo", "training": {"adapter": {"rank": 2}}}}, "scales": {}}
    said, made = refused(open_run(recipe(folder, **changes), Store(tmp_path)))
    assert "pip install 'peft>=" in said
    assert made == []


def test_a_disk_without_room(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    said, _ = refused(open_run(recipe(folder), Store(tmp_path)))
    assert "the trained models need" in said
    assert "--store" in said


@pytest.mark.parametrize(("size", "prompts"), [("all", 6), (0.5, 3), (0.01, 1), (2, 2)])
def test_panels_of_all_there_are_and_of_a_share(folder, tmp_path, size, prompts):
    panels = {"some": {"size": size, "seed": 1}}
    run = open_run(recipe(folder, evaluation=evaluation(folder, panels=panels)), Store(tmp_path))
    execute(run, until="panel[some]")
    assert len(run.panel("some")) == prompts


def test_the_command_says_yes_or_no(folder, tmp_path):
    file, store = tmp_path / "small.yaml", ["--store", str(tmp_path / "store")]
    file.write_text(recipe(folder).to_yaml())
    fine = CliRunner().invoke(app, ["plan", str(file), *store])
    assert fine.exit_code == 0, fine.output
    assert "Ready: unmdpo run" in fine.output
    assert "48 rows read" in fine.output
    assert "the model is scored packed; largest error of a response:" in fine.output
    wrong = CliRunner().invoke(app, ["plan", str(file), "training.batch=500", "model.path=./nowhere", *store])
    assert wrong.exit_code == 2
    assert "problem: model.path: there is no file or folder" in wrong.output
    assert "problem: policy[dpo]: a batch of 500 is larger than its" in wrong.output


def test_ranks_need_a_gpu_each(folder, tmp_path, monkeypatch):
    changes = {"compute": {"ranks": 4}, "evaluation": None}
    run = open_run(recipe(folder, **changes), Store(tmp_path / "store"))
    wanted = [*run.stages]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert too_many_ranks(run, wanted) == (["reference wants 4 ranks, but this machine has 2 GPUs"], [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert too_many_ranks(run, wanted) == ([], [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert too_many_ranks(run, wanted) == ([], ["reference wants 4 ranks, and there are 3 CPU cores to share"])
