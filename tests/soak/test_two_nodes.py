"""Two nodes by `torchrun --nnodes 2`, on loopback and in two working folders. One is killed and started again: the run
goes on from its last checkpoint, and its policy is that of one process up to rounding."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.worlds.pipeline import problems, recipe, world
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1800)]
POLICY, UPDATES = "policy[dpo]", 30


def described(folder, **compute):
    training = {"updates": UPDATES, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
    few = {"evaluation": None, "scales": {}, "policies": {"dpo": {"objective": "dpo"}}, "training": training}
    return recipe(folder, **few, compute=compute)


# A node that stays keeps the address of the first meeting, and one that comes later would wait for it for ever.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def node(folder, name, port):
    place = folder / name
    place.mkdir(exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    command = [*torchrun, "-m", "unmdpo", "run", str(folder / "two.yaml"), "--store", str(folder / "store")]
    with (place / "log").open("a") as log:
        return subprocess.Popen(
            command, cwd=place, stdout=log, stderr=log, start_new_session=True, env=os.environ | ENVIRONMENT
        )


def lose(node):
    """Kills torchrun and what it started, which is in a session of its own: as if the machine was switched off."""
    for process in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
        process.kill()
    node.wait()


def reaches(folder, update):
    """Waits until a checkpoint of this update or a later one lies on disk."""
    while True:
        saved = (folder / "store" / "work").glob("*/state/checkpoints/update-*")
        if any(int(path.name.removeprefix("update-")) >= update for path in saved if path.is_dir()):
            return
        time.sleep(0.05)


def test_a_lost_node_comes_back(tmp_path):
    folder = world(tmp_path)
    (folder / "two.yaml").write_text(described(folder, ranks=2, checkpoint_minutes=1e-9).to_yaml())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first = node(folder, "a", port)
    time.sleep(5)  # it holds the meeting point
    second = node(folder, "b", port)
    nodes = [first, second]
    try:
        reaches(folder, 3)
        lose(second)
        nodes.append(node(folder, "b", port))
        codes = [first.wait(), nodes[-1].wait()]
    finally:
        for each in nodes:
            if each.poll() is None:
                lose(each)
    assert codes == [0, 0], (folder / "a" / "log").read_text()[-4000:]
    two = open_run(described(folder, ranks=2, checkpoint_minutes=1e-9), Store(folder / "store"))
    assert problems(two) == []
    assert two.artifact(POLICY).manifest["ranks"] == 2
    one = execute(open_run(described(folder), Store(folder / "alone")), until=POLICY)
    ours, theirs = (load_file(run.policy("dpo") / "model.safetensors") for run in (two, one))
    largest = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    print(f"largest difference of a weight: {largest:.2g}")
    assert largest < 1e-4
    started = load_file(folder / "model" / "model.safetensors")
    assert max(float((theirs[name] - started[name]).abs().max()) for name in theirs) > 1e-3
    assert torch.isfinite(next(iter(ours.values()))).all()
