"""Judges of one's own: trained on pairs, measured on prompts they have not seen, and used in a recipe."""

import json
import random
import shutil
import signal
from dataclasses import replace
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
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.score import score
from unmdpo.engine.settings import ComputeSettings, ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.reward import (
    JudgeObjective,
    RewardSettings,
    finished_model,
    open_reward_scorer,
    open_with_new_head,
    padding_token,
    reward_pair,
)
from unmdpo.engine.training.schedule import batch_of, learning_rate
from unmdpo.engine.training.trainer import Trainer
from unmdpo.execute import execute
from unmdpo.execute.judge_checks import overlapping_judge_data
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
        (told,) = overlapping_judge_data(run, [*run.stages])
        assert told.startswith("judge learns from the policies' own pairs, ")
    other = open_run(
        judged_by(folder, {"path": str(write_pairs(tmp_path / "other.jsonl"))}), Store(tmp_path / "store")
    )
    assert overlapping_judge_data(other, [*other.stages]) == []


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
        training = {
            "path": str(write_pairs(place / "pairs.jsonl", 60)),
            "batch": 16,
            "model": {"path": str(place / "start")},
        }
        run = open_run(judged_by(folder, training), Store(place / "store"))
        runs.append(execute(run, until="judge").artifact("judge"))
    assert runs[0].digest == runs[1].digest


def test_the_same_seed_gives_the_same_judge(folder, tmp_path):
    data = write_pairs(tmp_path / "pairs.jsonl", 60)
    for name in ("one", "two"):
        assert train(data, tmp_path / name, folder / "model").exit_code == 0
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


CONVERSATIONS = [([5, 6, 7, 9], [5, 6, 8]), ([8, 9], [8, 9, 10, 11]), ([4, 5, 6], [9, 5, 6]), ([3, 7, 7], [3, 7, 5])]
MARGINS = torch.tensor([1 / 3, 1.0, 0.0, 0.5])


def judge_trainer(folder, budget, **changes):
    source, settings = ModelSource(path=str(folder / "model")), RewardSettings(**{"batch": 2, **changes})
    tokenizer = load_tokenizer(source)
    scorer, adapted = open_reward_scorer(source, tokenizer, settings)
    pairs = EncodedPairs.of(reward_pair(*rows, padding_token(tokenizer, source)) for rows in CONVERSATIONS)
    data = TrainingData(pairs, MARGINS, reference=torch.zeros(4, 2))
    compute = ComputeSettings(token_budget=budget)
    return Trainer(scorer, data, JudgeObjective(), settings.training(4), compute), adapted


@pytest.mark.parametrize("budget", [8, 512])
@pytest.mark.parametrize("layout", ["packed", "padded", "masked", "single"])
def test_the_weights_equal_a_plain_loops(folder, budget, layout):
    """Each conversation by itself through the model's own code, without padding, and PyTorch's AdamW."""
    trainer, _ = judge_trainer(folder, budget, learning_rate=1e-3)
    trainer.scorer.use(layout)
    source = ModelSource(path=str(folder / "model"))
    model = open_with_new_head(source, load_tokenizer(source), 42)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for update in range(2):
        (group,) = optimizer.param_groups
        group["lr"] = learning_rate(update, peak=1e-3, warmup=0, updates=2, schedule="cosine")
        members = batch_of(update, 4, 2, 42)
        loss = 0.0
        for i in members:
            better, worse = (model(torch.tensor([row])).logits.squeeze() for row in CONVERSATIONS[i])
            loss = loss - logsigmoid(better - worse - MARGINS[i]) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert trainer.step()["loss"] == pytest.approx(loss.item(), abs=1e-5)
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore::unmdpo.core.errors.UnmdpoWarning")
@pytest.mark.parametrize("sharp", [True, False])
def test_the_layout_is_proven_for_scores_too(folder, monkeypatch, sharp):
    """Also where there is no room for a higher precision."""
    trainer, _ = judge_trainer(folder, None)
    assert trainer.scorer.packing.layout == "packed"
    if not sharp:
        monkeypatch.setattr("unmdpo.engine.pairs.proof.SHARP", {})
    made = PackedBatch.of.__func__

    def off(cls, *args, **more):
        batch = made(cls, *args, **more)
        return replace(batch, last=batch.last - 1)

    monkeypatch.setattr(PackedBatch, "of", classmethod(off))
    trainer.model.to(torch.bfloat16)
    assert prove(trainer.scorer, trainer.data.pairs).layout == "padded"


