"""One contract for all estimators, and what each promises beyond it."""

import json
import math
from dataclasses import replace

import pytest
import torch
from benchmarks.synthetic import random_utility_world
from scipy.stats import spearmanr

from unmdpo.errors import UserError
from unmdpo.recipe import ScaleRecipe
from unmdpo.scale import (
    ESTIMATORS,
    CrossFittedScale,
    EMAScale,
    EntropyScale,
    FrozenScale,
    JointScale,
    PooledScale,
    Rows,
    SigmoidJointScale,
    Units,
    load_scale,
    save_scale,
)
from unmdpo.scale.head import ScaleHead

FROZEN = [name for name, estimator in ESTIMATORS.items() if issubclass(estimator, FrozenScale)]
BESIDE = [name for name in ESTIMATORS if name not in FROZEN]
QUICK = {"entropy": {"epochs": 4}}


def small_world(prompts=120, seed=0, rows_per_prompt=2, dimension=12):
    """Units with domains and folds, rows with votes and lengths: something for every estimator."""
    world = random_utility_world(prompts, rows_per_prompt=rows_per_prompt, dimension=dimension, seed=seed)
    rng = torch.Generator().manual_seed(seed + 1)
    n = len(world.rows)
    units = replace(
        world.units,
        domains=torch.randint(3, (prompts,), generator=rng),
        folds=torch.arange(prompts) % 5,
    )
    votes = torch.zeros(n, 6, dtype=torch.int64)
    votes.scatter_add_(1, torch.randint(6, (n, 3), generator=rng), torch.ones(n, 3, dtype=torch.int64))
    lengths = torch.randint(10, 500, (n,), generator=rng).float()
    return units, replace(world.rows, votes=votes, lengths=lengths)


def fitted(name, units, rows, **settings):
    """Any estimator after learning: at once, or beside a policy whose evidence stands still."""
    estimator = ESTIMATORS[name](**(QUICK.get(name, {}) | settings))
    if isinstance(estimator, FrozenScale):
        return estimator.fit(units, rows)
    estimator.start(units, rows.unit)
    valid = rows.valid_rows
    order = torch.argsort(valid.unit * 7919 % 101, stable=True)
    for members in order.split(40) * 3:
        estimator.scales(valid.unit[members])
        estimator.step(valid.unit[members], valid.evidence[members], valid.strength[members])
    return estimator.finish(rows)


@pytest.fixture(scope="module")
def learned():
    units, rows = small_world()
    return {name: fitted(name, units, rows) for name in ESTIMATORS}, units, rows


# --- The contract ---------------------------------------------------------------------------------


def test_recipe_names_are_the_estimators():
    assert set(ScaleRecipe.model_fields["estimator"].annotation.__args__) == ESTIMATORS.keys()
    assert all(estimator.name == name for name, estimator in ESTIMATORS.items())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_bounds(learned, name):
    estimators, units, _ = learned
    strange = Units(100 * torch.randn(50, 12, generator=torch.Generator().manual_seed(9)))
    for q in (estimators[name].q_, estimators[name].predict(units), estimators[name].predict(strange)):
        assert q.min() >= 0.5 - 1e-6
        assert q.max() <= 2 + 1e-6


@pytest.mark.parametrize("name", ["constant", "pooled", "cross-fitted", "joint"])
def test_geometric_mean_is_one_over_units(learned, name):
    estimators, _, _ = learned
    assert estimators[name].q_.double().log().mean().item() == pytest.approx(0, abs=1e-6)


def test_geometric_mean_is_one_over_rows_for_entropy(learned):
    estimators, _, rows = learned
    assert estimators["entropy"].q_.double().log()[rows.unit].mean().item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if n != "constant"])
def test_something_is_learned(learned, name):
    assert learned[0][name].diagnostics_["log_std"] > 1e-4


@pytest.mark.parametrize("name", ESTIMATORS)
def test_same_seed_same_scale(learned, name):
    estimators, units, rows = learned
    assert torch.equal(fitted(name, units, rows).q_, estimators[name].q_)
    if name != "constant":
        assert not torch.equal(fitted(name, units, rows, seed=7).q_, estimators[name].q_)


@pytest.mark.parametrize("name", ESTIMATORS)
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


