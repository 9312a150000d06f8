"""Finished means finished for the inputs that lie there: rebuilt results, forced stages, shared stores."""

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import events, judged_by_function, problems, recipe, world
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.engine.hub import commit_of
from unmdpo.execute import execute
from unmdpo.recipe import Recipe
from unmdpo.results.run import open_run, read_run
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared import base
from unmdpo.store import store as store_module
from unmdpo.store.journal import Journal
from unmdpo.store.runs import unused
from unmdpo.store.store import Store, state_of

JUDGE = """import os

def judge(prompts, texts):
    return [len(text) * float(os.environ.get("UNMDPO_TEST_FACTOR", "1")) for text in texts]
"""


@pytest.fixture
def moody(tmp_path, monkeypatch):
    """A world with a judge that says something else when asked again, as servers do."""
    folder = world(tmp_path)
    (folder / "moody.py").write_text(JUDGE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def moody_run(folder, **changes):
    return open_run(judged_by_function(folder, "moody:judge", **changes), Store(folder / "store"))


def finished(run, **how):
    return [name for name, what in events(run, **how) if what == "finished"]


def test_what_was_made_from_other_answers_is_made_again(moody, monkeypatch):
    run = execute(moody_run(moody))
    judged = run.artifact("judgement[dpo,one]").digest
    monkeypatch.setenv("UNMDPO_TEST_FACTOR", "-3")
    artifact = run.store.root / "artifacts" / run.stages["judgement[dpo,one]"].place
    (artifact / "scores.jsonl").write_text("damaged")
    with pytest.raises(UserError, match="damaged"):
        run.generations("dpo", "one")
    again = moody_run(moody)
    assert "summary" not in again.finished  # although its own files are whole
    assert finished(again) == ["judgement[dpo,one]", "summary"]
    assert again.artifact("judgement[dpo,one]").digest != judged
    assert not problems(again)


def test_a_forced_stage_that_comes_out_otherwise_reaches_other_runs(moody, monkeypatch):
    one, two = moody_run(moody), moody_run(moody, name="two")
    execute(one)
    assert finished(two) == []
    monkeypatch.setenv("UNMDPO_TEST_FACTOR", "-3")
    assert finished(one, force=["judgement[dpo,one]"]) == ["judgement[dpo,one]", "summary"]
    other = read_run(two.store, two.folder)
    assert "summary" in other.finished  # it is shared, and was made again
    assert not problems(other)


def test_a_table_of_another_run_says_that_its_inputs_were_made_again(moody, monkeypatch):
    """The other run has a summary of its own, of the answers that both share."""
    one = moody_run(moody)
    evaluation = json.loads(one.recipe.model_dump_json())["evaluation"]
    primary = evaluation | {"panels": evaluation["panels"] | {"more": {"size": 1, "seed": 2}}}
    described = one.recipe.model_dump(mode="json") | {"name": "two", "evaluation": primary}
    two = execute(open_run(Recipe.model_validate(described), one.store))
    execute(one)
    monkeypatch.setenv("UNMDPO_TEST_FACTOR", "-3")
    execute(one, force=["judgement[dpo,one]"])
    said = CliRunner().invoke(app, ["report", str(two.folder)])
    assert said.exit_code == 0
    with pytest.raises(UserError, match="'summary' was made from other inputs than lie there now: `unmdpo run`"):
        _ = read_run(two.store, two.folder).summary
    assert finished(open_run(two.recipe, two.store)) == ["summary"]


def test_a_stage_that_is_forced_in_vain_keeps_what_was_there(moody, monkeypatch):
    """The server is down, and the answers were paid for."""
    run = execute(moody_run(moody))
    before = run.artifact("judgement[dpo,one]").digest
    (moody / "moody.py").write_text(JUDGE)  # the same content, so the same key
    monkeypatch.setenv("UNMDPO_TEST_FACTOR", "down")
    with pytest.raises(UserError, match="down"):
        execute(moody_run(moody), force=["judgement[dpo,one]"])
    monkeypatch.delenv("UNMDPO_TEST_FACTOR")
    assert Store(run.store.root).find(run.stages["judgement[dpo,one]"].place).digest == before
    assert finished(moody_run(moody)) == []


def test_work_on_other_inputs_is_not_gone_on_with(tmp_path):
    """A journal of scores holds nothing about answers that were made again."""
    store = Store(tmp_path)

    def attempt(inputs, fail):
        def work(folder):
            journal = Journal(state_of(folder) / "scores.jsonl")
            begun = list(journal.values)
            journal.add("scored")
            if fail:
                raise UserError("stopped")
            (folder / "begun").write_text(str(len(begun)))
            return {}

        described = {"kind": "k", "key": "a", "inputs": {"answers": {"digest": inputs}}}
        return store.make("k/a", described, work)

    for inputs in ("one", "one", "two"):
        with pytest.raises(UserError, match="stopped"):
            attempt(inputs, fail=True)
    assert attempt("two", fail=False).file("begun").read_text() == "1"
    assert [*(tmp_path / "work").iterdir()] == []


def test_one_recipe_in_two_folders_is_two_runs(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    for name, prompts in (("here", 20), ("there", 28)):
        folder = world(tmp_path / name)
        (folder / "data.jsonl").write_text("".join((folder / "data.jsonl").read_text().splitlines(True)[:prompts]))
    relative = recipe(Path(), scales={}, policies={"dpo": {"objective": "dpo"}}, evaluation=None, pilots={"folds": 2})
    runs = []
    for name in ("here", "there"):
        monkeypatch.chdir(tmp_path / name)
        runs.append(execute(open_run(relative, store), until="comparisons"))
    assert runs[0].folder != runs[1].folder
    assert all((run.folder / "run.json").is_file() for run in runs)
    assert unused(store) == {}
    assert [len(read_run(store, run.folder).comparisons()) for run in runs] == [len(run.comparisons()) for run in runs]


def test_a_run_is_read_without_its_model_and_data(tmp_path):
    run = execute(open_run(recipe(world(tmp_path / "world")), Store(tmp_path / "store")))
    shutil.copytree(tmp_path / "store", tmp_path / "copied")
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tmp_path / "world")
    place = ["--store", str(tmp_path / "copied")]
    for words in (
        ["report", run.folder.name],
        ["table", run.folder.name],
        ["verify", run.folder.name],
        ["export", run.folder.name, "dpo", str(tmp_path / "exported")],
        ["scale", run.folder.name, "seq", "--out", str(tmp_path / "q.parquet")],
    ):
        said = CliRunner().invoke(app, [*words, *place])
        assert said.exit_code == 0, said.output
    assert (tmp_path / "exported" / "model.safetensors").is_file()


def test_code_that_changes_during_a_run_stops_it(folder, tmp_path, monkeypatch):
    run = open_run(recipe(folder), Store(tmp_path))
    monkeypatch.setattr(base, "code_digest", lambda module: "edited")
    with pytest.raises(UserError, match=r"the code of unmdpo is not what it was when this run began.*not kept"):
        execute(run, until="comparisons")
    assert run.finished == {}


def test_libraries_that_differ_within_a_table_are_said(folder, tmp_path, monkeypatch):
    run = execute(open_run(recipe(folder, scales={}, policies=TWO), Store(tmp_path)), until="policy[dpo]")
    assert run.world_differences == []
    usual = store_module.versions()
    monkeypatch.setattr(store_module, "versions", lambda: usual | {"transformers": "99.1"})
    execute(run)
    (trained,) = [line for line in run.world_differences if "trained" in line]
    assert f"dpo was trained with transformers {usual['transformers']}" in trained
    assert "simpo was trained with transformers 99.1" in trained
    for command in (["run", str(run.folder)], ["table", str(run.folder)], ["report", str(run.folder)]):
        said = CliRunner().invoke(app, [*command, "--store", str(tmp_path)])
        assert said.exit_code == 0, said.output
        shown = said.output if command[0] != "report" else (run.folder / "report.html").read_text()
        assert "transformers 99.1" in " ".join(shown.split())


TWO = {"dpo": {"objective": "dpo"}, "simpo": {"objective": "simpo"}}


# --- Names on the Hub -----------------------------------------------------------------------------


@pytest.fixture
def cache(folder, tmp_path, monkeypatch):
    """A cached model of the Hub with two commits, of which `main` is the first."""
    commits = {name: name * 40 for name in "ab"}
    repo = tmp_path / "hub" / "models--owner--tiny"
    for commit in commits.values():
        shutil.copytree(folder / "model", repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    main = repo / "refs" / "main"
    main.write_text(commits["a"])
    weights = repo / "snapshots" / commits["b"] / "generation_config.json"
    weights.write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    commit_of.cache_clear()
    yield main, commits
    commit_of.cache_clear()


def from_the_hub(folder):
    return recipe(
        folder, model={"path": "owner/tiny"}, scales={}, policies={"dpo": {"objective": "dpo"}}, evaluation=None
    )


def test_a_branch_that_moves_means_what_it_meant_when_the_run_began(folder, cache, tmp_path):
    main, commits = cache
    store = Store(tmp_path / "store")
    run = open_run(from_the_hub(folder), store)
    assert "owner/tiny@main is aaaaaaaaaaaa in the cache of this machine" in run.remarks[0]
    execute(run, until="reference")
    assert run.stages["reference"].settings.model.revision == commits["a"]
    main.write_text(commits["b"])
    commit_of.cache_clear()
    again = open_run(from_the_hub(folder), store)
    assert "as when this run began (--update asks again)" in again.remarks[0]
    assert again.stages["policy[dpo]"].settings.model.revision == commits["a"]
    made = finished(again)
    assert "reference" not in made
    assert made[-1] == "policy[dpo]"
    assert not problems(again)
    updated = open_run(from_the_hub(folder), store, update=True)
    assert updated.stages["reference"].settings.model.revision == commits["b"]
    assert updated.stages["reference"].key != run.stages["reference"].key
    assert commits["a"] in json.dumps(json.loads((run.folder / "run.json").read_text())["inputs"])


def test_the_report_names_the_commit(folder, cache, tmp_path):
    run = execute(open_run(from_the_hub(folder), Store(tmp_path)), until="encoded")
    said = CliRunner().invoke(app, ["report", str(run.folder)])
    assert said.exit_code == 0, said.output
    assert "owner/tiny@main aaaaaaaaaaaa" in (run.folder / "report.html").read_text()


def test_a_file_that_appears_after_the_run_began_is_noticed(folder, tmp_path):
    """Its stage's key says that nothing lay there."""
    evaluation = {"baseline": "dpo", "panels": {"one": {"size": 2, "path": str(tmp_path / "late.jsonl")}}}
    judge = {"function": "tests.worlds.judges:longest"}
    described = recipe(
        folder, scales={}, policies={"dpo": {"objective": "dpo"}}, evaluation=evaluation | {"judge": judge}
    )
    run = open_run(described, Store(tmp_path / "store"))
    run.make(run.stages["comparisons"], lambda text: None)
    (tmp_path / "late.jsonl").write_text('{"prompt": "w1"}\n{"prompt": "w2"}\n')
    with pytest.raises(UserError, match=r"late\.jsonl is not what it was when this run began"):
        run.make(run.stages["panel[one]"], lambda text: None)


def test_a_commit_and_the_branch_that_names_it_are_one_model(folder, cache, tmp_path):
    _, commits = cache
    by_branch = open_run(from_the_hub(folder), Store(tmp_path))
    described = from_the_hub(folder).model_dump(mode="json")
    described["model"]["revision"] = commits["a"]
    by_commit = open_run(Recipe.model_validate(described), Store(tmp_path))
    assert by_branch.stages["encoded"].key == by_commit.stages["encoded"].key


def test_the_process_of_a_stage_takes_everything_from_the_record(folder, tmp_path):
    """A worker neither hashes inputs nor asks the Hub."""
    run = open_run(recipe(folder), Store(tmp_path / "store"))
    run.store.prepare()
    run.record()
    os.sync()
    other = read_run(Store(tmp_path / "store"), run.folder)
    assert {name: stage.key for name, stage in other.stages.items()} == {
        name: stage.key for name, stage in run.stages.items()
    }
    assert isinstance(other, Pipeline)
    assert other.folder == run.folder
    assert run.with_microbatch(64).folder == run.folder  # after a try that ran out of memory, ranks open this record
