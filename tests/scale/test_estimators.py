"""The contract for all estimators."""

import json
import math
from dataclasses import replace

import pytest
import torch

from tests.worlds.scales import FROZEN, LEARNED, fitted, small_world
from unmdpo.core.errors import UserError
from unmdpo.recipe.settings import ScaleRecipe
from unmdpo.scale import (
    ESTIMATORS,
    CrossFittedScale,
    EMAScale,
    EntropyScale,
    JointScale,
    PooledScale,
    SigmoidJointScale,
    Units,
    load_scale,
    make_estimator,
    save_scale,
)
from unmdpo.scale.entropy import entropy_targets


@pytest.fixture(scope="module")
def learned():
    units, rows = small_world()
    return {name: fitted(name, units, rows) for name in LEARNED}, units, rows


# --- The contract ---------------------------------------------------------------------------------


def test_a_plain_recipe_makes_the_papers_estimator():
    for name, estimator in ((name, ESTIMATORS[name]) for name in LEARNED):
        made = make_estimator(name, ScaleRecipe(estimator=name).given)
        assert made.settings == estimator.settings()
        assert made.name == name
    changed = ScaleRecipe(estimator="pooled", fit="ao", centered=False, penalty=0.0, unit="pair")
    made = make_estimator("pooled", changed.given).settings
    assert (made.placement, made.centered, made.penalty, made.unit) == ("ao", False, 0.0, "pair")
    with pytest.raises(UserError, match="'constant' has no setting 'penalty'"):
        make_estimator("constant", {"penalty": 1.0})
    with pytest.raises(UserError, match="did you mean 'pooled'"):
        make_estimator("poold", {})


def test_the_papers_defaults():
    pooled, cross, entropy = PooledScale().settings, CrossFittedScale().settings, EntropyScale().settings
    assert (pooled.placement, pooled.penalty, pooled.tau, pooled.updates) == ("wr", 0.01, 1.0, 150)
    assert (pooled.learning_rate, pooled.seed, pooled.centered) == (1e-3, 42, True)
    assert (cross.placement, cross.penalty, cross.updates) == ("ao", 0.01, 150)
    assert (entropy.smoothness, entropy.epochs, entropy.batch) == (0.01, 30, 512)
    assert (entropy.learning_rate, entropy.weight_decay) == (1e-3, 1e-3)
    joint, sigmoid, ema = JointScale().settings, SigmoidJointScale().settings, EMAScale().settings
    assert (joint.placement, joint.penalty, joint.weight_decay) == ("ao", 0.01, 0.0)
    assert (sigmoid.placement, sigmoid.penalty) == ("wr", 0.01)
    assert (ema.smoothness, ema.centering, ema.learning_rate, ema.weight_decay) == (0.01, 1, 1e-3, 1e-3)
    assert {pooled.hidden, cross.hidden, entropy.hidden, joint.hidden, ema.hidden} == {16}
    assert (EMAScale.activation, JointScale.activation) == ("tanh", "gelu")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("pooled", {"placement": "xyz"}),
        ("pooled", {"updates": -1}),
        ("pooled", {"penalty": -1.0}),
        ("pooled", {"tau": float("nan")}),
        ("pooled", {"levels": "abc"}),
        ("pooled", {"levels": (3.0, 1.0)}),
        ("joint", {"unit": "banana"}),
        ("ema", {"learning_rate": 0.0}),
        ("entropy", {"batch": 0}),
    ],
)
def test_bad_settings_are_refused(name, settings):
    with pytest.raises(UserError):
        ESTIMATORS[name].make(**settings)


@pytest.mark.parametrize("name", LEARNED)
def test_bounds(learned, name):
    estimators, units, _ = learned
    strange = Units(100 * torch.randn(50, 12, generator=torch.Generator().manual_seed(9)))
    for q in (estimators[name].q_, estimators[name].predict(units), estimators[name].predict(strange)):
        assert q.min() >= 0.5 - 1e-6
        assert q.max() <= 2 + 1e-6


@pytest.mark.parametrize("name", ["constant", "pooled", "cross-fitted", "joint", "ridge", "auto"])
def test_geometric_mean_is_one_over_units(learned, name):
    estimators, _, _ = learned
    assert estimators[name].q_.double().log().mean().item() == pytest.approx(0, abs=1e-6)


def test_geometric_mean_is_one_over_rows_for_entropy(learned):
    estimators, _, rows = learned
    assert estimators["entropy"].q_.double().log()[rows.unit].mean().item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", [n for n in LEARNED if n != "constant"])
def test_something_is_learned(learned, name):
    assert learned[0][name].diagnostics_["log_std"] > 1e-4


@pytest.mark.parametrize("name", LEARNED)
def test_same_seed_same_scale(learned, name):
    estimators, units, rows = learned
    assert torch.equal(fitted(name, units, rows).q_, estimators[name].q_)
    if "seed" in ESTIMATORS[name].settings.model_fields:
        assert not torch.equal(fitted(name, units, rows, seed=7).q_, estimators[name].q_)


