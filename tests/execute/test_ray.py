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
from unmdpo.execute.gpu_scheduler import Need
from unmdpo.execute.progress import Events, fraction
from unmdpo.execute.ray_nodes import Gpus, Seen, check_answers, kinds_of, most_suitable
from unmdpo.execute.ray_tasks import Ear, Outcome, Task, work
from unmdpo.results.run import open_run
from unmdpo.results.verify import verify
from unmdpo.store.store import Store

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),  # enough even on a busy machine
    pytest.mark.filterwarnings("ignore"),
]


class Told(Events):
    wants_estimates = True

    def expected(self, seconds):
        if seconds:
            self.send({"event": "expected"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


def test_the_same_results_and_a_killed_worker_is_retried(cluster, folder, tmp_path, monkeypatch):
    described = judged_by_function(folder, "tests.worlds.judges:kills_its_worker_once")
    events = list[dict]()
    run = execute(open_run(described, Store(tmp_path / "ray")), executor="ray", view=Told(events.append))
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
    assert any(each["event"] == "expected" for each in events)  # a fresh store, too, knows how long it will take
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


def test_a_store_that_a_node_does_not_see(cluster, folder, tmp_path, monkeypatch):
    """Found before anything is done."""
    monkeypatch.setattr("unmdpo.execute.ray_nodes.reads", lambda path: Seen("", None))
    run = open_run(judged_by_function(folder, "tests.worlds.judges:longest"), Store(tmp_path / "store"))
    with pytest.raises(UserError, match="the store is not seen under this path by"):
        execute(run, executor="ray", until="encoded")
    assert "encoded" not in run.finished
    assert not [*(tmp_path / "store").glob(".seen-*")]


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
    task = Task(run.folder.name, str(run.store.root), "comparisons", str(tmp_path), None, False)
    with run.store.lock(run.stages["comparisons"].key):
        assert ray_task(task).taken
    assert ray_task(task) == Outcome(seconds=ANY)


def ray_task(task):
    import ray

    return ray.get(ray.remote(work).remote(task, ray.remote(num_cpus=0)(Ear).remote()))


def test_kinds_of_gpus():
    nodes = [
        ({"CPU": 8.0}, None),
        ({"GPU": 8.0, "accelerator_type:A100": 1.0}, 40e9),
        ({"GPU": 4.0, "accelerator_type:H200": 1.0}, 141e9),
        ({"GPU": 8.0, "accelerator_type:A100": 1.0}, 80e9),
        ({"GPU": 1.0}, None),
    ]
    small, large, unknown = kinds_of(nodes, None)
    assert (small.kind, small.count, small.memory) == ("A100", 16, 40e9)
    assert (large.kind, large.count, large.memory) == ("H200", 4, 141e9)
    assert (unknown.kind, unknown.memory) == (None, 80e9)
    assert [one.kind for one in kinds_of(nodes, "H200")] == ["H200"]
    with pytest.raises(UserError, match="no node of the cluster has a GPU of the kind B200"):
        kinds_of(nodes, "B200")


def test_a_stage_goes_where_it_fits_and_where_there_is_room():
    small, large = Gpus("A100", 8, 80e9), Gpus("H200", 2, 141e9)

    def chosen(memory):
        return most_suitable([small, large], {"A100": Need(memory, 1.0), "H200": Need(memory, 1.0)}).kind

    assert chosen(100e9) == "H200"  # it does not fit on the other
    assert chosen(200e9) == "H200"  # it fits nowhere: the largest may still do
    assert chosen(30e9) == "H200"  # both are free
    large.load = 1.0
    assert chosen(30e9) == "A100"
    small.load = 6.0
    assert chosen(30e9) == "H200"


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
