"""The same recipe on a real Ray cluster, started here: same results, dead workers retried."""

import socket
from pathlib import Path
from unittest.mock import ANY

import pytest
import torch
from safetensors.torch import load_file

from tests.worlds.pipeline import judged_by_function, world
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.execute.driver import Attempt, Outcome
from unmdpo.execute.progress import Events, fraction
from unmdpo.execute.ray import check_answers
from unmdpo.execute.ray_tasks import Ear, Task, work
from unmdpo.results.run import open_run
from unmdpo.results.verify import verify
from unmdpo.store.store import Store

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),  # enough even on a busy machine
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


def test_the_same_results_and_a_killed_worker_is_retried(cluster, folder, tmp_path, monkeypatch):
    described = judged_by_function(folder, "tests.worlds.judges:kills_its_worker_once")
    events = list[dict]()
    run = execute(open_run(described, Store(tmp_path / "ray")), executor="ray", view=Events(events.append))
    assert cluster.exists()  # it did die
    kinds = {name: [each["event"] for each in events if each.get("stage") == name] for name in run.stages}
    for name, said in kinds.items():
        others = [kind for kind in said if kind not in ("progress", "retried")]
        assert others == ["queued", "started", "finished"], name
    assert [name for name, said in kinds.items() if "retried" in said] == ["judgement[dpo,one]"]
    again = next(each["text"] for each in events if each["event"] == "retried")
    assert "its worker died; started again on" in again
    assert socket.gethostname() in next(each["where"] for each in events if each["event"] == "started")
    assert any(fraction(each["text"]) for each in events if each["event"] == "progress")
    assert [finding for finding in verify(run) if finding.problem] == []
    monkeypatch.setenv("UNMDPO_TEST_MARKER", str(cluster))
    local = execute(open_run(described, Store(tmp_path / "local")))
    for name in run.stages:
        ours, theirs = run.artifact(name).manifest["files"], local.artifact(name).manifest["files"]
        different = {file for file in theirs if ours[file] != theirs[file]}
        assert different <= {"throughput.log"}, name


def test_a_failed_stage_names_itself_and_leaves_the_others(cluster, folder, tmp_path):
    run = open_run(judged_by_function(folder, "tests.worlds.judges:broken_judge"), Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"judgement\[dpo,one\]: [\s\S]*out of order"):
        execute(run, executor="ray")
    assert "generation[dpo,one]" in run.finished


def test_a_store_that_a_node_does_not_see(cluster, folder, tmp_path):
    task = Task("run", str(tmp_path / "elsewhere"), "comparisons", str(tmp_path), Attempt(), False)
    assert "the store is not seen under this path by" in ray_task(task).problem


def test_a_cluster_that_does_not_answer():
    """One sentence, within seconds."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"RAY_ADDRESS={address}: nothing answers there"):
            check_answers(address)
    with pytest.raises(UserError, match="nothing answers there"):
        check_answers("ray://no-such-host.invalid:10001")
    check_answers("auto")
    check_answers("")


def test_what_another_run_works_on_gives_its_place_back(cluster, folder, tmp_path):
    run = open_run(judged_by_function(folder, "tests.worlds.judges:longest"), Store(tmp_path / "store"))
    run.record()  # which is what tasks open
    task = Task(run.folder.name, str(run.store.root), "comparisons", str(tmp_path), Attempt(), False)
    with run.store.lock(run.stages["comparisons"].key):
        assert ray_task(task).taken
    assert ray_task(task) == Outcome(seconds=ANY)


def ray_task(task):
    import ray

    return ray.get(ray.remote(work).remote(task, ray.remote(num_cpus=0)(Ear).remote()))


@pytest.mark.soak  # two ranks by torchrun, and stages by Ray, are quicker
def test_a_stage_over_two_ranks_of_ray_train(cluster, folder, tmp_path, monkeypatch):
    """The same weights as one rank's, up to rounding. Paths are relative to where the run was started."""
    monkeypatch.chdir(folder)
    described = judged_by_function(Path(), "tests.worlds.judges:longest")
    together = described.model_copy(update={"compute": described.compute.model_copy(update={"ranks": 2})})
    run = execute(open_run(together, Store(tmp_path / "ray")), until="policy[dpo]", executor="ray")
    assert run.artifact("policy[dpo]").manifest["ranks"] == 2
    alone = execute(open_run(described, Store(tmp_path / "alone")), until="policy[dpo]")
    ours, theirs = (load_file(one.policy("dpo") / "model.safetensors") for one in (run, alone))
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-3, atol=1e-5)
    assert not [*(tmp_path / "ray").glob(".ray-*")]
