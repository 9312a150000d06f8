"""Judges of one's own: trained on pairs, measured on prompts they have not seen, and used in a recipe."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn.functional import logsigmoid
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe, world, write_model
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.engine.inference.reward_model import RewardModel
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.training import reward
from unmdpo.engine.training.reward import RewardPairs, open_with_new_head
from unmdpo.execute import execute
from unmdpo.execute.preflight import flattering
from unmdpo.report.collect import collect
from unmdpo.report.page import render
from unmdpo.results.run import open_run
from unmdpo.results.verify import verify
from unmdpo.store.store import Store

LONGEST = "tests.worlds.judges:longest"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("judges"))


def write_pairs(path, count=480):
    """The better response has w7 in it; the longer one is better in half of the pairs."""
    rng = random.Random(0)

    def words(number):
        return [f"w{rng.randrange(10, 60)}" for _ in range(number)]

    rows = [
        {
            "prompt": f"w{number % 60} w{number // 60} w5",
            "chosen": " ".join([*words(rng.choice([2, 5])), "w7"]),
            "rejected": " ".join([*words(rng.choice([2, 5])), "w8"]),
            "strength": 1 + number % 3,
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(data, out, model, *options):
    given = ["--model", str(model), "--batch", "16", "--epochs", "8", "--learning-rate", "0.003", "--held-out", "0.25"]
    return CliRunner().invoke(app, ["judge", "train", str(data), str(out), *given, *options])


@pytest.mark.parametrize(
    "options",
    [["--lora", "8", "--learning-rate", "0.01"], pytest.param([], marks=pytest.mark.soak)],
    ids=["lora", "all weights"],
)
def test_a_judge_learns_what_is_better_and_judges_in_a_recipe(folder, tmp_path, options):
    out = tmp_path / "judge"
    done = train(write_pairs(tmp_path / "pairs.jsonl"), out, folder / "model", *options)
    assert done.exit_code == 0, done.output
    found = json.loads((out / "judge.json").read_text())
    assert found["trained_on"] == 360
    assert found["held_out"]["pairs"] == 120
    assert found["held_out"]["judge"] > 0.9
    assert 0.1 < found["held_out"]["length"] < 0.6
    assert {*found["by_strength"]} == {"1", "2", "3"}
    assert sum(part["pairs"] for part in found["calibration"]["bins"]) == 120
    assert f"evaluation: {{judge: {{path: {out}}}}}" in done.output
    evaluation = recipe(folder).model_dump()["evaluation"] | {"judge": {"path": str(out)}, "initial": False}
    policies = {"dpo": {"objective": "dpo"}, "simpo": {"objective": "simpo"}}
    run = open_run(recipe(folder, evaluation=evaluation, policies=policies, scales={}), Store(tmp_path / "store"))
    assert execute(run).summarized


def test_a_recipe_trains_its_own_judge(folder, tmp_path):
    """As a stage: kept in the store, measured, told of, and not trained again."""
    training = {"path": str(write_pairs(tmp_path / "pairs.jsonl")), "batch": 16, "epochs": 8, "learning_rate": 0.003}
    evaluation = recipe(folder).model_dump()["evaluation"] | {"judge": None, "initial": False}
    evaluation["judges"] = {"own": {"train": training | {"held_out": 0.25}}, "long": {"function": LONGEST}}
    policies = {"dpo": {"objective": "dpo"}, "simpo": {"objective": "simpo"}}
    described = recipe(folder, evaluation=evaluation, policies=policies, scales={})
    run = execute(open_run(described, Store(tmp_path / "store")))
    made = run.artifact("judge[own]")
    assert made.manifest["notes"]["trained_on"] == 360
    (told,) = run.judge_lines
    assert told.startswith("judge[own]: trained on 360 pairs, ")
    assert told in render(collect(run))
    judge = RewardModel(ModelSource(path=str(made.path / "model")))
    rows = run.generations("dpo", "one", "own")
    expected = judge([row["prompt"] for row in rows], [row["text"] for row in rows])
    assert [row["score"] for row in rows] == pytest.approx(expected, abs=1e-5)
    again = open_run(described, Store(tmp_path / "store"))
    assert execute(again).artifact("judge[own]").manifest == made.manifest
    assert not [finding for finding in verify(again) if finding.problem]
    data = evaluation | {"judges": {"own": {"train": {"path": "nowhere.jsonl"}}}}
    with pytest.raises(
        UserError, match=r"evaluation.judges.own.train.path: there is no file or folder 'nowhere.jsonl'"
    ):
        execute(open_run(recipe(folder, evaluation=data, policies=policies, scales={}), Store(tmp_path / "other")))


def judged_by(folder, training, **changes):
    evaluation = recipe(folder).model_dump()["evaluation"] | {"judge": {"train": training}, "initial": False}
    policies = {"dpo": {"objective": "dpo"}, "simpo": {"objective": "simpo"}}
    return recipe(folder, evaluation=evaluation, policies=policies, scales={}, **changes)


def test_a_judge_that_learns_from_the_policies_own_pairs_is_reported_of(folder, tmp_path):
    place = recipe(folder).data.path
    copied = (
        shutil.copy(place, tmp_path / "copied.jsonl")
        if Path(place).is_file()
        else shutil.copytree(place, tmp_path / "c")
    )
    for path in (place, copied):
        run = open_run(judged_by(folder, {"path": str(path)}), Store(tmp_path / "store"))
        (told,) = flattering(run, [*run.stages])
        assert told.startswith("judge learns from the policies' own pairs, ")
    other = open_run(
        judged_by(folder, {"path": str(write_pairs(tmp_path / "other.jsonl"))}), Store(tmp_path / "store")
    )
    assert flattering(other, [*other.stages]) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ('{"question": "w1", "a": "w2"}\n' * 4, "judge: .*columns"),
        (
            '{"prompt": "w1", "chosen": "w2", "rejected": "w3", "strength": 2}\n' * 4,
            "judge: .*0 pairs to train a judge on and 4 held out: it needs a batch of 32",
        ),
    ],
)
def test_what_a_judge_cannot_learn_from_is_reported_before_anything_is_trained(folder, tmp_path, rows, problem):
    path = tmp_path / "few.jsonl"
    path.write_text(rows)
    run = open_run(judged_by(folder, {"path": str(path)}), Store(tmp_path / "store"))
    with pytest.raises(UserError, match=problem):
        execute(run)
    assert not [name for name in run.finished if name.startswith(("policy", "reference"))]


def test_a_judge_reads_conversations_as_it_learned_to(folder, tmp_path, monkeypatch):
    """With the template's own arguments, in training, on held-out pairs, and when it judges."""
    seen = set()
    rendered = Encoder.answered_text

    def heard(self, prompt, response):
        seen.add(tuple((self.template_arguments or {}).items()))
        return rendered(self, prompt, response)

    monkeypatch.setattr(Encoder, "answered_text", heard)
    model = {"path": str(folder / "model"), "chat_template": {"loud": True}}
    training = {"path": str(write_pairs(tmp_path / "pairs.jsonl", 60)), "batch": 16}
    execute(open_run(judged_by(folder, training, model=model), Store(tmp_path / "store")))
    assert seen == {(("loud", True),)}


