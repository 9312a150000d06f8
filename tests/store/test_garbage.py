"""Artifacts and work that no run uses."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.core.files import check_outside_stores
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.artifact import Artifact
from unmdpo.store.runs import remove_unused, unused
from unmdpo.store.store import Store


def test_what_no_run_refers_to_is_found(folder, tmp_path):
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(folder), store), until="encoded")
    assert unused(store) == {}
    shutil.rmtree(run.folder)
    (store.root / "artifacts" / "comparisons" / ".DS_Store").write_bytes(b"left by a file browser")
    found = unused(store)
    assert found.keys() == {run.stages[name].place for name in ("comparisons", "encoded")}
    assert all(size > 0 for size in found.values())
    removed = CliRunner().invoke(app, ["rm", "--unused", "--yes", "--store", str(store.root)])
    assert "2 results of no run removed" in removed.output
    assert unused(store) == {}


def test_what_is_damaged_keeps_its_files_until_it_is_removed(folder, tmp_path):
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(folder), store), until="comparisons")
    damaged = run.store.root / "artifacts" / run.stages["comparisons"].place / "comparisons.parquet"
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    with pytest.raises(UserError, match=r"damaged: comparisons\.parquet is not what was written; it is kept as"):
        Artifact(damaged.parent).file(damaged.name)
    (aside,) = (store.root / "artifacts" / "comparisons").glob("*.damaged")
    assert (aside / "comparisons.parquet").is_file()
    assert run.find(run.stages["comparisons"]) is None
    assert [*unused(store)] == [f"comparisons/{aside.name}"]
    CliRunner().invoke(app, ["rm", "--unused", "--yes", "--store", str(store.root)])
    assert not aside.exists()


def test_what_a_run_needs_again_meanwhile_is_kept(folder, tmp_path):
    """It was listed as unused, and a run began before it was removed."""
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(folder), store), until="encoded")
    shutil.rmtree(run.folder)
    listed = [*unused(store)]
    assert len(listed) == 2
    run.record()
    assert remove_unused(store, listed) == []
    assert run.finished.keys() == {"comparisons", "encoded"}


def test_work_is_freed_once_nobody_goes_on_with_it(folder, tmp_path):
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(folder), store), until="comparisons")
    begun, finished, strange = run.stages["encoded"].key, run.stages["comparisons"].key, "0" * 32
    for key in (begun, finished, strange):
        state = store.root / "work" / key / "state"
        state.mkdir(parents=True)
        (state / "half").write_bytes(b"x" * 100)
    assert unused(store) == {f"work/{strange}": 100, f"work/{finished}": 100}
    with store.lock(strange):
        assert remove_unused(store, [*unused(store)]) == [f"work/{finished}"]  # the other is being worked on
    assert remove_unused(store, [*unused(store)]) == [f"work/{strange}"]
    assert [path.name for path in (store.root / "work").iterdir()] == [begun]


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_no_run(folder, tmp_path, name):
    store = tmp_path / "store"
    execute(open_run(recipe(folder), Store(store)), until="comparisons")
    done = CliRunner().invoke(app, ["rm", name, "--yes", "--store", str(store)])
    assert (done.exit_code, "name a run" in done.output) == (2, True)
    assert len([*(store / "runs").glob("*/run.json")]) == 1


def test_nothing_is_written_among_results(folder, tmp_path):
    store = tmp_path / "store"
    run = execute(open_run(recipe(folder), Store(store)), until="comparisons")
    inside = run.artifact("comparisons").path / "mine"
    with pytest.raises(UserError, match="lies in the store"):
        check_outside_stores(inside)
    check_outside_stores(store / "mine")


def test_nothing_is_removed_behind_a_link(folder, tmp_path):
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(folder), store), until="comparisons")
    shutil.rmtree(run.folder)
    (store.root / "artifacts" / "comparisons").rename(tmp_path / "elsewhere")
    (store.root / "artifacts" / "comparisons").symlink_to(tmp_path / "elsewhere")
    assert unused(store) == {}
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


@pytest.mark.parametrize("text", ["[]", "{", "null", '{"stages": []}', '{"stages": {"a": 1}}'])
def test_a_record_that_cannot_be_read_keeps_everything(folder, tmp_path, text):
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(folder), store), until="comparisons")
    (run.folder / "run.json").write_text(text)
    with pytest.raises(UserError, match="cannot be read, so nothing is listed as unused"):
        unused(store)


def test_what_a_run_only_borrows_is_kept(tmp_path):
    """A scale of a run whose own record is gone, but that another run names as an input."""
    store = Store(tmp_path)
    for place in ("scale/borrowed", "policy/own"):
        kind, key = place.split("/")
        store.make(place, {"kind": kind, "key": key}, lambda folder: (folder / "a").write_text("x") and {})
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    stages = {"policy[a]": {"place": "policy/own", "inputs": {"scale": "scale/borrowed"}}}
    (tmp_path / "runs" / "mine" / "run.json").write_text(json.dumps({"stages": stages}))
    assert unused(store) == {}
