"""One of two ranks stops answering: the others give up after `compute.rank_minutes`."""

import signal

import pytest

from tests.worlds.faults import loses_a_rank

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1800)]


def test_a_hung_rank_is_reported_and_the_run_goes_on(tmp_path):
    loses_a_rank(tmp_path, signal.SIGSTOP, minutes=0.5)
