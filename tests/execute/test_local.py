"""Interrupted runs, parallel stages, and stages shared by several ranks."""

import io
import json
import multiprocessing
import os
import pydoc
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.worlds.pipeline import events, judged_by, problems, recipe
from tests.worlds.rows import preference
from unmdpo.core.errors import OutOfMemory, UnmdpoWarning, UserError
from unmdpo.execute import execute, local
from unmdpo.execute.progress import Lines, View
from unmdpo.results.run import open_run
from unmdpo.store.store import Store


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    "target", ["unmdpo.engine.training.trainer.Trainer.step", "unmdpo.engine.inference.generate.Generator._batch"]
)
def test_a_stopped_run_goes_on_and_gives_the_same_bytes(done, folder, tmp_path, monkeypatch, target):
    module, _, method = target.rpartition(".")
    from importlib import import_module

    owner = getattr(import_module(module.rpartition(".")[0]), module.rpartition(".")[2])
    original, calls = getattr(owner, method), []

    def stopping(self, *arguments):
        calls.append(1)
        if len(calls) % 3 == 0:
            raise Stop
        return original(self, *arguments)

    store = Store(tmp_path / "store")
    small = recipe(folder, compute={"checkpoint_minutes": 1e-9})  # a checkpoint after every update
    monkeypatch.setattr(owner, method, stopping)
    for _ in range(40):
        try:
            run = execute(open_run(small, store))
            break
        except Stop:
            continue
    assert len(calls) > 3
    for name in done.stages:
        ours, theirs = run.artifact(name).manifest["files"], done.artifact(name).manifest["files"]
        skipped = {"throughput.log"}  # times differ
        assert {k: v for k, v in ours.items() if k not in skipped} == {
            k: v for k, v in theirs.items() if k not in skipped
        }, name


@pytest.mark.parametrize(
    ("stage", "pattern", "target"),
    [
        ("generation[dpo,one]", "batches.jsonl", "unmdpo.stages.generation.Journal.add"),
        ("features", "part-*", "unmdpo.stages.reference.keep"),
        ("reference", "part-*", "unmdpo.stages.reference.keep"),
    ],
)
def test_half_made_work_that_was_damaged_is_made_again(done, folder, tmp_path, monkeypatch, stage, pattern, target):
    made, calls, store = pydoc.locate(target), [], Store(tmp_path / "store")

    def stopping(*arguments, **named):
        made(*arguments, **named)
        calls.append(1)
        if len(calls) == 2 or pattern == "part-*":
            raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(target, stopping)
        with pytest.raises(Stop):
            execute(open_run(recipe(folder), store), until=stage)
    (path,) = (store.root / "work" / done.stages[stage].key / "state").glob(pattern)
    data = path.read_bytes()
    flipped = data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]
    path.write_bytes(data[:-8] if pattern.endswith("jsonl") else flipped)  # a line that is cut off, or a byte
    finished = execute(open_run(recipe(folder), store), until=stage)
    assert finished.artifact(stage).digest == done.artifact(stage).digest


def test_two_jobs_give_what_one_gives(done, folder, tmp_path):
    run = open_run(recipe(folder), Store(tmp_path / "store"))
    seen = events(run, jobs=2)
    assert ("policy[dpo]", "finished") in seen
    begun = {name: place for place, (name, what) in enumerate(seen) if what == "started"}
    ended = {name: place for place, (name, what) in enumerate(seen) if what == "finished"}
    for name, place in begun.items():  # an end is shown before what needs it begins
        assert all(ended.get(needed.name, -1) < place for needed in run.stages[name].inputs.values())
    assert any(name == "policy[dpo]" and "loss" in text for name, text in seen)
    for name in done.stages:
        ours, theirs = run.artifact(name).manifest["files"], done.artifact(name).manifest["files"]
        assert ours.keys() == theirs.keys()
    assert problems(run) == []


SCRIPT = """
from pathlib import Path
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store
from unmdpo.recipe import load_recipe
print("started")
execute(open_run(load_recipe("recipe.yaml"), Store(Path("store"))), until="encoded", jobs=2)
print("finished", __file__ is not None, __spec__)
"""


@pytest.mark.soak  # starts Python twice
def test_a_script_is_not_run_again_by_its_workers(folder, tmp_path):
    """As people write them: without a guard around what it does."""
    (tmp_path / "script.py").write_text(SCRIPT)
    few = recipe(folder, evaluation=None, scales={}, policies={"dpo": {"objective": "dpo"}})
    (tmp_path / "recipe.yaml").write_text(few.to_yaml())
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "started\nfinished True None\n"), done.stderr


