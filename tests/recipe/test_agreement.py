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
from unmdpo.stages.scale import evidence_with_beta, residuals
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


def test_one_margin_at_the_top_is_everybody_s():
    policies = {"a": using(), "b": using(objective="unm-ao"), "dpo": {"objective": "dpo"}}
    plain = described(policies)
    assert plain.scale_settings("q")["tau"] == plain.pilot_settings["tau"] == 1.0
    whole = described(policies, margin={"tau": 0.5, "levels": LEVELS})
    for settings in (whole.scale_settings("q"), whole.pilot_settings, whole.choice_of(whole.policies["a"]).settings):
        assert (settings["tau"], settings["levels"]) == (0.5, LEVELS)
    assert whole.choice_of(whole.policies["dpo"]).settings == {}


def test_a_policy_that_disagrees_with_its_scale_is_refused_unless_the_scale_says_so():
    policies = {"a": using(tau=0.5), "b": using()}
    refused(r"a has tau = 0\.5, and this has 1\.0: set `margin` .* or say scales\.q\.settings\.tau", policies)
    refused(r"a has levels = .*scales\.q\.settings\.levels", {"a": using(levels=LEVELS)})
    study = described(policies, {"q": {"estimator": "pooled", "settings": {"tau": 1.0}}})
    assert study.choice_of(study.policies["a"]).settings["tau"] == 0.5
    assert study.scale_settings("q")["tau"] == study.pilot_settings["tau"] == 1.0
    own = {"q": {"estimator": "pooled", "settings": {"tau": 0.5}}}
    refused(r"scale q has tau = 0\.5, and this has 1\.0: .* or say pilots\.settings\.tau", {"a": using(tau=0.5)}, own)
    chosen = described({"a": using(tau=0.5)}, own, pilots={"settings": {"tau": 1.0}})
    assert (chosen.pilot_settings["tau"], chosen.scale_settings("q")["tau"]) == (1.0, 0.5)
    refused("objective 'fixed-margin'", {"a": using()}, pilots={"settings": {"taw": 1.0}})


def test_what_has_no_margin_is_left_alone():
    scales = {"one": {"estimator": "constant"}, "votes": {"estimator": "entropy"}, "joint": {"estimator": "joint"}}
    policies = {"a": using("one", tau=0.5), "b": using("votes", tau=2.0), "c": using("joint", "unm-ao", tau=3.0)}
    loaded = described(policies, scales, pilots={"objective": "dpo"})
    assert loaded.pilot_settings == {}
    assert not any("tau" in loaded.scale_settings(name) for name in scales)


def test_a_policy_s_own_beta_is_said_of_its_scale_too():
    scales = {"q": {"estimator": "pooled", "length_normalized": True}}
    own = using(objective="ulnm-wr", beta=9.0)
    refused(r"a has β = 9\.0: say scales\.q\.beta", {"a": own}, scales)
    said = described({"a": own, "b": using(beta=0.1)}, {"q": scales["q"] | {"beta": 9.0}})  # b's is not per token
    assert said.scales["q"].beta == 9.0


def test_the_papers_study_of_margins_keeps_its_scale():
    study = load_recipe("hs2-1b-margins")
    assert study.scale_settings("seq")["tau"] == study.pilot_settings["tau"] == 1.0


@pytest.mark.parametrize("scale", ["seq", "ln"])
def test_all_of_it_reaches_the_work(tmp_path, scale):
    """The pilots' objective, the fitting loss, and the evidence."""
    objective = {"seq": "unm-wr", "ln": "ulnm-wr"}[scale]
    policies = {"p": using(scale, objective, beta=0.2), "dpo": {"objective": "dpo"}}
    scales = {
        scale: {"estimator": "pooled", "length_normalized": scale == "ln", "settings": {"updates": 5}, "beta": 0.2}
    }
    small = recipe(world(tmp_path), policies=policies, scales=scales, evaluation=None, margin={"tau": 0.5})
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
    small = recipe(world(tmp_path), policies={"p": using("seq")}, evaluation=None, margin={"levels": [1.0]},
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
