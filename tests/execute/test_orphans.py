"""Processes end with the command that started them, and a command that is told to stop stops."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.worlds.faults import LINE, small_recipe, two_ranks, wait_for_training
from tests.worlds.pipeline import recipe, world
from unmdpo.core.errors import Stopped
from unmdpo.engine.inference.endpoints import as_they_arrive
from unmdpo.execute.local import StopSignal

START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from unmdpo.cli import main; main()"


def started(path, store, *options, **more):
    command = [sys.executable, "-c", START, "run", str(path), "--store", str(store), *options]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen(command, **pipes, **more)


def session(leader):
    """Process ids in the session of a command, itself included."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def until(true, seconds=100):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def busy(store, count=1):
    return lambda: len(list((store / "work").glob("*/result/metrics.jsonl"))) >= count


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_workers_end_with_a_command_that_was_killed(tmp_path):
    """Though they are in the middle of a stage."""
    training = {"updates": 100_000, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
    path = small_recipe(tmp_path, training=training, pilots={"folds": 2, "updates": 100_000}, compute={})
    command = started(path, tmp_path / "store", "--jobs", "2")
    until(busy(tmp_path / "store", 2))
    assert len(session(command.pid)) > 3
    command.kill()
    command.stderr.close()
    command.wait()
    until(lambda: session(command.pid) == [])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_runs_of_a_sweep_end_with_it(tmp_path):
    words = ["length", "--seeds", "2", "--jobs", "2", "--folder", str(tmp_path)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    command = subprocess.Popen([sys.executable, "-m", "benchmarks.lab", *words], **pipes)
    until(lambda: [*(tmp_path / "store" / "work").glob("*/result/metrics.jsonl")])
    command.kill()
    command.wait()
    until(lambda: session(command.pid) == [])


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_ranks_end_with_a_command_that_was_killed(tmp_path):
    command = started(two_ranks(tmp_path, 5), tmp_path / "store", "--until", "pilot[0]", "--jobs", "1")
    wait_for_training(tmp_path)
    command.kill()
    command.stderr.close()
    command.wait()
    until(lambda: session(command.pid) == [])


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "second"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM")])
def test_stopped_twice_says_one_line(tmp_path, first, second):
    path = small_recipe(tmp_path, training={"updates": 100_000, "batch": 8, "learning_rate": 1e-3, "warmup": 1})
    command = started(path, tmp_path / "store", "--jobs", "2")
    until(busy(tmp_path / "store"))
    command.send_signal(signal.Signals[first])
    time.sleep(0.01)
    command.send_signal(signal.Signals[second])
    _, said = command.communicate(timeout=300)
    assert command.returncode in (128 + signal.Signals[first], 128 + signal.Signals[second]), said
    lines = [line for line in said.splitlines() if not line.startswith("[")]
    assert lines in ([LINE], [LINE.replace("stopped;", "stopped immediately;")]), said
    until(lambda: session(command.pid) == [])


def test_a_worker_is_interrupted_once_and_only_in_a_stage():
    before = signal.getsignal(signal.SIGTERM)
    try:
        asked, left = StopSignal(), []

        def stage():
            with asked.interrupts():
                try:
                    signal.raise_signal(signal.SIGTERM)
                finally:
                    signal.raise_signal(signal.SIGTERM)  # while it writes its checkpoint
                    left.append("in order")

        with pytest.raises(Stopped):
            stage()
        assert left == ["in order"]
        asked = StopSignal()
        signal.raise_signal(signal.SIGTERM)  # while it waits for something to do, or ends
        with pytest.raises(Stopped), asked.interrupts():
            pytest.fail("a stage was started that would not be stopped")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.timeout(900)
def test_a_server_that_never_answers_can_be_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = []
        threading.Thread(target=lambda: accepted.append(server.accept()), daemon=True).start()
        endpoint = {"endpoint": f"http://127.0.0.1:{server.getsockname()[1]}/v1", "model": "m"}
        answering = {"panels": {"one": {"size": 3, "seed": 1}}, "answers": {"hosted": endpoint}, "baseline": "dpo"}
        judge = {"judge": {"function": "tests.worlds.judges:longest"}}
        path = tmp_path / "recipe.yaml"
        path.write_text(recipe(world(tmp_path), evaluation=answering | judge).to_yaml())
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        command = started(
            path, tmp_path / "store", "--until", "generation[hosted,one]", "--jobs", "1", env=environment
        )
        until(lambda: accepted or command.poll() is not None)
        command.send_signal(signal.SIGTERM)
        _, said = command.communicate(timeout=60)
        assert command.returncode == 128 + signal.SIGTERM, said
        assert said.splitlines()[-1] == LINE
        accepted[0][0].close()


def test_answers_as_they_arrive():
    assert sorted(as_they_arrive([3, 1, 2], lambda one: one * 10, 2)) == [(0, 30), (1, 10), (2, 20)]
    assert list(as_they_arrive([], lambda one: one, 2)) == []

    def failing(one):
        if one == 5:
            raise ValueError("no")
        return one

    got, asked = [], as_they_arrive(range(100), failing, 1)
    with pytest.raises(ValueError, match="no"):
        got.extend(asked)
    assert got == [(place, place) for place in range(5)]  # nothing new is asked


def test_whoever_stops_waits_for_nothing():
    hung = threading.Event()

    def ask(one):
        if one:
            hung.wait()
        return one

    began = time.monotonic()
    asked = as_they_arrive([0, 1, 1], ask, 3)
    assert next(asked) == (0, 0)
    with pytest.raises(Stopped):
        asked.throw(Stopped(signal.SIGTERM))
    assert time.monotonic() - began < 60
    hung.set()
