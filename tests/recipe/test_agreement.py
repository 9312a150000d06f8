"""One τ, one m(k) and one β for pilots, scale and policy."""

import pytest
import torch

from tests.worlds.models import PAIRS
from tests.worlds.pipeline import recipe, world
from unmdpo.core.errors import UserError
from unmdpo.engine.settings import ObjectiveChoice
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.execute import execute
from unmdpo.objectives import OBJECTIVES
from unmdpo.recipe import Recipe, load_recipe
from unmdpo.results.run import open_run
from unmdpo.stages.scales import evidence_with_beta, residuals
from unmdpo.stages.shared.files import EVIDENCE
from unmdpo.stages.shared.training import with_beta
from unmdpo.store.store import Store

LEVELS = (0.5, 1.0, 4.0)


def described(policies, scales=None, **more):
    scales = {"q": {"estimator": "pooled"}} if scales is None else scales
    base = {"name": "x", "model": {"path": "m"}, "data": {"path": "d.jsonl"}, "scales": scales, "policies": policies}
    return Recipe.model_validate(base | more)


def using(scale="q", objective="unm-wr", **settings):
    return {"objective": objective, "scale": scale, "settings": settings}


def refused(match, *given, **more):
    with pytest.raises(ValueError, match=match):
        described(*given, **more)


def test_scale_and_pilots_follow_the_policy():
    plain = described({"a": using(), "b": using(objective="unm-ao")})
    assert plain.scale_settings("q") | {"tau": 1.0, "levels": None} == plain.scale_settings("q")
    both = described({"a": using(tau=0.5, levels=LEVELS), "b": using(tau=0.5, levels=LEVELS, objective="unm-ao")})
    for found in (both.scale_settings("q"), both.pilot_settings):
        assert (found["tau"], found["levels"]) == (0.5, LEVELS)


def test_policies_that_disagree_need_a_word_about_it():
    policies = {"a": using(tau=0.5), "b": using(tau=1.0)}
    refused(r"a: τ = 0\.5, b: τ = 1\).*scales\.q\.settings\.tau", policies)
    said = described(policies, {"q": {"estimator": "pooled", "settings": {"tau": 0.5}}})
    assert said.scale_settings("q")["tau"] == said.pilot_settings["tau"] == 0.5
    refused("what uses it has another margin", policies, {"q": {"estimator": "pooled", "settings": {"tau": 2}}})
    refused(r"m = \[0\.5, 1\.0, 4\.0\].*settings\.levels", {"a": using(levels=LEVELS), "b": using()})
    apart = {name: {"estimator": "pooled"} for name in ("q", "r")}
    two = {"a": using(tau=0.5), "b": using("r")}
    refused(r"pilots are made with one margin.*pilots\.settings\.tau", two, apart)
    chosen = described(two, apart, pilots={"settings": {"tau": 1.0}})
    assert chosen.pilot_settings["tau"] == 1.0
    assert chosen.scale_settings("q")["tau"] == 0.5
    refused("objective 'fixed-margin'", {"a": using()}, pilots={"settings": {"taw": 1.0}})


def test_what_has_no_margin_is_left_alone():
    scales = {"one": {"estimator": "constant"}, "votes": {"estimator": "entropy"}, "joint": {"estimator": "joint"}}
    policies = {"a": using("one", tau=0.5), "b": using("votes", tau=2.0), "c": using("joint", "unm-ao", tau=3.0)}
    loaded = described(policies, scales, pilots={"objective": "dpo"})
    assert loaded.pilot_settings == {}
    assert not any("tau" in loaded.scale_settings(name) for name in scales)


def test_beta_follows_policies_of_the_same_kind():
    scales = {"q": {"estimator": "pooled", "length_normalized": True}}
    own = using(objective="ulnm-wr", beta=9.0)
    assert described({"a": own, "b": using(beta=0.1)}, scales).scale_beta("q") == 9.0  # the other is not per token
    assert described({"a": using(objective="ulnm-wr")}, scales).scale_beta("q") is None
    refused(r"several β \(a: 9\.0, b: default\)", {"a": own, "b": using(objective="ulnm-wr")}, scales)
    said = {"q": scales["q"] | {"beta": 5.0}}
    assert described({"a": own, "b": using(objective="ulnm-wr")}, said).scale_beta("q") == 5.0


def test_the_papers_study_of_margins_keeps_its_scale():
    study = load_recipe("hs2-1b-margins")
    assert study.scale_settings("seq")["tau"] == study.pilot_settings["tau"] == 1.0


@pytest.mark.parametrize("scale", ["seq", "ln"])
def test_all_of_it_reaches_the_work(tmp_path, scale):
    """The pilots' objective, the fitting loss, and the evidence."""
    objective = {"seq": "unm-wr", "ln": "ulnm-wr"}[scale]
    policies = {"p": using(scale, objective, tau=0.5, beta=0.2), "dpo": {"objective": "dpo"}}
    scales = {scale: {"estimator": "pooled", "length_normalized": scale == "ln", "settings": {"updates": 5}}}
    small = recipe(world(tmp_path), policies=policies, scales=scales, evaluation=None)
    run = execute(open_run(small, Store(tmp_path / "store")), until=f"scale[{scale}]")
    assert run.stages["pilot[0]"].settings.objective.resolved.tau == 0.5
    assert run.artifact(f"scale[{scale}]").manifest["settings"]["estimator"]["settings"]["tau"] == 0.5
    stage, evidence = run.stages[f"scale[{scale}]"], EVIDENCE.load(run.artifact("oof"))
    used = evidence_with_beta(evidence, stage)
    gathered = {"seq": 0.05, "ln": float(evidence.beta_ln)}[scale]
    valid = evidence.valid
    assert torch.allclose(used[valid], 0.2 / gathered * evidence.of(scale == "ln")[valid])
    margins = torch.tensor([0.5 * row.strength for row in run.comparisons()])
    assert torch.allclose(residuals(run.comparisons(), evidence, stage)[valid], (margins - used)[valid])


def test_levels_that_the_data_exceeds_are_reported_by_the_pilots(tmp_path):
    small = recipe(world(tmp_path), policies={"p": using("seq", levels=[1.0])}, evaluation=None,
                   scales={"seq": {"estimator": "pooled"}})  # fmt: skip
    with pytest.raises(UserError, match="strength 3 is outside the map's 1 levels"):
        execute(open_run(small, Store(tmp_path / "store")))


@pytest.mark.parametrize("name", [name for name, objective in OBJECTIVES.items() if objective.own_beta])
def test_objectives_with_a_beta_of_their_own_keep_it(name):
    """IPO's is a regularization, and no length of responses changes it."""
    pairs = EncodedPairs.of(PAIRS)
    assert with_beta(ObjectiveChoice(name=name), 0.05, pairs).settings == {}
    assert with_beta(ObjectiveChoice(name="dpo"), 0.05, pairs).settings == {"beta": 0.05}


def test_ipo_has_a_beta_of_its_own():
    assert OBJECTIVES["ipo"].own_beta
