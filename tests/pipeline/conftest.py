"""One small world and one finished run, shared by all pipeline tests in a process."""

import pytest

from tests.worlds.pipeline import recipe, world
from unmdpo.pipeline.executors import execute
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.store import Store


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def done(folder):
    return execute(open_run(recipe(folder), Store(folder / "store")))