@pytest.mark.parametrize("name", FROZEN)
def test_row_order_does_not_matter(learned, name):
    estimators, units, rows = learned
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))
    assert torch.allclose(fitted(name, units, rows.select(order)).q_, estimators[name].q_, atol=2e-4)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_prediction_is_frozen(learned, name):
    """A unit's scale does not depend on which others are asked about."""
    estimators, units, _ = learned
    some = torch.tensor([5, 17, 90])
    assert torch.allclose(estimators[name].predict(units.select(some)), estimators[name].predict(units)[some])


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if n not in ("cross-fitted", "entropy")])
def test_prediction_of_fit_units_is_the_fit(learned, name):
    estimators, units, _ = learned
    assert torch.allclose(estimators[name].predict(units), estimators[name].q_, atol=1e-6)


@pytest.mark.parametrize("name", ["pooled", "cross-fitted", "joint", "sigmoid-joint"])
def test_a_large_penalty_leaves_scales_at_one(learned, name):
    _, units, rows = learned
    q = fitted(name, units, rows, penalty=1e4).q_
    assert q.log().abs().max() < 0.02


def test_equal_votes_leave_entropy_scales_near_one(learned):
    _, units, rows = learned
    same = replace(rows, votes=torch.tensor([[0, 0, 0, 0, 1, 2]]).expand(len(rows), 6))
    scale = EntropyScale(learning_rate=1e-2, epochs=100).fit(units, same)
    assert scale.diagnostics_["log_std"] < 0.05


@pytest.mark.parametrize("name", FROZEN)
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


@pytest.mark.parametrize("name", ESTIMATORS)
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
    assert fitted(name, units, rows, unit="pair").settings["unit"] == "pair"


# --- Pooled ---------------------------------------------------------------------------------------


def test_no_updates_is_exactly_one():
    units, rows = small_world()
    assert PooledScale(updates=0).fit(units, rows).q_.tolist() == [1.0] * len(units)
    for name in BESIDE:
        assert ESTIMATORS[name]().start(units, rows.unit).q_.tolist() == [1.0] * len(units)


def test_curve_starts_at_the_constant_scale_and_falls():
    units, rows = small_world()
    estimator = PooledScale().fit(units, rows)
    residual = rows.evidence - rows.strength
    assert estimator.curve_[0] == pytest.approx(
        torch.nn.functional.softplus(-residual).mean().item(), rel=1e-6
    )
    assert estimator.curve_[-1] < estimator.curve_[0]
    assert len(estimator.curve_) == 150


def test_placements_tau_and_levels_matter():
    units, rows = small_world()
    base = PooledScale().fit(units, rows).q_
    for settings in ({"fit_loss": "ao"}, {"tau": 0.5}, {"levels": (1.0, 4.0, 9.0)}, {"penalty": 0.0}):
        assert not torch.allclose(PooledScale(**settings).fit(units, rows).q_, base)
    linear = PooledScale(levels=(1.0, 2.0, 3.0)).fit(units, rows).q_
    assert torch.equal(linear, base)


def test_uncentered_scales_follow_the_mean_residual():
    """All residuals negative: an uncentered scale grows as a whole, a centered one cannot."""
    units, rows = small_world()
    gloomy = replace(rows, evidence=rows.evidence - 5)
    free = PooledScale(centered=False, penalty=0.0, updates=300).fit(units, gloomy)
    assert free.diagnostics_["geometric_mean"] > 1.1
    assert free.diagnostics_["negative_residuals"] > 0.95
    held = PooledScale().fit(units, gloomy)
    assert held.diagnostics_["geometric_mean"] == pytest.approx(1, abs=1e-6)


def test_rows_weigh_the_loss_and_units_the_centering():
    """Repeating a unit's rows moves the fit, while the geometric mean stays one over units."""
    units, rows = small_world()
    heavy = rows.select(torch.cat([torch.arange(len(rows)), torch.arange(40).repeat(20)]))
    base, moved = PooledScale().fit(units, rows), PooledScale().fit(units, heavy)
    assert not torch.allclose(base.q_, moved.q_, atol=1e-3)
    assert moved.q_.double().log().mean().item() == pytest.approx(0, abs=1e-6)
    assert abs(moved.q_.double().log()[heavy.unit].mean().item()) > 1e-3


