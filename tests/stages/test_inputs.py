"""Single-file models, panels from prompt files, and panels that are only set apart."""

import gzip
import json

import pytest
import torch
from typer.testing import CliRunner

from tests.worlds.pipeline import judged_by, problems, recipe, world
from unmdpo.cli import app
from unmdpo.core.errors import DataError, OutOfMemory, UnmdpoWarning, UserError
from unmdpo.core.settings import Strict
from unmdpo.data.panels import read_prompts
from unmdpo.engine.models import load_model
from unmdpo.engine.settings import ComputeSettings, ModelSource
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.stages.shared.base import ONEDNN, Job, Kind, Stage
from unmdpo.stages.shared.files import Panel
from unmdpo.store.store import Store

INSTRUCTIONS = ["w1 w2", "w3", "w4 w5 w6", "w7"]


def write_instructions(folder):
    path = folder / "instructions.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for text in INSTRUCTIONS:
            file.write(json.dumps({"instruction": text, "dataset": "some", "output": "unused"}) + "\n")
    return path


def panels(folder, **more):
    path = str(write_instructions(folder))
    given = {"dev": {"size": 1, "seed": 3, "path": path, "apart": True}, "rest": {"size": 3, "seed": 3, "path": path}}
    judge = {"function": "tests.worlds.judges:longest"}
    return {"baseline": "dpo", "panels": given | more, "judge": judge, "max_new_tokens": 2}


def test_prompts_of_a_file(tmp_path):
    prompts, domains, ids = read_prompts(write_instructions(tmp_path))
    assert [prompt[0].content for prompt in prompts.values()] == INSTRUCTIONS
    assert set(domains.values()) == {"some"}
    assert set(ids.values()) == {""}


@pytest.mark.parametrize(
    "row",
    [
        {"uid": "7f", "category": "hard_prompt", "subcategory": "maths", "prompt": "Why?"},  # Arena-Hard 2
        {
            "question_id": "7f",
            "category": "hard_prompt",
            "cluster": "x",
            "turns": [{"content": "Why?"}],
        },  # Arena-Hard 0.1
        {"question_id": "7f", "category": "hard_prompt", "turns": ["Why?"]},  # MT-Bench, of one turn
    ],
)
def test_prompts_of_public_benchmarks_keep_their_ids(tmp_path, row):
    path = tmp_path / "question.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (prompts, domains, ids) = read_prompts(path)
    assert [prompt[0].content for prompt in prompts.values()] == ["Why?"]
    assert (list(domains.values()), list(ids.values())) == (["hard_prompt"], ["7f"])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "hello"}, "'prompt' or 'instruction'"),
        ({"prompt": " "}, "is empty"),
        ({"turns": ["a", "b"]}, "2 turns"),
    ],
)
def test_a_row_without_a_prompt_is_named(tmp_path, row, says):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "fine"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"row 2.*{says}"):
        read_prompts(path)


def test_a_panel_set_apart_is_drawn_and_answered_by_nobody(tmp_path):
    world(tmp_path)
    described = recipe(tmp_path, evaluation=panels(tmp_path))
    run = execute(open_run(described, Store(tmp_path / "store")))
    assert [*run.summary] == ["rest"]
    assert not any("validation" in name or "dev" in name for name in run.stages if name != "panel[dev]")
    dev, rest = (Panel.read(run.artifact(f"panel[{name}]").file("panel.json")).prompts for name in ("dev", "rest"))
    assert sorted(prompt[0].content for prompt in (*dev, *rest)) == sorted(INSTRUCTIONS)


def test_all_panels_apart_is_a_mistake(tmp_path):
    given = panels(tmp_path) | {"panels": {"dev": {"size": 1, "seed": 3, "apart": True}}}
    with pytest.raises(ValueError, match="at least one should be answered"):
        recipe(tmp_path, evaluation=given)