def test_a_judge_is_the_same_wherever_its_files_lie(folder, tmp_path):
    runs = []
    for name in ("here", "there"):
        place = tmp_path / name
        shutil.copytree(folder / "model", place / "start")
        training = {"path": str(write_pairs(place / "pairs.jsonl", 60)), "batch": 16, "model": str(place / "start")}
        run = open_run(judged_by(folder, training), Store(place / "store"))
        runs.append(execute(run, until="judge").artifact("judge"))
    assert runs[0].manifest["files"] == runs[1].manifest["files"]


def test_the_same_seed_gives_the_same_judge(folder, tmp_path):
    data = write_pairs(tmp_path / "pairs.jsonl", 60)
    for name in ("one", "two"):
        assert train(data, tmp_path / name, folder / "model").exit_code == 0
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_the_loss_by_hand(folder, monkeypatch):
    """Each conversation by itself, without padding; groups of any size give the same gradients."""
    source = ModelSource(path=str(folder / "model"))
    model = open_with_new_head(source, load_tokenizer(source), 3).train(False)
    pairs = RewardPairs([[5, 6, 7], [8, 9]], [[5, 6], [8, 9, 10, 11]], torch.tensor([1 / 3, 1.0]))
    score = [[model(torch.tensor([row])).logits.item() for row in rows] for rows in (pairs.chosen, pairs.rejected)]
    difference = torch.tensor(score[0]) - torch.tensor(score[1])
    gradients = []
    for budget in (1, 10_000):
        monkeypatch.setattr(reward, "CPU_TOKENS", budget)
        model.zero_grad()
        loss, right = reward._step(model, pairs, [0, 1])
        assert loss == pytest.approx(-logsigmoid(difference - pairs.margins).mean().item(), abs=1e-6)
        assert right == (difference > 0).float().mean().item()
        gradients.append(model.score.weight.grad.clone())
    assert torch.allclose(*gradients, atol=1e-6)


def test_what_cannot_be_trained_is_reported(folder, tmp_path):
    data = write_pairs(tmp_path / "pairs.jsonl", 20)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for out, options, said in (
        (tmp_path / "full", [], "already exists; name a new folder"),
        (tmp_path / "a", ["--batch", "400"], "15 pairs to train a judge on and 5 held out: it needs a batch of 400"),
        (tmp_path / "b", ["--max-length", "8", "--batch", "8"], "0 of 15 pairs"),
        (tmp_path / "c", ["--model", str(tmp_path / "nowhere")], "nowhere"),
    ):
        done = train(data, out, folder / "model", *options)
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert not out.exists() or out.name == "full"


def test_a_model_that_lacks_more_than_a_head_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    write_model(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    done = train(write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "out", tmp_path / "model")
    assert done.exit_code == 2
    assert "it lacks model.norm.weight" in done.output


def test_a_judge_reads_what_it_was_trained_on(folder, tmp_path):
    """The command's measure, and the judge as recipes open it, agree."""
    data = write_pairs(tmp_path / "pairs.jsonl", 60)
    assert train(data, tmp_path / "judge", folder / "model").exit_code == 0
    judge = RewardModel(ModelSource(path=str(tmp_path / "judge")))
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    from unmdpo.data import Message

    prompts = [(Message("user", row["prompt"]),) for row in rows]
    better, worse = (torch.tensor(judge(prompts, [row[side] for row in rows])) for side in ("chosen", "rejected"))
    assert float((better > worse).float().mean()) > 0.8
