"""The service that lets processes share a GPU, with a stand-in for NVIDIA's command that notes how it is called."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unmdpo.execute.mps import PIPES, shared_gpus

COMMAND = """#!/bin/sh
if [ "$1" = -d ]; then said=start; else said=$(cat); fi
echo "$said $CUDA_MPS_PIPE_DIRECTORY ${CUDA_VISIBLE_DEVICES-all}" >> "$CALLS"
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """What the service was told so far."""
    command = tmp_path / "nvidia-cuda-mps-control"
    command.write_text(COMMAND)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv(PIPES, raising=False)
    (tmp_path / "calls").touch()
    return tmp_path / "calls"


def wait_for(calls, count):
    while len(calls.read_text().splitlines()) < count:
        time.sleep(0.02)
    return calls.read_text().splitlines()


def test_it_runs_as_long_as_it_is_needed(calls):
    with shared_gpus() as environment:
        assert wait_for(calls, 1) == [f"start {environment[PIPES]} all"]
    assert wait_for(calls, 2)[1] == f"quit -t 5 {environment[PIPES]} all"
    assert not Path(environment[PIPES]).exists()


def test_nothing_is_left_of_it_if_we_are_killed(calls):
    script = "from unmdpo.execute.mps import shared_gpus\nwith shared_gpus():\n    input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        wait_for(calls, 1)
        process.send_signal(signal.SIGKILL)
    assert wait_for(calls, 2)[1].startswith("quit")


def test_the_user_s_own_is_left_alone(calls, monkeypatch):
    monkeypatch.setenv(PIPES, "/elsewhere")
    with shared_gpus() as environment:
        assert environment == {}
    assert not calls.read_text()