def test_a_failed_stage_names_itself_and_leaves_the_others(folder, tmp_path):
    evaluation = judged_by("broken_judge")
    run = open_run(recipe(folder, evaluation=evaluation), Store(tmp_path / "store"))
    stream = io.StringIO()
    with pytest.raises(
        UserError,
        match=r"judgement\[dpo,one\]: the judge: RuntimeError: out of order "
        r"\(.*judges.py:\d+\)[\s\S]*not started, because",
    ):
        execute(run, jobs=2, view=Lines(stream))
    assert "policy[ulnm-wr]" in run.finished
    assert "generation[dpo,one]" in run.finished
    assert "summary" not in run.finished
    assert "judgement[dpo,one]: failed" in stream.getvalue()


def test_a_judge_that_kills_its_process_ends_only_itself(folder, tmp_path):
    evaluation = judged_by("deadly_judge")
    small = recipe(folder, evaluation=evaluation, policies={"dpo": {"objective": "dpo"}}, scales={})
    run = open_run(small, Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"the judge: ended its process with exit code -9"):
        execute(run)
    assert "generation[dpo,one]" in run.finished


class Deadly(View):
    def started(self, stage):
        if stage == "policy[dpo]":
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGKILL)


def test_a_killed_worker_is_reported(folder, tmp_path):
    small = recipe(folder, evaluation=None, policies={"dpo": {"objective": "dpo"}}, scales={})
    run = open_run(small, Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"policy\[dpo\]: its process was killed by signal 9"):
        execute(run, jobs=2, view=Deadly())
    assert "reference" in run.finished


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_ranks_share_a_model(done, folder, tmp_path):
    """`compute.ranks: 2`: the reference and policies are each sharded over two processes."""
    policies = {"joint": {"objective": "unm-ao", "scale": "joint"}}
    scales = {"joint": {"estimator": "joint"}}
    both = [
        execute(
            open_run(
                recipe(folder, compute={"ranks": ranks}, policies=policies, scales=scales, evaluation=None),
                Store(tmp_path / f"{ranks}"),
            )
        )
        for ranks in (1, 2)
    ]
    assert both[1].artifact("policy[joint]").manifest["ranks"] == 2
    one, two = (load_file(run.policy("joint") / "model.safetensors") for run in both)
    assert all(torch.allclose(one[key], two[key], atol=1e-4) for key in one)


def test_warnings_of_a_stage_s_process_are_passed_on(folder, tmp_path):
    """One bad row among two hundred: the command that is watched says so, whichever process read it."""
    rows = [preference(prompt=f"w{i}", chosen="w1", rejected="w2") for i in range(199)]
    path = tmp_path / "one-bad.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, preference(prompt=" ")]))
    data = {"path": str(path), "max_length": 64, "validation": {"fraction": 0.25}}
    run = open_run(recipe(folder, data=data), Store(tmp_path / "store"))
    with pytest.warns(UnmdpoWarning, match="1 of 200 rows is bad, and skipped"):
        execute(run, until="encoded", jobs=2)


@pytest.mark.soak  # waits
def test_gpus_that_never_answer_are_reported(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "gpu_names", lambda: ["0"])
    with pytest.raises(UserError, match="do not answer"):
        execute(open_run(recipe(folder), Store(tmp_path / "store")), until="encoded", jobs=2)


def test_a_stage_that_is_out_of_memory_gets_smaller_microbatches(folder, tmp_path, monkeypatch):
    tried = []

    def full(run, stage, report, devices=()):
        if stage.kind.name == "reference":
            tried.append(run.recipe.compute.token_budget)
            if len(tried) < 3:
                raise OutOfMemory("full")
        run.make(stage, report)

    monkeypatch.setattr(local, "run_stage", full)
    small = recipe(folder, policies={"dpo": {"objective": "dpo"}}, scales={}, evaluation=None)
    execute(open_run(small, Store(tmp_path / "store")), until="reference", jobs=1)
    assert tried[1] < (tried[0] or float("inf"))
    assert tried[2] < tried[1]


def test_a_mistake_is_not_tried_twice(folder, tmp_path):
    said = []

    class Counting(View):
        def retried(self, stage, why):
            said.append((stage, why))

    policies, evaluation = {"dpo": {"objective": "dpo"}}, judged_by("broken_judge")
    run = open_run(recipe(folder, policies=policies, scales={}, evaluation=evaluation), Store(tmp_path / "store"))
    with pytest.raises(UserError, match="out of order"):
        execute(run, jobs=2, view=Counting())
    assert said == []


@pytest.mark.parametrize(("gigabytes", "jobs"), [(64, 8), (8, 4), (1, 1)])  # each process needs at least 1.6
def test_without_gpus_only_as_many_stages_run_at_once_as_fit_into_memory(
    folder, tmp_path, monkeypatch, gigabytes, jobs
):
    run = open_run(recipe(folder), Store(tmp_path / "store"))
    monkeypatch.setattr(local, "cores", lambda: 8)
    monkeypatch.setattr(local, "available", lambda device: gigabytes * 1e9)
    assert local.default_jobs(run) == jobs
