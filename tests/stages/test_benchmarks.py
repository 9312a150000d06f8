"""Public tasks, run by lm-evaluation-harness: a tiny model, and tasks made of local files."""

import json

import numpy as np
import pytest
import yaml
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe, world
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.core.files import files_below
from unmdpo.engine.inference.harness import check_tasks
from unmdpo.execute import execute
from unmdpo.recipe import parse_recipe
from unmdpo.results.run import open_run
from unmdpo.results.tasks import TaskResult, _change, losses, task_results
from unmdpo.stages.shared.files import TASKS
from unmdpo.stats.evaluation import Estimate
from unmdpo.store.store import Store

QUESTIONS = [
    {"question": f"w{i} w{i + 9}", "choices": [f"w{i + j} w{3 * j}" for j in range(1, 5)], "answer": (5 * i) % 4}
    for i in range(20)
]


def tasks_in(folder):
    """A task with choices, one with written answers, and a group of two."""
    folder.mkdir()
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    common = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test",
        "doc_to_text": "{{question}}", "metadata": {"version": 1.0},
    }  # fmt: skip
    choice = common | {
        "output_type": "multiple_choice", "doc_to_target": "answer", "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    written = common | {
        "output_type": "generate_until", "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 3, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    mean = [{"metric": "acc", "aggregation": "mean", "weight_by_size": True}]
    made = {
        "mine_choice": {"task": "mine_choice", **choice},
        "mine_other": {"task": "mine_other", **choice},
        "mine_written": {"task": "mine_written", **written},
        "mine_tagged": {"task": "mine_tagged", "tag": "mine_tag", **choice},
        "mine_group": {"group": "mine_group", "task": ["mine_choice", "mine_other"], "aggregate_metric_list": mean},
    }
    for name, task in made.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return str(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = world(tmp_path_factory.mktemp("tasks"))
    described = recipe(place).model_dump(mode="json")
    described["scales"] = {}
    described["training"] |= {"adapter": {"rank": 2}, "learning_rate": 0.3, "updates": 6}
    described["policies"] = {"dpo": {"objective": "dpo"}, "twice": {"objective": "dpo", "seeds": [1, 2]}}
    described["evaluation"] = {
        "baseline": "dpo", "panels": {"one": {"size": 3, "seed": 1}}, "max_new_tokens": 2,
        "judge": {"function": "tests.worlds.judges:longest"}, "task_folder": tasks_in(place / "own"),
        "tasks": {"mine_group": {}, "mine_written": {"limit": 5, "few_shot": 0}},
    }  # fmt: skip
    return execute(open_run(parse_recipe(described), Store(place / "store")))


def test_scores_are_the_harnesss_own_with_the_adapter(run):
    """Beside the model that PEFT loads: the harness has ignored adapters before."""
    base = run.recipe.model.path
    policy = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(run.policy("dpo")))
    own = simple_evaluate(
        model=HFLM(pretrained=policy.merge_and_unload(), tokenizer=AutoTokenizer.from_pretrained(base), batch_size=1),
        tasks=["mine_group"], apply_chat_template=True, bootstrap_iters=0,
        task_manager=TaskManager(include_path=run.recipe.evaluation.task_folder, include_defaults=False),
    )  # fmt: skip
    initial, found = (TASKS.load(run.artifact(f"tasks[{name}]"))["mine_group"] for name in ("initial", "dpo"))
    assert found["value"] == pytest.approx(own["results"]["mine_group"]["acc,none"])
    assert found["samples"] == {
        f"{part}/{row['doc_hash']}/{row['doc_id']}": row["acc"]
        for part in ("mine_choice", "mine_other")
        for row in own["samples"][part]
    }
    assert found["samples"] != initial["samples"]
    assert found["samples"].keys() == initial["samples"].keys()
    assert found["metric"] == "acc"
    assert found["made_with"]["versions"]["mine_choice"] == 1.0


def test_what_is_kept(run):
    found = TASKS.load(run.artifact("tasks[dpo]"))
    assert len(found["mine_group"]["samples"]) == 2 * len(QUESTIONS)
    assert len(found["mine_written"]["samples"]) == 5
    notes = run.artifact("tasks[dpo]").manifest["notes"]
    assert notes["harness"]
    assert notes["scores"] == {name: one["value"] for name, one in found.items()}


def test_differences_are_paired_and_over_seeds(run):
    results = task_results(run)
    assert [(one.task, one.policy) for one in results] == [
        (task, policy) for task in ("mine_group", "mine_written") for policy in ("initial", "dpo", "twice")
    ]
    start, *others = results[:3]
    for one in others:
        assert one.change.value == pytest.approx(one.value - start.value)
        assert one.change.low <= one.change.value <= one.change.high


def test_intervals_by_hand():
    start = {"samples": {str(i): 1.0 for i in range(4)}, "made_with": {"lm-eval": "1"}}
    one = {"samples": {"0": 0.0, "1": 1.0, "2": 0.0, "3": 1.0}, "made_with": {"lm-eval": "1"}}
    found = _change(start, [one], 100)
    spread = 100 * (4.0 - 4 / 6) ** 0.5 / 5**0.5  # of -1, 0, -1, 0, and of 1 and -1
    assert found.value == pytest.approx(-50.0)
    assert found.high - found.value == pytest.approx(2.5706 * spread / 6**0.5, abs=0.01)
    same = _change(start, [start], 100)
    assert (same.value, same.high > 30) == (0.0, True)  # four questions prove nothing
    assert _change(start | {"samples": {}}, [one], 100) is None
    assert _change(start, [one | {"made_with": {"lm-eval": "2"}}], 100) is None


def test_few_questions_prove_little():
    """Whatever the truth is, the interval covers it in about 95 % of worlds."""
    rng = np.random.default_rng(3)
    for n, before, after in ((12, 0.9, 0.9), (40, 0.5, 0.3), (40, 0.98, 0.98), (200, 0.7, 0.65)):
        covered = 0
        for _ in range(400):
            start, one = (
                {"samples": dict(enumerate((rng.random(n) < share) * 1.0)), "made_with": {}}
                for share in (before, after)
            )
            found = _change(start, [one], 100)
            covered += found.low <= 100 * (after - before) <= found.high
        assert covered / 400 > 0.93, (n, before, after)


def test_what_was_lost_is_said(run, monkeypatch):
    found = [
        TaskResult("t", "acc", "dpo", 40.0, Estimate(-5.0, -8.0, -2.0)),
        TaskResult("t", "acc", "fine", 43.0, Estimate(-2.0, -5.0, 1.0)),
        TaskResult("t", "acc", "x", 40.0, None),
        TaskResult(
            "ppl", "word_perplexity", "dpo", 12.0, Estimate(2.0, 1.0, 3.0), share=False, higher_is_better=False
        ),
        TaskResult(
            "ppl", "word_perplexity", "x", 8.0, Estimate(-2.0, -3.0, -1.0), share=False, higher_is_better=False
        ),
    ]
    monkeypatch.setattr("unmdpo.results.tasks.task_results", lambda run: found)
    assert losses(run) == [
        "t (acc): dpo lost 5.0 points, from 45.0 to 40.0 (95 % interval -8.0 to -2.0)",
        "ppl (word_perplexity): dpo lost 2.0, from 10.0 to 12.0 (95 % interval +1.0 to +3.0)",
    ]


def test_the_table_has_them(run):
    found = CliRunner().invoke(app, ["table", str(run.folder), "--format", "markdown"])
    assert found.exit_code == 0, found.output
    assert "mine_group, acc, %" in found.output
    assert "mine_group, from initial" in found.output


def test_code_of_a_task_leaves_its_key_alone(tmp_path, monkeypatch):
    """Python keeps what it compiled beside it."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    folder = tasks_in(tmp_path / "own")
    (tmp_path / "own" / "helping.py").write_text("def text(doc):\n    return doc['question']\n")
    task = (tmp_path / "own" / "mine_choice.yaml").read_text()
    (tmp_path / "own" / "mine_choice.yaml").write_text(
        task.replace("doc_to_text: '{{question}}'", "doc_to_text: !function helping.text")
    )
    before = files_below(tmp_path / "own")
    check_tasks(["mine_choice"], folder)
    assert (tmp_path / "own" / "__pycache__").is_dir()
    assert files_below(tmp_path / "own") == before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine_tag", "is a tag of several tasks"),
        ("no_such_task", "has no task 'no_such_task'"),
        ("mine_choice", "cannot be had: .*questions"),
    ],
)
def test_tasks_that_cannot_be_had(tmp_path, name, says):
    folder = tasks_in(tmp_path / "own")
    (tmp_path / "own" / "questions.jsonl").unlink()
    with pytest.raises(UserError, match=says):
        check_tasks([name], folder)