@pytest.mark.parametrize("name", LEARNED)
def test_save_and_load_are_exact(learned, name, tmp_path):
    estimators, units, _ = learned
    save_scale(estimators[name], tmp_path / "scale")
    again = load_scale(tmp_path / "scale")
    assert type(again) is type(estimators[name])
    assert again.settings == estimators[name].settings
    assert again.diagnostics_ == estimators[name].diagnostics_
    assert torch.equal(again.q_, estimators[name].q_)
    assert torch.equal(again.predict(units), estimators[name].predict(units))
    assert {p.suffix for p in (tmp_path / "scale").iterdir()} == {".json", ".safetensors"}


def test_uncentered_scales_survive_too(learned, tmp_path):
    _, units, rows = learned
    free = PooledScale(centered=False).fit(units, rows)
    save_scale(free, tmp_path)
    assert torch.equal(load_scale(tmp_path).predict(units), free.predict(units))


@pytest.mark.parametrize("name", FROZEN)
def test_row_order_does_not_matter(learned, name):
    estimators, units, rows = learned
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))
    assert torch.allclose(fitted(name, units, rows.select(order)).q_, estimators[name].q_, atol=2e-4)


@pytest.mark.parametrize("name", LEARNED)
def test_prediction_is_frozen(learned, name):
    """A unit's predicted scale does not depend on the other units."""
    estimators, units, _ = learned
    some = torch.tensor([5, 17, 90])
    assert torch.allclose(estimators[name].predict(units.select(some)), estimators[name].predict(units)[some])


@pytest.mark.parametrize("name", [n for n in LEARNED if n not in ("cross-fitted", "entropy", "auto")])
def test_prediction_of_fit_units_is_the_fit(learned, name):
    """Not of `auto`, if a prompt's own comparisons have moved its scale: a new prompt has none."""
    estimators, units, _ = learned
    assert torch.allclose(estimators[name].predict(units), estimators[name].q_, atol=1e-6)


@pytest.mark.parametrize("name", ["pooled", "cross-fitted", "joint", "sigmoid-joint"])
def test_a_large_penalty_leaves_scales_at_one(learned, name):
    _, units, rows = learned
    q = fitted(name, units, rows, penalty=1e4).q_
    assert q.log().abs().max() < 0.02


def test_equal_votes_have_no_entropy_scale(learned):
    _, units, rows = learned
    same = replace(rows, votes=torch.tensor([[0, 0, 0, 0, 1, 2]]).expand(len(rows), 6))
    with pytest.raises(UserError, match="correlation is positive: no"):
        EntropyScale(epochs=5).fit(units, same)


@pytest.mark.parametrize("name", ["pooled", "cross-fitted"])
def test_masked_rows_are_out_of_the_data_but_their_units_stay(learned, name):
    _, units, rows = learned
    valid = rows.unit % 10 != 0
    evidence = torch.where(valid, rows.evidence, torch.nan)
    masked = replace(rows, valid=valid, evidence=evidence)
    estimator = fitted(name, units, masked)
    assert len(estimator.q_) == len(units)
    assert estimator.q_.isfinite().all()
    assert estimator.diagnostics_["masked_rows"] == (~valid).sum()
    changed = replace(masked, evidence=torch.where(valid, rows.evidence, 1e6))
    assert torch.equal(fitted(name, units, changed).q_, estimator.q_)
    assert not torch.equal(fitted(name, units, rows).q_, estimator.q_)


def test_entropy_uses_every_row(learned):
    """It does not use pilots, so their mask does not matter; of rows without votes nothing is known."""
    estimators, units, rows = learned
    masked = replace(rows, valid=rows.unit % 10 != 0)
    assert torch.equal(fitted("entropy", units, masked).q_, estimators["entropy"].q_)
    silent = rows.unit % 10 == 0
    votes = torch.where(silent[:, None], 0, rows.votes)
    unknown = fitted("entropy", units, replace(rows, votes=votes))
    assert not torch.equal(unknown.q_, fitted("entropy", units, rows.select(~silent)).q_)
    assert entropy_targets(votes)[silent].tolist() == pytest.approx([math.log(2)] * int(silent.sum()), abs=1e-12)
    with pytest.raises(ValueError, match="need votes"):
        fitted("entropy", units, replace(rows, votes=torch.zeros_like(rows.votes)))


@pytest.mark.parametrize("name", [n for n in LEARNED if "learning_rate" in ESTIMATORS[n].settings.model_fields])
def test_curves_are_kept(learned, name):
    assert len(learned[0][name].curve_) > 0


@pytest.mark.parametrize("name", LEARNED)
def test_diagnostics_are_complete_and_finite(learned, name, tmp_path):
    found = learned[0][name].diagnostics_
    assert {"geometric_mean", "min", "max", "negative_residuals", "saturated"} <= found.keys()
    assert {"strength_correlation", "length_correlation", "valid_rows"} <= found.keys()
    assert all(math.isfinite(value) for value in found.values())
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("name", ["pooled", "cross-fitted", "joint", "ema", "sigmoid-joint"])
def test_unknown_domains_and_pair_units(learned, name):
    estimators, units, rows = learned
    unknown = replace(units, domains=torch.full((len(units),), -1))
    assert estimators[name].predict(unknown).isfinite().all()
    unsaid = replace(units, domains=None)
    assert torch.equal(estimators[name].predict(unsaid), estimators[name].predict(unknown))
    with pytest.raises(ValueError, match="5 dimensions; the scale was fitted to 12"):
        estimators[name].predict(Units(torch.zeros(3, 5)))
    assert fitted(name, units, rows, unit="pair").settings.unit == "pair"
