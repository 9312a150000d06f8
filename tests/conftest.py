"""Set up for every test: no network, one thread, repeatable Hypothesis runs, and marks by folder."""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # set before anything reads it: tests need no network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per pytest worker, and in the processes that it starts
torch.set_num_threads(1)  # here, where torch has already looked

from tests.worlds.pipeline import recipe, world  # noqa: E402 - after the environment is set
from unmdpo.execute import execute  # noqa: E402
from unmdpo.results.run import open_run  # noqa: E402
from unmdpo.store.store import Store  # noqa: E402

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")

HERE = Path(__file__).parent
MARKED_FOLDERS = ("gpu", "soak", "fuzz")


def pytest_collection_modifyitems(items):
    """Marks the tests in these folders; those that need a GPU are skipped without one."""
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if folder == "gpu" and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture
def write(tmp_path: Path):
    """Writes rows to a `.jsonl` or `.jsonl.gz` file and returns its path as text."""

    def write_rows(rows, name="data.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return str(path)

    return write_rows


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A small world: a model and data."""
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def done(folder):
    """A finished run, shared by all tests of a process that only read it."""
    return execute(open_run(recipe(folder), Store(folder / "store")))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A Ray cluster on this machine; yields the file that a test's worker writes when it has died once."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so; as our executor starts one
    import ray

    marker = tmp_path_factory.mktemp("marker") / "died"
    root = str(Path(__file__).parents[1])
    environment = {"UNMDPO_TEST_MARKER": str(marker), "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    ray.init(
        num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20,
        runtime_env={"env_vars": environment},
    )  # fmt: skip
    yield marker
    ray.shutdown()
