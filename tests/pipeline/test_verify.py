"""`verify` finds changed bytes and wrong numbers."""

import json
import shutil

import pytest

from tests.worlds.pipeline import problems, recipe
from unmdpo.files import file_names
from unmdpo.pipeline.artifacts import SUMMARY
from unmdpo.pipeline.executors import execute
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.store import Store
from unmdpo.pipeline.verify import verify

pytestmark = pytest.mark.xdist_group("pipeline")  # they share one small world


def test_only_some_policies_may_be_selected(done, folder):
    """Both ways to say it agree: the summary's and the check's."""
    among = ["dpo", "ulnm-wr"]
    evaluation = done.recipe.evaluation.model_copy(update={"selected_among": among})
    run = execute(open_run(done.recipe.model_copy(update={"evaluation": evaluation}), done.store))
    assert all(panel["selected"] in (None, *among) for panel in run.summary.values())
    assert problems(run) == []


def test_one_changed_byte_anywhere_is_found(done, folder):
    """In a result of every kind; `make soak` harms every file."""
    for name in {stage.kind.name: name for name, stage in done.stages.items()}.values():
        artifact = done.artifact(name)
        for file in file_names(artifact.path):
            path = artifact.path / file
            before = path.read_bytes()
            place = len(before) // 2
            path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
            fresh = open_run(recipe(folder), Store(folder / "store"))
            found = next((finding for finding in verify(fresh) if finding.problem), None)
            path.write_bytes(before)
            assert found is not None, path
            assert found.stage == name
    assert problems(done) == []


def test_wrong_numbers_in_the_summary_are_found(done, folder):
    store = Store(folder / "other")
    shutil.copytree(folder / "store", folder / "other", dirs_exist_ok=True)
    run = open_run(recipe(folder), store)
    artifact = run.artifact("summary")
    report = SUMMARY.load(artifact)
    report["one"]["against"]["initial"]["dpo"]["win_rate"]["low"] += 1
    (artifact.path / "summary.json").write_text(json.dumps(report))
    assert [finding.what for finding in problems(run)] == ["files", "dpo against initial on one"]
    report = SUMMARY.load(done.artifact("summary"))
    domain = next(iter(report["two"]["by_domain"]["unm-wr"]))
    report["two"]["by_domain"]["unm-wr"][domain]["reward_difference"]["high"] += 0.001
    report["two"]["selected"] = "nobody"
    (artifact.path / "summary.json").write_text(json.dumps(report))
    found = [finding.what for finding in problems(open_run(recipe(folder), store))]
    assert found == ["files", f"unm-wr in {domain} on two", "selection on two"]


@pytest.mark.parametrize("file", ["panel/*/panel.json", "generation/*/generations.jsonl", "judgement/*/scores.jsonl"])
def test_a_file_that_is_gone_is_one_finding_among_others(done, tmp_path, file):
    shutil.copytree(done.store.root, tmp_path / "store")
    lost = next((tmp_path / "store" / "artifacts").glob(file))
    lost.unlink()
    problems = [finding for finding in verify(open_run(done.recipe, Store(tmp_path / "store"))) if finding.problem]
    assert any(lost.name in finding.problem for finding in problems if finding.what == "files")
    assert any(finding.stage == "summary" for finding in problems)