@pytest.mark.parametrize("given", [{"path": "tiny.gguf"}, {"path": "folder", "gguf_file": "tiny.gguf"}])
def test_gguf_files_are_converted_outside(given):
    with pytest.raises(ValueError, match="GGUF files are not read: convert it once with Transformers"):
        ModelSource(**given)


def test_a_folder_with_only_a_gguf_file_is_refused(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="GGUF files are not read: convert it once with Transformers"):
        load_model(ModelSource(path=str(tmp_path)), device=torch.device("cpu"))


def test_pilots_may_have_a_seed_of_their_own(tmp_path):
    world(tmp_path)
    usual, other = (
        open_run(recipe(tmp_path, pilots={"folds": 2, "updates": 2, **seed}), Store(tmp_path / "store")).stages
        for seed in ({}, {"seed": 17})
    )
    assert usual["pilot[0]"].key != other["pilot[0]"].key
    assert other["pilot[0]"].settings.training.seed == 17
    assert usual["policy[dpo]"].key == other["policy[dpo]"].key


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 18.00 MiB. GPU 0 has more to say"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_full_gpu_is_reported_with_the_way_out(tmp_path, error):
    def full(job):
        raise error

    job = Job(Stage(Kind("policy", full), "policy[dpo]", Strict()), tmp_path, {}, ComputeSettings(), print)
    with pytest.raises(OutOfMemory, match=r"policy\[dpo\].*fewer --jobs.*compute.token_budget"):
        job.do()


def test_every_stage_starts_with_the_same_kernels(tmp_path):
    """PyTorch turns oneDNN off for the whole process when one product fails; it is back on for the next stage."""

    def work(job):
        found = bool(torch.backends.mkldnn.enabled)
        torch.backends.mkldnn.enabled = False
        return {"onednn": found}

    usual = bool(torch.backends.mkldnn.enabled)
    try:
        job = Job(Stage(Kind("scale", work), "scale[seq]", Strict()), tmp_path, {}, ComputeSettings(), print)
        assert job.do() == job.do() == {"onednn": ONEDNN}
    finally:
        torch.backends.mkldnn.enabled = usual


def test_deterministic_kernels_for_as_long_as_the_stage(tmp_path):
    def work(job):
        return {"deterministic": torch.are_deterministic_algorithms_enabled()}

    for wanted in (True, False):
        compute = ComputeSettings(deterministic=wanted)
        job = Job(Stage(Kind("policy", work), "policy[dpo]", Strict()), tmp_path, {}, compute, print)
        assert job.do() == {"deterministic": wanted}


@pytest.mark.soak  # tests/data/test_alpaca.py reads them
def test_answers_are_written_for_alpaca_eval(tmp_path):
    world(tmp_path)
    file = tmp_path / "small.yaml"
    file.write_text(recipe(tmp_path, evaluation=panels(tmp_path)).to_yaml())
    shell, place = CliRunner(), ["--store", str(tmp_path / "store")]
    assert shell.invoke(app, ["run", str(file), "--until", "generation[dpo,rest]", *place]).exit_code == 0
    early = shell.invoke(app, ["answers", str(file), "dpo", "rest", "--out", str(tmp_path / "out.json"), *place])
    assert early.exit_code == 2
    assert "judgement[dpo,rest]" in early.output
    assert shell.invoke(app, ["run", str(file), "--until", "judgement[dpo,rest]", *place]).exit_code == 0
    done = shell.invoke(app, ["answers", str(file), "dpo", "rest", "--out", str(tmp_path / "out.json"), *place])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "out.json").read_text())
    assert {row["instruction"] for row in rows} < set(INSTRUCTIONS)
    assert {row["generator"] for row in rows} == {"dpo"}


def test_a_plan_says_what_is_not_there_yet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["plan", "smollm2-135m", "--device", "h200"])
    assert done.exit_code == 2
    assert "problem: data.path: there is no file or folder 'data/ultrafeedback-train.jsonl.gz'" in done.output
    assert "left to do: about" in done.output  # all the same


