"""The same recipe on a real Ray cluster, started here: same results, dead workers retried."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.worlds.pipeline import recipe, world
from unmdpo.engine.settings import AdapterSettings
from unmdpo.errors import UserError
from unmdpo.pipeline.executors import execute
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.store import Store
from unmdpo.pipeline.verify import verify

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),  # however busy the machine is
    pytest.mark.filterwarnings("ignore"),
]
EVALUATION = {"baseline": "dpo", "panels": {"one": {"size": 2, "seed": 1}}, "max_new_tokens": 2}


def dies_once(prompts, responses):
    """A judge whose process is killed the first time."""
    marker = Path(os.environ["UNMDPO_TEST_MARKER"])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(len(response)) for response in responses]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    import ray

    marker = tmp_path_factory.mktemp("marker") / "died"
    root = str(Path(__file__).parents[3])
    environment = {"UNMDPO_TEST_MARKER": str(marker), "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    ray.init(
        num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20,
        runtime_env={"env_vars": environment},
    )  # fmt: skip
    yield marker
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


def small(folder, judge):
    evaluation = EVALUATION | {"judge": {"function": judge}}
    return recipe(folder, evaluation=evaluation, policies={"dpo": {"objective": "dpo"}}, scales={})


def test_the_same_results_and_a_killed_worker_is_retried(cluster, folder, tmp_path, monkeypatch):
    described = small(folder, "tests.pipeline.executors.test_ray:dies_once")
    run = execute(open_run(described, Store(tmp_path / "ray")), executor="ray")
    assert cluster.exists()  # it did die
    assert [finding for finding in verify(run) if finding.problem] == []
    monkeypatch.setenv("UNMDPO_TEST_MARKER", str(cluster))
    local = execute(open_run(described, Store(tmp_path / "local")))
    for name in run.stages:
        ours, theirs = run.artifact(name).manifest["files"], local.artifact(name).manifest["files"]
        different = {file for file in theirs if ours[file] != theirs[file]}
        assert different <= {"throughput.jsonl"}, name


def test_a_failed_stage_names_itself_and_leaves_the_others(cluster, folder, tmp_path):
    run = open_run(small(folder, "tests.worlds.pipeline:broken_judge"), Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"judgement\[dpo,one\]: [\s\S]*out of order"):
        execute(run, executor="ray")
    assert "generation[dpo,one]" in run.finished


def test_a_stage_over_two_ranks_of_ray_train(cluster, folder, tmp_path):
    """The same weights as one rank's, up to rounding; and a fault of the recipe is told once."""
    described = small(folder, "tests.worlds.pipeline:longest")
    together = described.model_copy(update={"compute": described.compute.model_copy(update={"ranks": 2})})
    run = execute(open_run(together, Store(tmp_path / "ray")), until="policy[dpo]", executor="ray")
    assert run.artifact("policy[dpo]").manifest["ranks"] == 2
    alone = execute(open_run(described, Store(tmp_path / "alone")), until="policy[dpo]")
    ours, theirs = (load_file(one.policy("dpo") / "model.safetensors") for one in (run, alone))
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-3, atol=1e-5)
    adapted = together.training.model_copy(update={"adapter": AdapterSettings(rank=2)})
    refused = open_run(together.model_copy(update={"training": adapted}), Store(tmp_path / "ray"))
    with pytest.raises(UserError, match=r"policy\[dpo\]: an adapter is trained on one GPU"):
        execute(refused, until="policy[dpo]", executor="ray")
    assert not [*(tmp_path / "ray").glob(".ray-*")]
