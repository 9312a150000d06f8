"""Ctrl-C at a terminal, where every process of the command gets the signal."""

import os
import pty
import select
import sys
import time

import pytest

from tests.worlds.pipeline import recipe

LONG = {"updates": 3000, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
PATIENCE = 240


def interrupted(arguments, when):
    """Types Ctrl-C when it is time by what the terminal shows; returns the exit code and all that was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "unmdpo", *arguments])
    shown, typed, deadline = b"", False, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the terminal is closed: everyone has left
                break
        if not typed and when(shown.decode("utf-8", "replace")):
            typed = bool(os.write(terminal, b"\x03"))
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode("utf-8", "replace")


@pytest.mark.soak  # tests of single signals are quicker
@pytest.mark.parametrize(("jobs", "compute"), [(1, {}), (3, {}), (1, {"ranks": 2})])
def test_one_line_and_what_was_done_is_kept(folder, tmp_path, jobs, compute):
    file = tmp_path / "small.yaml"
    file.write_text(recipe(folder, training=LONG, pilots={"folds": 2, "updates": 3000}, compute=compute).to_yaml())
    words = ["run", str(file), "--store", str(tmp_path / "store"), "--jobs", str(jobs)]
    check(*interrupted(words, lambda shown: "/3000 · loss" in shown), tmp_path / "store")


def check(code, shown, store):
    assert code == 130, shown[-2000:]
    assert "Traceback" not in shown
    assert shown.count("stopped; finished work is kept") == 1
    assert [*store.rglob("checkpoints/*")], "the pilot's last update was not saved"


@pytest.mark.soak
def test_the_same_on_ray(folder, tmp_path):
    pytest.importorskip("ray")
    file, store = tmp_path / "small.yaml", tmp_path / "store"
    file.write_text(recipe(folder, training=LONG, pilots={"folds": 2, "updates": 3000}).to_yaml())
    words = ["run", str(file), "--store", str(store), "--executor", "ray"]

    def training(shown):  # bars on Ray do not say how far a stage is
        return any(log.stat().st_size for log in store.glob("work/*/*/metrics.jsonl"))

    check(*interrupted(words, training), store)
