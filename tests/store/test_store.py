"""A store notices results that were moved, copied or added to."""

import shutil

import pytest

from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.artifact import Artifact
from unmdpo.store.store import Store


@pytest.fixture
def made(tmp_path):
    """Two finished results of one kind, each with a folder of files."""
    store = Store(tmp_path)

    def make(key):
        def work(folder):
            (folder / "model").mkdir()
            (folder / "model" / "weights").write_text(key)
            return {}

        return store.make(f"policy/{key}", {"kind": "policy", "key": key, "name": f"policy[{key}]"}, work)

    return make("a"), make("b")


def test_exchanged_results_are_noticed_when_they_are_read(made, tmp_path):
    a, b = made
    a.path.rename(tmp_path / "aside")
    b.path.rename(a.path)
    (tmp_path / "aside").rename(b.path)
    for here, there in (("a", "b"), ("b", "a")):
        artifact = Store(tmp_path).find(f"policy/{here}")
        assert artifact.damage() == ["manifest.json"]
        with pytest.raises(UserError, match=rf"a result of policy\[{there}\] was moved or copied here; .*rebuilds it"):
            artifact.file("model")
        assert Store(tmp_path).find(f"policy/{here}") is None


def test_a_result_that_was_copied_over_another(made, tmp_path):
    a, b = made
    shutil.rmtree(b.path)
    shutil.copytree(a.path, b.path)
    assert Store(tmp_path).find("policy/a").file("model/weights").read_text() == "a"
    with pytest.raises(UserError, match="was moved or copied here"):
        Store(tmp_path).find("policy/b").file("model")


def test_what_was_added_is_reported_and_nothing_is_lost(made):
    """Transformers would read an adapter that lies beside the weights, and a policy would give other answers."""
    added = made[0].path / "model" / "adapter_config.json"
    added.write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config\.json: this was added to a finished result; remove it"):
        made[0].file("model")
    added.unlink()
    assert (made[0].file("model") / "weights").read_text() == "a"


def test_work_on_what_is_finished_is_removed_by_the_next_run(done, tmp_path):
    """As a kill just after the rename leaves it."""
    shutil.copytree(done.store.root, tmp_path / "store")
    store = Store(tmp_path / "store")
    place = done.stages["policy[dpo]"].place
    left, begun = (store.root / "work" / key for key in (place.rpartition("/")[2], "of-somebody-else"))
    for folder in (left, begun):
        (folder / "state").mkdir(parents=True)
    execute(open_run(done.recipe, store))
    assert not left.exists()
    assert begun.exists()


def test_a_file_that_changed_at_equal_size_is_read_again(tmp_path):
    store = Store(tmp_path)
    made = store.make(
        "kind/key", {"kind": "kind", "key": "key"}, lambda folder: (folder / "a").write_text("one") and {}
    )
    assert made.file("a").read_text() == "one"
    made.file("a").write_text("two")
    with pytest.raises(UserError, match="is not what was written"):
        Artifact(made.path).file("a")


def test_what_is_being_removed_no_longer_counts(tmp_path, monkeypatch):
    def killed(folder, **how):
        raise KeyboardInterrupt

    store = Store(tmp_path)
    store.make("kind/key", {"kind": "kind", "key": "key"}, lambda folder: (folder / "a").write_text("one") and {})
    monkeypatch.setattr("unmdpo.store.store.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        store.remove("kind/key")
    assert store.find("kind/key") is None
