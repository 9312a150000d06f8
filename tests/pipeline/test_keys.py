"""What is recomputed after a change, and what is not."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.pipeline import events, recipe
from unmdpo.catalog.estimators import ESTIMATORS
from unmdpo.errors import UserError
from unmdpo.pipeline.artifacts import POLICY_SCALE
from unmdpo.pipeline.executors import execute
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.store import Store

pytestmark = pytest.mark.xdist_group("pipeline")  # they share one small world


def keys(folder, **changes):
    run = open_run(recipe(folder, **changes), Store(folder / "store"))
    return {name: stage.key for name, stage in run.stages.items()}


def changed(folder, **changes):
    before, after = keys(folder), keys(folder, **changes)
    return {name.split("[")[0] for name in before if before[name] != after.get(name)}


def test_a_change_redoes_what_depends_on_it(folder):
    after_policies = {"policy", "generation", "judgement", "summary"}
    training = {"updates": 3, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
    assert changed(folder, training=training) == after_policies  # pilots have a separate budget
    assert changed(folder, compute={"token_budget": 128}) == set()
    assert changed(folder, pilots={"folds": 2, "updates": 3}) == {"pilot", "oof", "scale", "check", *after_policies}
    assert changed(folder, name="another", description="words") == set()
    without = keys(folder, evaluation=None)
    assert all(keys(folder)[name] == key for name, key in without.items())  # evaluating retrains nothing
    assert changed(folder, seed=1) == {"pilot", "oof", "scale", "check", *after_policies}


def test_a_revised_estimator_is_fitted_again_and_no_other(folder, monkeypatch):
    scales = {"seq": {"estimator": "pooled"}, "best": {"estimator": "auto"}}
    policies = {name: {"objective": "unm-wr", "scale": name} for name in scales}
    before = keys(folder, scales=scales, policies=policies, evaluation=None)
    monkeypatch.setitem(ESTIMATORS, "auto", replace(ESTIMATORS["auto"], revision=99))
    after = keys(folder, scales=scales, policies=policies, evaluation=None)
    assert {name for name in before if before[name] != after[name]} == {"scale[best]", "check[best]", "policy[best]"}


def test_a_changed_file_is_another_input(folder, tmp_path):
    shutil.copytree(folder / "model", tmp_path / "model")
    shutil.copy(folder / "data.jsonl", tmp_path / "data.jsonl")
    before = keys(tmp_path)
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write((folder / "data.jsonl").read_text().splitlines()[0] + "\n")
    after = keys(tmp_path)
    assert all(before[name] != after[name] for name in before)


def test_until_only_and_force(folder):
    store = Store(folder / "parts")
    run = open_run(recipe(folder), store)
    made = [name for name, what in events(run, until="oof") if what == "finished"]
    assert made == ["comparisons", "encoded", "reference", "pilot[0]", "pilot[1]", "oof"]
    with pytest.raises(UserError, match=r"'policy\[unm-wr\]' needs 'scale\[seq\]', which is not finished"):
        execute(run, only="policy[unm-wr]")
    assert ("pilot[1]", "finished") in events(run, until="oof", force=["pilot[1]"])
    assert events(run, only="pilot[*]") == [("pilot[0]", "cached"), ("pilot[1]", "cached")]
    forced = events(run, until="oof", force=["reference"])
    assert [name for name, what in forced if what == "finished"] == ["reference", "pilot[0]", "pilot[1]", "oof"]
    with pytest.raises(UserError, match=r"inputs of policy\[unm-wr\] are not finished"):
        execute(run, only="policy[unm-wr]", jobs=2)
    with pytest.raises(UserError, match="no stage 'polcy'; did you mean"):
        execute(run, until="polcy")


def test_a_scale_can_come_from_another_run(done, folder):
    borrowed = recipe(
        folder, name="borrower", scales={"seq": {"estimator": "pooled", "run": "small"}},
        policies={"dpo": {"objective": "dpo"}, "unm-ao": {"objective": "unm-ao", "scale": "seq"}},
        evaluation=None,
    )  # fmt: skip
    run = execute(open_run(borrowed, Store(folder / "store")))
    assert not any(name.startswith(("pilot", "scale")) for name in run.stages)
    digest = run.artifact("policy[unm-ao]").manifest["inputs"]["scale"]["digest"]
    assert digest == done.artifact("scale[seq]").digest
    other = recipe(folder, pilots={"folds": 2, "updates": 1}, evaluation=None)
    execute(open_run(other, Store(folder / "store")), until="scale[seq]")
    with pytest.raises(UserError, match=r"several runs 'small' have a scale 'seq'; name one: small-"):
        open_run(borrowed, Store(folder / "store"))
    scales = {"seq": {"estimator": "pooled", "run": "nobody"}, "ln": {"estimator": "constant"}}
    with pytest.raises(UserError, match="no finished run 'nobody'"):
        open_run(recipe(folder, scales=scales), Store(folder / "store"))


def test_an_edited_template_or_judge_is_another_input(folder, tmp_path, monkeypatch):
    template = tmp_path / "chat.jinja"
    template.write_text((folder / "model" / "chat_template.jinja").read_text())
    model = {"path": str(folder / "model"), "template": str(template)}
    before = keys(folder, model=model)
    template.write_text(template.read_text() + " ")
    assert keys(folder, model=model)["encoded"] != before["encoded"]
    (tmp_path / "my_judge.py").write_text("def score(p, r): return [0.0] * len(r)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    evaluation = {
        "baseline": "dpo", "panels": {"one": {"size": 2, "seed": 1}}, "judge": {"function": "my_judge:score"},
    }  # fmt: skip
    before = keys(folder, evaluation=evaluation)
    (tmp_path / "my_judge.py").write_text("def score(p, r): return [1.0] * len(r)\n")
    after = keys(folder, evaluation=evaluation)
    assert after["judgement[dpo,one]"] != before["judgement[dpo,one]"]
    assert after["generation[dpo,one]"] == before["generation[dpo,one]"]


def test_scales_beside_a_policy_learn_its_margins(folder, tmp_path):
    policies = {"wr": {"objective": "unm-wr", "scale": "e", "settings": {"tau": 0.25}}}
    small = recipe(folder, policies=policies, scales={"e": {"estimator": "ema"}}, evaluation=None)
    run = execute(open_run(small, Store(folder / "store")))
    settings = POLICY_SCALE.load(run.artifact("policy[wr]")).settings
    assert (settings.placement, settings.tau) == ("wr", 0.25)


def test_a_try_that_ended_before_the_rename_leaves_no_trace(folder, tmp_path, monkeypatch):
    run = open_run(recipe(folder), Store(tmp_path / "store"))
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, target: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(UserError, match="No space left"):
        execute(run, until="comparisons")
    monkeypatch.setattr(Path, "rename", rename)
    execute(run, until="comparisons")
    assert run.artifact("comparisons").damage() == []
