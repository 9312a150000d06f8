"""Ctrl-C and SIGTERM: the current update finishes, its checkpoint is written, and the next run continues from it."""

import re
import signal
import subprocess
import sys
import time

import pytest

from tests.worlds.pipeline import recipe, world
from unmdpo.engine.training.loop import StopRequests
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

COMMAND = [sys.executable, "-c", "from unmdpo.cli import main; main()", "run"]
TRAINING = {"updates": 80, "batch": 8, "learning_rate": 1e-3, "warmup": 1}


@pytest.fixture
def interruptible():
    """A shell's background jobs ignore SIGINT, and the tests may run as one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_signals_are_noted_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.asked == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # a second time: stops at once
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGINT, "1"), pytest.param(signal.SIGTERM, "2", marks=pytest.mark.soak)]
)
def test_a_stopped_run_keeps_its_update_and_goes_on(tmp_path, number, jobs):
    described = recipe(world(tmp_path), training=TRAINING)
    store, path = tmp_path / "store", tmp_path / "recipe.yaml"
    path.write_text(described.to_yaml())
    command = [*COMMAND, str(path), "--store", str(store), "--until", "policy[dpo]", "--jobs", jobs]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    place = open_run(described, Store(store)).stages["policy[dpo]"].key
    metrics = store / "work" / place / "result" / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert started.poll() is None, started.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started.send_signal(number)
    _, said = started.communicate(timeout=600)
    assert started.returncode == 128 + number, said
    assert "the same command continues from there" in said
    assert ("stopping after this update" if jobs == "1" else "stopping: running stages save") in said
    assert "Traceback" not in said
    written = metrics.read_text().count("\n")
    (newest,) = (store / "work" / place / "state" / "checkpoints").glob("*")
    assert int(re.search(r"\d+", newest.name).group()) == written  # nothing was lost
    finished = execute(open_run(described, Store(store)), until="policy[dpo]")
    undisturbed = execute(open_run(described, Store(tmp_path / "other")), until="policy[dpo]")
    assert finished.artifact("policy[dpo]").manifest["files"] == {
        **undisturbed.artifact("policy[dpo]").manifest["files"],
        "throughput.log": finished.artifact("policy[dpo]").manifest["files"]["throughput.log"],
    }
