"""Checks of scales: a stage of its own that changes no other, told by `run`, `scale --check` and the report."""

import json

import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe
from unmdpo.cli import app
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data.table import prompt_of
from unmdpo.execute import execute
from unmdpo.report import write_report
from unmdpo.results.run import open_run
from unmdpo.store.store import Store


def test_every_scale_that_pilots_made_is_checked(done, tmp_path):
    found = done.check("seq")
    assert found.rows > 0
    assert 0 < found.chance <= 1
    assert done.artifact("check[ln]").manifest["notes"]["verdict"]
    page = write_report(done, tmp_path / "report.html").read_text("utf-8")
    assert "The scale seq: <b>" in page


def test_policies_do_not_wait_for_it(done):
    assert all("check" not in stage.inputs for stage in done.stages.values())


@pytest.mark.parametrize("estimator", ["ridge", pytest.param("auto", marks=pytest.mark.soak)])
def test_estimators_of_the_whole_embedding_run_and_predict(folder, tmp_path, estimator):
    scales = {"q": {"estimator": estimator, "length_normalized": True}}
    policies = {"unm": {"objective": "unm-wr", "scale": "q"}}
    run = open_run(recipe(folder, scales=scales, policies=policies, evaluation=None), Store(tmp_path / "store"))
    with pytest.warns(UnmdpoWarning, match="nothing beats q ≡ 1"):  # seventeen prompts of random words
        execute(run)
    fitted = run.scale("q")
    known = fitted.known()
    prompts = [prompt_of(text) for text in known["prompt"].to_pylist()]
    domains = dict(zip(known["prompt_hash"].to_pylist(), known["domain"].to_pylist(), strict=True))
    assert len(fitted.predict(prompts, domains)) == len(known)
    assert run.check("q").rows > 0


def test_scales_from_a_file(folder, tmp_path, done):
    known = done.scale("seq").known()
    pairs = [*zip(known["prompt_hash"].to_pylist(), known["q"].to_pylist(), strict=True)]
    path = tmp_path / "q.jsonl"

    def written(rows):
        path.write_text("".join(json.dumps({"prompt_hash": name, "q": q}) + "\n" for name, q in rows))
        scales = {"mine": {"estimator": "given", "settings": {"path": str(path)}}}
        policies = {"unm": {"objective": "unm-wr", "scale": "mine"}}
        return open_run(recipe(folder, scales=scales, policies=policies, evaluation=None), done.store)

    run = written(pairs)
    execute(run)
    again = dict(zip(*(run.scale("mine").known()[name].to_pylist() for name in ("prompt_hash", "q")), strict=True))
    assert again == pytest.approx(dict(pairs), rel=1e-5)
    assert written([(name, q + 0.5) for name, q in pairs]).stages["policy[unm]"].key != run.stages["policy[unm]"].key
    with pytest.raises(UserError, match="no q for 1 of"):
        execute(written(pairs[1:]))
    path.unlink()
    with pytest.raises(UserError, match=r"scales\.mine\.settings\.path"):
        execute(run)


def test_other_scales_are_not(folder, tmp_path):
    scales = {"one": {"estimator": "constant"}, "votes": {"estimator": "entropy"}, "joint": {"estimator": "joint"}}
    policies = {"dpo": {"objective": "dpo"}}
    run = open_run(recipe(folder, scales=scales, policies=policies, evaluation=None), Store(tmp_path / "store"))
    assert not any(name.startswith("check") for name in run.stages)


def test_it_is_said_on_request(done, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(done.recipe.to_yaml(), "utf-8")
    arguments = ["scale", str(path), "seq", "--check", "--store", str(done.store.root)]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert "scale seq: " in said.output
    assert "Of log q̂, each of these foresees by itself" in said.output
    missing = CliRunner().invoke(app, ["scale", str(path), "sec", "--check", "--store", str(done.store.root)])
    assert missing.exit_code == 2
    assert "did you mean 'seq'" in missing.output


def test_one_that_cannot_be_checked_is_refused(folder, tmp_path):
    made = recipe(folder, scales={"one": {"estimator": "constant"}}, policies={"dpo": {"objective": "dpo"}})
    store = Store(tmp_path / "store")
    execute(open_run(made, store), until="comparisons")
    path = tmp_path / "recipe.yaml"
    path.write_text(made.to_yaml(), "utf-8")
    said = CliRunner().invoke(app, ["scale", str(path), "one", "--check", "--store", str(store.root)])
    assert said.exit_code == 2
    assert "nothing can be held out" in said.output


def test_one_that_has_not_been_checked_yet(done, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(done.recipe.to_yaml(), "utf-8")
    store = str(tmp_path / "store")
    assert CliRunner().invoke(app, ["run", str(path), "--until", "comparisons", "--store", store]).exit_code == 0
    said = CliRunner().invoke(app, ["scale", str(path), "seq", "--check", "--store", store])
    assert said.exit_code == 2
    assert "--until 'check[seq]'" in said.output
