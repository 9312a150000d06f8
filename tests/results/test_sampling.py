"""Several answers to each prompt: drawn, judged and averaged; the numbers once more from the raw files."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import problems, recipe, world
from unmdpo.cli import app
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.stages.shared.files import GENERATIONS, SCORES
from unmdpo.store.store import Store

SAMPLES = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = world(tmp_path_factory.mktemp("sampled"))
    described = recipe(folder).model_dump()["evaluation"] | {
        "panels": {"one": {"size": 3, "seed": 1}},
        "sampling": {"samples": SAMPLES, "temperature": 1.5},
        "initial": False,
    }
    policies = {"dpo": {"objective": "dpo"}, "simpo": {"objective": "simpo", "seeds": [1, 2]}}
    return execute(open_run(recipe(folder, evaluation=described, policies=policies, scales={}), Store(folder / "s")))


def scores(run, name):
    rows = SCORES.load(run.artifact(f"judgement[{name},one]"))
    return np.array([row["score"] for row in rows]).reshape(3, SAMPLES)


def test_every_prompt_is_answered_several_times(run):
    rows = GENERATIONS.load(run.artifact("generation[dpo,one]"))
    hashes = run.panel("one").hashes
    assert [row["prompt_hash"] for row in rows] == [name for name in hashes for _ in range(SAMPLES)]
    assert len({row["text"] for row in rows}) > 3
    assert [row["sample"] for row in run.generations("dpo", "one")] == [0, 1, 2, 3] * 3


def test_win_rates_are_means_over_samples(run):
    found = run.summary["one"]["judges"][""]["against"]["dpo"]["simpo"]
    dpo = scores(run, "dpo")
    games = [100 * ((ours > dpo) + (ours == dpo) / 2) for ours in (scores(run, "simpo@1"), scores(run, "simpo@2"))]
    assert found["win_rate"]["value"] == pytest.approx(np.mean(games))
    assert found["wins"] + found["ties"] + found["losses"] == 2 * 3 * SAMPLES
    assert found["prompts"] == 3
    assert not problems(run)


def test_other_tools_get_one_answer_to_each_prompt(run, tmp_path):
    for form, count in (("alpaca-eval", 3), ("jsonl", 3 * SAMPLES)):
        out = tmp_path / f"{form}.json"
        done = CliRunner().invoke(app, ["answers", str(run.folder), "dpo", "one", "--format", form, "--out", str(out)])
        assert done.exit_code == 0, done.output
        text = out.read_text()
        assert len(json.loads(text) if form == "alpaca-eval" else text.splitlines()) == count