def test_conversations_share_what_they_have_in_common():
    def parts(chosen, rejected):
        made = reward_pair(chosen, rejected, pad=0)
        return [part.tolist() for part in (made.prompt, made.chosen, made.rejected)]

    assert parts([1, 2, 3], [1, 2, 4, 5]) == [[1, 2], [3], [4, 5]]
    assert parts([1, 2], [1, 2, 4]) == [[1], [2], [2, 4]]  # each keeps a token of its own
    assert parts([1, 0, 2, 0, 0], [3, 0]) == [[], [1, 0, 2], [3]]  # scores are read before the padding
    assert parts([0, 0], [0, 0]) == [[0], [0], [0]]


def test_a_padding_token_that_the_model_does_not_know(folder):
    source = ModelSource(path=str(folder / "model"))
    tokenizer = load_tokenizer(source)
    assert padding_token(tokenizer, source) == tokenizer.pad_token_id
    tokenizer.add_special_tokens({"pad_token": "<a new one>"})
    assert padding_token(tokenizer, source) == tokenizer.eos_token_id


def test_a_judge_that_cannot_be_measured_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    data = write_pairs(tmp_path / "pairs.jsonl", 60)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RewardModel, "__call__", interrupted)
    assert train(data, tmp_path / "judge", folder / "model").exit_code == 130
    assert not (tmp_path / "judge").exists()
    monkeypatch.undo()
    assert train(data, tmp_path / "judge", folder / "model").exit_code == 0


def test_a_merged_adapter_scores_as_it_was_trained(folder):
    trainer, adapted = judge_trainer(folder, None, rank=4, learning_rate=0.01)
    [*trainer.run()]
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert "score.weight" in trained
    assert all("lora" in name for name in trained - {"score.weight"})
    expected = score(trainer.scorer, trainer.data.pairs)
    merged = finished_model(trainer.scorer, adapted, trainer.masters.named)
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    for (chosen, rejected), both in zip(CONVERSATIONS, expected, strict=True):
        found = [merged(torch.tensor([row])).logits.item() for row in (chosen, rejected)]
        assert found == pytest.approx(both.tolist(), abs=1e-5)


@pytest.mark.filterwarnings("ignore::unmdpo.core.errors.UnmdpoWarning")
def test_a_stopped_judge_goes_on_and_gives_the_same_bytes(folder, tmp_path, monkeypatch):
    data, step = write_pairs(tmp_path / "pairs.jsonl", 60), Trainer.step
    assert train(data, tmp_path / "whole", folder / "model").exit_code == 0

    def interrupted(self):
        if self.update == 4:
            signal.raise_signal(signal.SIGTERM)
        return step(self)

    monkeypatch.setattr(Trainer, "step", interrupted)
    stopped = train(data, tmp_path / "parts", folder / "model")
    assert stopped.exit_code == 128 + signal.SIGTERM
    assert "run the same command again to go on" in stopped.output
    monkeypatch.setattr(Trainer, "step", step)
    shutil.copytree(tmp_path / ".parts.unfinished", tmp_path / ".other.unfinished")  # of other settings: not used
    plain = train(data, tmp_path / "other", folder / "model", "--no-margins")
    assert plain.exit_code == 0
    assert train(data, tmp_path / "parts", folder / "model").exit_code == 0
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != (
        tmp_path / "parts" / "model.safetensors"
    ).read_bytes()
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == two
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.filterwarnings("ignore::unmdpo.core.errors.UnmdpoWarning")  # about the few margins
def test_pairs_of_one_prompt_can_be_bounded(folder, tmp_path):
    rows = [
        {"prompt": f"w{n}", "responses": [f"w{k}" for k in range(10, 18)], "scores": [*range(8)]} for n in range(9)
    ]
    path = tmp_path / "scored.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = []
    for options in ([], ["--most", "3"], ["--pairs", "neighbours"]):
        out = tmp_path / f"judge{len(counts)}"
        assert train(path, out, folder / "model", "--epochs", "1", "--batch", "4", *options).exit_code == 0
        counts.append(json.loads((out / "judge.json").read_text())["trained_on"])
    assert counts[0] == 28 * counts[1] / 3 == 28 * counts[2] / 7


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