def test_domain_terms_learn_what_only_domains_know():
    prompts = 400
    world = random_utility_world(prompts, rows_per_prompt=2, noise_spread=0.0, dimension=4)
    domains = torch.arange(prompts) % 2
    worse = domains[world.rows.unit] == 1
    rows = replace(world.rows, evidence=world.rows.evidence - 3.0 * worse)
    q = PooledScale().fit(Units(world.units.features, domains), rows).q_
    assert q[domains == 1].mean() > q[domains == 0].mean() + 0.1


@pytest.mark.parametrize(("pilot_noise", "least"), [(0.0, 0.85), (1.5, 0.65)])
def test_the_fitted_scale_ranks_prompts_like_the_true_one(pilot_noise, least):
    """Heteroskedastic random utility with q* a function of the features and many prompts."""
    world = random_utility_world(4000, pilot_noise=pilot_noise, seed=11)
    found = PooledScale().fit(world.units, world.rows)
    assert spearmanr(found.q_, world.true_scale).statistic > least
    new = random_utility_world(4000, seed=11).units  # the same prompts, as if unseen
    assert spearmanr(found.predict(new), world.true_scale).statistic > least


def test_gaps_are_mistaken_for_noise():
    """What the paper warns of: where only reward gaps vary, the scale still varies, with them."""
    world = random_utility_world(4000, noise_spread=0.0, gap_spread=0.7, seed=11)
    found = PooledScale().fit(world.units, world.rows)
    assert spearmanr(found.q_, world.gap_size).statistic < -0.6


# --- Cross-fitted and entropy ---------------------------------------------------------------------


def test_cross_fitted_heads_do_not_see_their_fold():
    units, rows = small_world()
    in_fold = units.folds[rows.unit] == 0
    changed = replace(rows, evidence=torch.where(in_fold, -rows.evidence, rows.evidence))
    one, two = CrossFittedScale().fit(units, rows), CrossFittedScale().fit(units, changed)
    for name, value in one.heads_[0].tensors("").items():
        assert torch.equal(value, two.heads_[0].tensors("")[name]), name
    assert not torch.equal(one.heads_[1].head.output.weight, two.heads_[1].head.output.weight)


def test_cross_fitted_calibration_by_hand():
    units, rows = small_world()
    scale = CrossFittedScale().fit(units, rows)
    held_out = torch.empty(len(units))
    for fold, head in enumerate(scale.heads_):
        members = units.folds == fold
        held_out[members] = head.log_scales(units.select(members))
    assert torch.allclose(scale.q_, (held_out - held_out.mean()).exp())
    everywhere = torch.stack([head.log_scales(units) for head in scale.heads_]).mean(0)
    assert torch.allclose(scale.predict(units), (everywhere - held_out.mean()).exp())
    outside = units.folds != 2  # each head is centered over its own fit population
    assert scale.heads_[2].log_scales(units.select(outside)).mean().item() == pytest.approx(0, abs=1e-6)


def test_documented_seeds():
    units, rows = small_world()
    cross = CrossFittedScale(updates=0).fit(units, rows)
    entropy = EntropyScale(epochs=0).fit(units, rows)
    for fold in range(5):
        expected = ScaleHead(12, 3, seed=42 + 1009 * (fold + 1)).hidden.weight
        assert torch.equal(cross.heads_[fold].head.hidden.weight, expected)
        expected = ScaleHead(12, 3, seed=260827 + 1009 * (fold + 1)).hidden.weight
        assert torch.equal(entropy.heads_[fold].head.hidden.weight, expected)
    ema = EMAScale(seed=17).start(units, rows.unit)
    expected = ScaleHead(12, 3, seed=717).hidden.weight
    assert torch.equal(ema.scale_.head.hidden.weight, expected)


def test_entropy_learns_disagreement_that_features_predict():
    units, rows = small_world(600, rows_per_prompt=2)
    disputed = units.features[rows.unit][:, 0] > 0
    split, united = torch.tensor([1, 0, 1, 0, 1, 0]), torch.tensor([0, 0, 0, 0, 0, 3])
    votes = torch.where(disputed[:, None], split, united)
    scale = EntropyScale(batch=256, learning_rate=1e-2).fit(units, replace(rows, votes=votes))
    assert scale.diagnostics_["target_correlation"] > 0.5
    assert scale.diagnostics_["log_std"] > 0.05  # more than where all votes agree
    assert all(scale.gate_.values())
    q = scale.q_[rows.unit]
    assert q[disputed].mean() > q[~disputed].mean()