def test_a_model_that_cannot_be_had_is_reported_before_any_work(tmp_path, monkeypatch):
    """The judge too, although it is needed last."""
    world(tmp_path)
    for changes in (
        {"model": {"path": "nobody/no-such-model"}},
        {"evaluation": panels(tmp_path) | {"judge": {"path": "nobody/no-such-judge", "revision": "1" * 40}}},
    ):
        run = open_run(recipe(tmp_path, **changes), Store(tmp_path / "store"))
        with pytest.raises(UserError, match=r"(?s)nobody/no-such.*hf auth login.*HF_HOME") as told:
            execute(run)
        assert len(str(told.value).splitlines()) <= 3
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("judge", [{"path": "./not/there"}, {"function": "tests.nowhere:nothing"}])
def test_a_judge_is_not_asked_for_before_it_is_needed(judge, tmp_path):
    world(tmp_path)
    given = recipe(tmp_path, evaluation=panels(tmp_path) | {"judge": judge})
    run = open_run(given, Store(tmp_path / "store"))
    execute(run, until="comparisons")
    with pytest.raises(UserError, match=r"not/there|nowhere"):
        execute(run)


def test_answers_made_elsewhere_are_judged_like_any_others(folder, tmp_path):
    evaluation = judged_by("longest") | {"baseline": "dpo", "answers": {"elsewhere": str(tmp_path / "answers.jsonl")}}
    small = recipe(folder, evaluation=evaluation, policies={"dpo": {"objective": "dpo"}}, scales={})
    (tmp_path / "answers.jsonl").write_text('{"prompt": "another", "text": "w1"}\n')
    run = open_run(small, Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"answers\.jsonl: no answer to 2 of 2 prompts of the panel, for example to"):
        execute(run)
    prompts = run.panel("one").prompts
    rows = [
        {"prompt": [{"role": m.role, "content": m.content} for m in p], "output": "w1 w2 w3 w4 w5 w6"} for p in prompts
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = execute(open_run(small, Store(tmp_path / "store")))
    assert [row["text"] for row in run.generations("elsewhere", "one")] == ["w1 w2 w3 w4 w5 w6"] * 2
    assert run.summary["one"]["judges"][""]["against"]["dpo"]["elsewhere"]["win_rate"]["value"] == 100.0
    assert "policy[elsewhere]" not in run.stages
    assert problems(run) == []


def test_kinds_of_stages_that_have_no_ranks_are_named(folder, tmp_path):
    run = open_run(recipe(folder, compute={"ranks_of": {"polices": 2}}), Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"ranks_of: no stages of kind 'polices' have ranks; did you mean 'policy'"):
        execute(run)


def test_prompts_of_files_keep_what_comes_before_the_question(tmp_path):
    """As in training data, so that they are the same prompts."""
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"system": "Be kind.", "prompt": "Why?"},
        {"system": "Be rude.", "prompt": "Why?"},
        {"instruction": "Translate", "input": "Hallo"},
        {"prompt": "And now?", "history": [["Why?", "Because."]]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = [[message.content for message in prompt] for prompt in read_prompts(path)[0].values()]
    assert prompts == [
        ["Be kind.", "Why?"], ["Be rude.", "Why?"], ["Translate\nHallo"], ["Why?", "Because.", "And now?"],
    ]  # fmt: skip


def test_a_panel_of_training_prompts_is_named(folder, tmp_path):
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    path = tmp_path / "panel.jsonl"
    path.write_text("".join(json.dumps({"prompt": row["context"]}) + "\n" for row in rows[:6]))
    small = recipe(
        folder, evaluation=judged_by("longest") | {"panels": {"one": {"size": 3, "seed": 1, "path": str(path)}}}
    )
    run = open_run(small, Store(tmp_path / "store"))
    with pytest.warns(UnmdpoWarning, match=r"panel\[one\]: \d of 3 prompts are training prompts"):
        execute(run, until="panel[one]")
    assert run.artifact("panel[one]").manifest["notes"]["training_prompts"] > 0
