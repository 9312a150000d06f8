"""`verify` finds changed bytes and wrong numbers."""

import json
import shutil
from dataclasses import replace

import pytest

from tests.worlds.pipeline import problems, recipe
from unmdpo.core.files import file_names, sha256, with_seal, write_json
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.results.verify import verify
from unmdpo.stages import summary
from unmdpo.stages.shared.files import SUMMARY
from unmdpo.store.store import Store


def offered(job, monkeypatch):
    """Among whom a summary selects."""
    seen = set()
    monkeypatch.setattr(summary, "select", lambda outcomes: seen.update(outcomes))
    summary.summary_of(job)
    return seen


def test_only_some_policies_may_be_selected(done, folder, monkeypatch):
    """Both ways to say it agree: the summary's and the check's."""
    among = ["dpo", "ulnm-wr"]
    evaluation = done.recipe.evaluation.model_copy(update={"selected_among": among})
    run = execute(open_run(done.recipe.model_copy(update={"evaluation": evaluation}), done.store))
    assert all(panel["judges"][""]["selected"] in (None, *among) for panel in run.summary.values())
    allowed = []
    for one in ([], ["dpo"], ["unm-wr"]):
        settings = run.stages["summary"].settings.model_copy(update={"selected_among": one})
        stage = replace(run.stages["summary"], settings=settings)
        job = run.job(stage, run.folder, run.inputs_of(stage), str)
        allowed.append(offered(job, monkeypatch))
    everyone, *single = allowed
    assert single == [{"dpo"} & everyone, {"unm-wr"}]
    assert len(everyone) > 1
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


def rewrite_summary(artifact, change):
    """Changes numbers, and covers it up: checksums and the manifest's seal are made to fit."""
    report = SUMMARY.load(artifact)
    change(report)
    SUMMARY.save(artifact.path, report)
    manifest = json.loads((artifact.path / "manifest.json").read_text())
    path = artifact.path / "summary.json"
    manifest["files"]["summary.json"] = {"sha256": sha256(path), "bytes": path.stat().st_size}
    write_json(artifact.path / "manifest.json", with_seal(manifest))


def test_wrong_numbers_in_the_summary_are_found(done, tmp_path):
    shutil.copytree(done.store.root, tmp_path / "store")
    run = open_run(done.recipe, Store(tmp_path / "store"))
    domain = next(iter(done.summary["two"]["judges"][""]["by_domain"]["unm-wr"]))

    def change(report):
        report["one"]["judges"][""]["against"]["initial"]["dpo"]["win_rate"]["low"] += 1
        report["two"]["judges"][""]["by_domain"]["unm-wr"][domain]["reward_difference"]["high"] += 0.001
        report["two"]["judges"][""]["selected"] = "nobody"

    rewrite_summary(run.artifact("summary"), change)
    found = {finding.what for finding in problems(open_run(done.recipe, run.store))}
    assert found == {
        "one judges against initial dpo win_rate low",
        f"two judges by_domain unm-wr {domain} reward_difference high",
        "two judges selected",
    }


@pytest.mark.parametrize("file", ["panel/*/panel.json", "generation/*/generations.jsonl", "judgement/*/scores.jsonl"])
def test_a_file_that_is_gone_is_one_finding_among_others(done, tmp_path, file):
    shutil.copytree(done.store.root, tmp_path / "store")
    lost = next((tmp_path / "store" / "artifacts").glob(file))
    lost.unlink()
    problems = [finding for finding in verify(open_run(done.recipe, Store(tmp_path / "store"))) if finding.problem]
    assert any(lost.name in finding.problem for finding in problems if finding.what == "files")
    assert any(finding.stage == "summary" for finding in problems)


def test_an_input_that_was_made_again_with_other_contents_is_found(done, tmp_path):
    """Its key and checksums fit, but what needs it was made from something else."""
    shutil.copytree(done.store.root, tmp_path / "store")
    run = open_run(done.recipe, Store(tmp_path / "store"))
    place = run.artifact("generation[dpo,one]").path
    file = place / "generations.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"][file.name] = {"sha256": sha256(file), "bytes": file.stat().st_size}
    write_json(place / "manifest.json", with_seal(manifest))
    found = {(finding.stage, finding.what) for finding in problems(open_run(done.recipe, run.store))}
    assert ("judgement[dpo,one]", "input generation") in found
