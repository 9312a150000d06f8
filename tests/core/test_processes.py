"""How processes of ours are set up."""

import os
import subprocess
import sys

import pytest

from unmdpo.cli.run import WORKERS
from unmdpo.core.processes import cores, fork_server
from unmdpo.execute import local

SHOW = "import os, sys; sys.argv = ['unmdpo', '--version']; from unmdpo.cli import main\n"
SHOW += "try: main()\nexcept SystemExit: print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("chosen", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_threads_that_wait_soon_sleep_unless_the_user_says_otherwise(chosen, expected):
    plain = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", SHOW], env=plain | chosen, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == expected


def test_so_do_those_of_workers():
    with fork_server(WORKERS).Pool(1) as pool:
        assert pool.apply(os.getenv, ("GOMP_SPINCOUNT",)) == os.environ["GOMP_SPINCOUNT"]


def test_the_command_lets_the_server_import_what_workers_are():
    """A name that leads nowhere would not be noticed: every worker would import all by itself, and take its time."""
    assert local.__name__ == WORKERS


def test_cores_are_counted_where_the_system_does_not_say(monkeypatch):
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores() == os.cpu_count()
