"""Worker processes on a GPU."""

import multiprocessing

import pytest
import torch

from unmdpo.core.processes import fork_server
from unmdpo.execute.gpu_scheduler import gpu_memory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_fork_of_what_is_imported_can_use_the_gpus():
    """If this fails after a library was updated: that one asks about GPUs when it is imported, and every worker takes
    its time."""
    assert gpu_memory(fork_server("unmdpo.execute.workers"), {})


def test_so_can_a_process_from_nothing():
    free, total = gpu_memory(multiprocessing.get_context("spawn"), {})[0]
    assert 0 < free <= total
