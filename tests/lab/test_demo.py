"""The lab in use: its model can be rebuilt, the shipped one answers, and the demo runs end to end."""

import random

import pytest
import torch
from benchmarks.lab.reference import build
from typer.testing import CliRunner

from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.data import Message, load_comparisons
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.models import load_model
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.lab import model_folder
from unmdpo.lab.demo import check_scale, demo_recipe, truth_of
from unmdpo.lab.world import Knobs, World, gold
from unmdpo.results.run import open_run
from unmdpo.store.store import Store


def test_the_reference_is_built_the_same_again(tmp_path):
    said = []
    for name in ("a", "b"):
        build(tmp_path / name, updates=2, report=said.append)
    for file in ("model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_the_shipped_model_is_small_and_half_good():
    """It answers in the world's words, better than chance but with idle phrases, so there is something to learn."""
    assert sum(file.stat().st_size for file in model_folder().iterdir()) < 3 * 2**20
    prompts = [(Message("user", p.text),) for p in World().prompts(60, "validation")]
    source = ModelSource(path=str(model_folder()))
    model = load_model(source, device=torch.device("cpu"), dtype=torch.float32)
    generator = Generator(model, Encoder.of(source, max_length=256), GenerationSettings(max_new_tokens=32))
    made = sorted((g for batch in generator.generate(prompts) for g in batch), key=lambda g: g.prompt)
    scores = gold(prompts, [g.text for g in made])
    assert all(g.finished for g in made)
    assert 0.3 < sum(scores) / len(scores) < 2.5


def test_the_tokenizer_can_say_anything():
    encoder = Encoder.of(ModelSource(path=str(model_folder())), max_length=256)
    text = "add one to nine, naïve Ünïcode 🙂 <|x|>"
    ids = encoder.tokenize([text])[0]
    assert encoder.tokenizer.decode(ids) == text


def test_the_gold_judge_reads_prompts_from_their_text():
    world, rng = World(Knobs(prompts=50)), random.Random(0)
    prompts = [(Message("user", p.text),) for p in world.prompts()]
    assert gold(prompts, [" ".join(p.task.answer) for p in world.prompts()]) == [3.0] * 50
    noisy = [world.response(p, rng) for p in world.prompts()]
    assert min(gold(prompts, noisy)) < 1
    for text in ("sort apples", "what is love", "add one to", "write the plural of cats"):
        with pytest.raises(UserError, match="not one of the lab's prompts"):
            gold([(Message("user", text),)], ["one"])


def test_exports_load(tmp_path):
    for shape in ("helpsteer3", "preference"):
        path = tmp_path / f"{shape}.jsonl"
        arguments = ["lab", "export", str(path), "--shape", shape, "--prompts", "30"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        assert len(load_comparisons(str(path)).rows) > 20
    assert CliRunner().invoke(app, ["lab", "export", str(tmp_path / "no" / "x.jsonl")]).exit_code == 2


def test_a_model_is_never_built_over_another(tmp_path):
    assert CliRunner().invoke(app, ["lab", "build", str(tmp_path)]).exit_code == 2


SMALL = [
    "training.updates=2", "training.batch=8", "training.warmup=1", "pilots.updates=2", "pilots.folds=2",
    "evaluation.panels.held-out.size=20", "evaluation.max_new_tokens=8",
]  # fmt: skip


def test_the_demo_runs_shows_and_redoes_nothing(tmp_path):
    arguments = ["demo", *SMALL, "--folder", str(tmp_path / "with space: x"), "--prompts", "100", "--jobs", "1"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    for expected in ("ulnm-wr", "against dpo", "also seen", "Spearman of q̂ with the true q*", "sorting"):
        assert expected in first.output
    page = (tmp_path / "with space: x" / "report.html").read_text("utf-8")
    assert "true q*" in page
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    assert ": started" not in again.output
    assert again.stdout == first.stdout
    alone = CliRunner().invoke(app, [*arguments, "policies={dpo: {objective: dpo}}", "scales={}"])
    assert alone.exit_code == 0, alone.output
    recipe = str(tmp_path / "with space: x" / "demo.yaml")
    assert CliRunner().invoke(app, arguments).exit_code == 0  # the recipe as it was
    store = ["--store", str(tmp_path / "with space: x" / "store")]
    assert CliRunner().invoke(app, ["verify", recipe, *store]).exit_code == 0


def test_the_truth_is_known_only_where_there_is_one(tmp_path):
    recipe = demo_recipe(tmp_path, Knobs(prompts=100))
    assert truth_of(recipe)((Message("user", "sort two one"),)) < truth_of(recipe)(
        (Message("user", "sort two one somehow"),)
    )
    (tmp_path / "world" / "world.json").unlink()
    assert truth_of(recipe) is None
    run = open_run(recipe, Store(tmp_path / "store"))
    with pytest.raises(UserError):
        check_scale(run, "seq")
