"""One of two ranks is killed: the job ends and says so, and the same command continues."""

import signal

import pytest

from tests.worlds.faults import UNTIL, Command, contents, loses_a_rank

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1800)]  # enough even on a busy machine


def test_a_killed_rank_is_reported_and_the_run_goes_on(tmp_path):
    path = loses_a_rank(tmp_path, signal.SIGKILL, minutes=30)
    undisturbed = Command(path, tmp_path / "other", UNTIL)
    assert undisturbed.wait() == 0, undisturbed.said
    assert contents(tmp_path / "store") == contents(tmp_path / "other")
