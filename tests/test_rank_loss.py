"""One of two ranks is killed, or hangs: the job ends soon and says so, and the same command goes on."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults import Command, contents, small_recipe

pytestmark = pytest.mark.alone
UNTIL = ("--until", "pilot[0]", "--jobs", "1")


def two_ranks(folder, minutes):
    compute = {"checkpoint_minutes": 1e-6, "ranks": 2, "rank_minutes": minutes}
    return small_recipe(folder, compute=compute, pilots={"folds": 2, "updates": 20})


def ranks_at_work(folder):
    """Process numbers of the ranks whose command names a store in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "unmdpo.pipeline.ranked" in words and "torch.distributed.run" not in words:
            found += [int(path.parent.name)] if any(str(folder) in word for word in words) else []
    return found


def wait_for_training(folder):
    """Until both ranks are at the pilot and its first checkpoint lies there."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if list((folder / "store" / "work").glob("*/checkpoints/*")) and len(ranks_at_work(folder)) == 2:
            return ranks_at_work(folder)
        time.sleep(0.05)
    raise TimeoutError("no checkpoint")


hung = pytest.param(
    signal.SIGSTOP,
    marks=pytest.mark.skipif("UNMDPO_SOAK" not in os.environ, reason="minutes long: make soak"),
)


@pytest.mark.parametrize("harm", [signal.SIGKILL, hung])
def test_a_lost_rank_is_told_within_a_minute_and_the_run_goes_on(tmp_path, harm):
    path = two_ranks(tmp_path, minutes=0.3)
    command = Command(path, tmp_path / "store", UNTIL)
    victim = wait_for_training(tmp_path)[1]
    os.kill(victim, harm)
    began = time.monotonic()
    code = command.wait(120)
    took = time.monotonic() - began
    assert code == 2, command.said
    assert took < 60
    told = command.said.splitlines()[-1]
    assert "one of 2 ranks was lost" in told
    assert "the same command goes on from there" in told
    assert "Traceback" not in command.said
    assert not ranks_at_work(tmp_path)
    again = Command(path, tmp_path / "store", UNTIL)
    assert again.wait() == 0, again.said
    if harm == signal.SIGKILL:
        undisturbed = Command(path, tmp_path / "other", UNTIL)
        assert undisturbed.wait() == 0, undisturbed.said
        assert contents(tmp_path / "store") == contents(tmp_path / "other")