def test_missing_inputs_are_said():
    units, rows = small_world()
    with pytest.raises(ValueError, match="fold of every unit"):
        CrossFittedScale().fit(Units(units.features), rows)
    with pytest.raises(ValueError, match="votes of every row"):
        EntropyScale().fit(units, replace(rows, votes=None))


# --- Beside a policy ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BESIDE)
def test_the_policy_gets_the_head_from_before_the_step(name):
    units, rows = small_world()
    estimator = ESTIMATORS[name]().start(units, rows.unit)
    unit = rows.unit[:30]
    q = estimator.scales(unit)
    kept = q.clone()
    estimator.step(unit, rows.evidence[:30], rows.strength[:30])
    assert torch.equal(q, kept)
    assert not q.requires_grad
    assert not torch.equal(estimator.scales(unit), kept)


@pytest.mark.parametrize("name", BESIDE)
def test_resuming_is_exact(name, tmp_path):
    from safetensors.torch import load, save

    units, rows = small_world()

    def learn(estimator, updates):
        for i in updates:
            members = torch.arange(30) + 7 * i
            estimator.scales(rows.unit[members])
            estimator.step(rows.unit[members], rows.evidence[members], rows.strength[members])

    whole = ESTIMATORS[name]().start(units, rows.unit)
    learn(whole, range(12))
    first = ESTIMATORS[name]().start(units, rows.unit)
    learn(first, range(5))
    resumed = ESTIMATORS[name]().start(units, rows.unit).load_state(load(save(first.state())))
    learn(resumed, range(5, 12))
    assert torch.equal(resumed.q_, whole.q_)
    assert resumed.curve_ == pytest.approx(whole.curve_, abs=1e-7)
    for key, value in whole.state().items():
        assert torch.equal(value, resumed.state()[key]), key


def test_joint_step_is_the_pooled_loss_on_a_batch():
    """One joint update on all rows equals the first pooled AO-fit update."""
    units, rows = small_world()
    joint = JointScale().start(units, rows.unit)
    joint.step(rows.unit, rows.evidence, rows.strength)
    pooled = PooledScale(fit_loss="ao", updates=1).fit(units, rows)
    assert torch.allclose(joint.q_, pooled.q_, atol=1e-6)


def test_ema_center_by_hand():
    units, rows = small_world()
    ema = EMAScale().start(units, rows.unit)
    center = 0.0
    for i in range(4):
        unit = rows.unit[20 * i : 20 * (i + 1)]
        with torch.no_grad():
            raw = ema.scale_.head(ema.features_[unit], ema.domains_[unit])
        center = 0.9 * center + 0.1 * raw.mean().item()
        q = ema.scales(unit)
        assert q.log().tolist() == pytest.approx((math.log(2) * torch.tanh(raw - center)).tolist(), abs=1e-6)
        ema.step(unit, rows.evidence[20 * i : 20 * (i + 1)], rows.strength[20 * i : 20 * (i + 1)])


def test_the_sigmoid_variant_saturates_and_the_centered_one_does_not():
    """Mostly negative residuals: dividing by more is always better ("Earlier joint scale saturation")."""
    units, rows = small_world()
    evidence = rows.evidence - 5

    def learn(estimator):
        estimator.start(units, rows.unit)
        for _ in range(400):
            estimator.step(rows.unit, evidence, rows.strength)
        return estimator.finish(replace(rows, evidence=evidence)).diagnostics_

    sigmoid = learn(SigmoidJointScale(learning_rate=1e-2))
    joint = learn(JointScale(fit_loss="wr", learning_rate=1e-2))
    assert sigmoid["geometric_mean"] > 1.8
    assert joint["geometric_mean"] == pytest.approx(1, abs=1e-6)


def test_loading_nonsense_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no fitted scale here"):
        load_scale(tmp_path)
    (tmp_path / "scale.json").write_text('{"estimator": "nope", "settings": {}}')
    with pytest.raises(UserError, match="not a readable scale"):
        load_scale(tmp_path)


def test_rows_of_other_units_are_renumbered():
    rows = Rows(torch.tensor([0, 2, 2, 3]), torch.arange(4.0), torch.ones(4))
    kept = rows.reindexed(torch.tensor([True, False, True, False]))
    assert kept.unit.tolist() == [0, 1, 1]
    assert kept.evidence.tolist() == [0.0, 1.0, 2.0]
