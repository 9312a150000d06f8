"""The contract for all objectives, values worked out by hand, and special cases where objectives coincide."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Bernoulli, kl_divergence
from torch.nn.functional import softplus

from tests.worlds.objectives import loss_of, permuted, random_pairs
from unmdpo.core.errors import UserError
from unmdpo.objectives import OBJECTIVES, AdaptiveObjective, PairLogps, beta_ln_from_lengths, take
from unmdpo.objectives.losses import sft
from unmdpo.scale import PooledScale, Rows, Units

STATELESS = [name for name, objective in OBJECTIVES.items() if not isinstance(objective, AdaptiveObjective)]
ADAPTIVE = [name for name in OBJECTIVES if name not in STATELESS]
SCALED = [name for name in STATELESS if OBJECTIVES[name].scale]


# --- The contract ---------------------------------------------------------------------------------


def test_arrays_are_as_good_as_tensors():
    pairs = random_pairs(5)
    arrays = PairLogps(**{name: values.numpy() for name, values in vars(pairs).items() if values is not None})
    assert torch.equal(loss_of("unm-wr", arrays), loss_of("unm-wr", pairs))
    units, rows = Units(np.eye(3)), Rows(np.array([0, 1, 2]), np.ones(3), np.ones(3))
    assert PooledScale(updates=1).fit(units, rows).q_.shape == (3,)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_row_names_itself_and_code_that_exists(name):
    objective = OBJECTIVES[name]
    assert objective.name == name
    assert objective.adaptive is isinstance(objective, AdaptiveObjective)
    assert callable(objective.formula.loaded)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_one_loss_per_pair(name, n):
    losses = loss_of(name, random_pairs(n))
    assert losses.shape == (n,)
    assert losses.isfinite().all()


@pytest.mark.parametrize("name", STATELESS)
def test_no_pairs_no_losses(name):
    assert loss_of(name, random_pairs(0)).shape == (0,)


@pytest.mark.parametrize("name", STATELESS)
@given(st.permutations(range(6)), st.integers(0, 100))
def test_permutation_equivariance(name, order, seed):
    pairs = random_pairs(6, seed)
    assert torch.equal(loss_of(name, permuted(pairs, order)), loss_of(name, pairs)[order])


@pytest.mark.parametrize("name", STATELESS)
def test_pairs_do_not_see_each_other(name):
    pairs = random_pairs(9)
    alone = torch.cat([loss_of(name, permuted(pairs, [i])) for i in range(9)])
    assert torch.equal(alone, loss_of(name, pairs))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_losses_are_pure_given_knobs(name):
    objective, pairs = OBJECTIVES[name], random_pairs(9)
    knobs, _ = objective.adapt(pairs.log_ratio, objective.init(42))
    order = torch.tensor([3, 1, 7])
    assert torch.equal(objective.loss(permuted(pairs, order), take(knobs, order)), objective.loss(pairs, knobs)[order])


def with_policy(pairs, chosen, rejected):
    return replace(pairs, chosen=chosen, rejected=rejected)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_equals_finite_differences(name):
    objective, pairs = OBJECTIVES[name], random_pairs(8)
    knobs = ()
    if isinstance(objective, AdaptiveObjective):
        knobs = (objective.adapt(pairs.log_ratio, objective.init(42))[0],)
    chosen, rejected = pairs.chosen.clone().requires_grad_(), pairs.rejected.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda c, r: objective.loss(with_policy(pairs, c, r), *knobs), (chosen, rejected), eps=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_likelier_chosen_means_less_loss(name):
    objective, pairs = OBJECTIVES[name], random_pairs(40, spread=3.0)
    knobs, weight = (), torch.ones(40)
    if isinstance(objective, AdaptiveObjective):
        knobs = (objective.adapt(pairs.log_ratio, objective.init(42))[0],)
        weight = getattr(knobs[0], "weight", weight)
    better = with_policy(pairs, pairs.chosen + 0.5, pairs.rejected)
    change = objective.loss(better, *knobs) - objective.loss(pairs, *knobs)
    if name == "mmpo":  # its soft target is below one: beyond it, more is worse
        change = change[0.05 * better.log_ratio < 2.2 * pairs.strength]
    if name == "cdpo":
        change = change[0.05 * better.log_ratio < math.log(9)]
    assert (change[weight[: len(change)] > 0] < 0).all()
    assert (change[weight[: len(change)] == 0] == 0).all()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
def test_extreme_log_ratios_stay_finite(name, dtype, size):
    pairs = random_pairs(6, dtype=dtype)
    pairs = replace(pairs, rejected=pairs.ref_rejected, chosen=pairs.ref_chosen + size)
    chosen = pairs.chosen.clone().requires_grad_()
    losses = loss_of(name, replace(pairs, chosen=chosen))
    assert losses.dtype == torch.float32
    assert losses.isfinite().all()
    losses.sum().backward()
    assert chosen.grad.isfinite().all()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_unknown_and_invalid_settings_are_refused(name):
    pairs = random_pairs(3)
    with pytest.raises(UserError, match=f"'{name}' has no setting 'nonsense'"):
        loss_of(name, pairs, nonsense=1.0)
    for key, setting in OBJECTIVES[name].settings.model_fields.items():
        whole = [setting.default + 0.5] if setting.annotation is int else []
        missing = [] if key == "levels" else [None]
        for bad in (-1, math.nan, math.inf, "x", True, *missing, *whole):
            with pytest.raises(UserError, match=rf"'{name}': {key}(\.\d+)? should be"):
                loss_of(name, pairs, **{key: [bad] if key == "levels" else bad})


@pytest.mark.parametrize(
    ("name", "key", "edge"),
    [("dpo", "beta", 0), ("beta-dpo", "keep", 0), ("beta-dpo", "keep", 1.1), ("beta-dpo", "momentum", 1.1),
     ("gamma-po", "iterations", 0), ("mixdpo", "draws", 0), ("cdpo", "flips", 0.5), ("ada-dpo", "rho", 0.7),
     ("ada-dpo", "rho", 0)],
)  # fmt: skip
def test_values_beyond_their_bounds_are_refused(name, key, edge):
    with pytest.raises(UserError, match=rf"'{name}': {key} should be"):
        OBJECTIVES[name].resolve({key: edge})


@pytest.mark.parametrize("levels", [(), (2.0, 1.0)])
def test_strength_maps_do_not_decrease(levels):
    with pytest.raises(UserError, match="'fixed-margin': levels: a strength map needs at least one level"):
        OBJECTIVES["fixed-margin"].resolve({"levels": levels})


@pytest.mark.parametrize("name", [n for n in STATELESS if OBJECTIVES[n].reference])
def test_missing_reference_is_said(name):
    with pytest.raises(ValueError, match="needs reference log-probabilities"):
        loss_of(name, replace(random_pairs(3), ref_chosen=None))


@pytest.mark.parametrize("name", [n for n in STATELESS if not OBJECTIVES[n].reference])
def test_reference_free_objectives_need_none(name):
    pairs = random_pairs(3)
    free = replace(pairs, ref_chosen=None, ref_rejected=None)
    assert torch.equal(loss_of(name, free), loss_of(name, pairs))


@pytest.mark.parametrize("name", SCALED)
def test_missing_scale_is_said(name):
    with pytest.raises(ValueError, match="needs a prompt scale"):
        loss_of(name, replace(random_pairs(3), scale=None))


@pytest.mark.parametrize("field", ["rejected", "strength", "scale", "chosen_tokens", "ref_chosen"])
@pytest.mark.parametrize("shape", [(4, 1), (1,), (5,)])
def test_shapes_that_would_broadcast_are_refused(field, shape):
    with pytest.raises(ValueError, match=rf"{field} has shape"):
        replace(random_pairs(4), **{field: torch.ones(shape)})
    with pytest.raises(ValueError, match="every tensor should be"):
        PairLogps(*[torch.ones(4, 1)] * 5)


def test_defaults_are_the_papers():
    found = {name: dict(objective.settings()) for name, objective in OBJECTIVES.items()}
    margins = {"beta": 0.05, "tau": 1.0, "levels": None}
    assert found["dpo"] == {"beta": 0.05}
    assert found["fixed-margin"] == found["unm-ao"] == found["unm-wr"] == margins
    assert found["ulnm-wr"] == found["ulnm-ao"] == margins | {"beta": 18.225}
    assert (found["odpo"]["offset"], found["mmpo"]["slope"]) == (0.75, 2.2)
    assert found["simpo"] == {"beta": 2.5, "gamma": 1.375}
    assert found["spo"] == {"alpha": 0.01}
    assert found["beta-dpo"] == {"beta": 0.05, "alpha": 0.2, "keep": 0.8, "momentum": 0.9, "floor": 1e-3}
    assert found["gamma-po"] == {
        "beta": 0.05, "gamma": 0.02, "regularization": 10.0, "step": 0.05, "iterations": 20,
        "capacity": 2048, "sample": 256,
    }  # fmt: skip
    assert found["mixdpo"] == {"mean": 0.1, "spread": 0.6, "draws": 16, "learning_rate": 1e-4}


# --- Values by hand -------------------------------------------------------------------------------


def one_pair(log_ratio=4.0, strength=2.0, scale=2.0, tokens=(10, 20)):
    """g(x⁺) = 3 and g(x⁻) = 3 − log_ratio; policy sums −30 and −50."""
    chosen, rejected = torch.tensor([-30.0]), torch.tensor([-50.0])
    return PairLogps(
        chosen=chosen.double(),
        rejected=rejected.double(),
        ref_chosen=chosen.double() - 3,
        ref_rejected=rejected.double() - (3 - log_ratio),
        chosen_tokens=torch.tensor([tokens[0]]),
        rejected_tokens=torch.tensor([tokens[1]]),
        strength=torch.tensor([strength]).double(),
        scale=torch.tensor([scale]).double(),
    )


def zeta(x):
    return math.log1p(math.exp(x))


BY_HAND = {
    "dpo": zeta(-0.05 * 4),
    "fixed-margin": zeta(2 - 0.2),
    "unm-ao": zeta(2 - 0.2 / 2),
    "unm-wr": zeta((2 - 0.2) / 2),
    # A^LN = 3/10 − (−1)/20 = 0.35
    "ulnm-wr": zeta((2 - 18.225 * 0.35) / 2),
    "ulnm-ao": zeta(2 - 18.225 * 0.35 / 2),
    "ln-dpo": zeta(-18.225 * 0.35),
    "odpo": zeta(0.75 * 2 - 0.2),
    "mmpo": (1 / (1 + math.exp(-4.4))) * zeta(-0.2) + (1 / (1 + math.exp(4.4))) * zeta(0.2),
    "cdpo": 0.9 * zeta(-0.2) + 0.1 * zeta(0.2),
    "robust-dpo": (0.9 * zeta(-0.2) - 0.1 * zeta(0.2)) / 0.8,
    "ipo": (0.35 - 5) ** 2,
    # P̄ = −30/10 + 50/20 = −0.5
    "simpo": zeta(1.375 + 2.5 * 0.5),
    # P = −30 + 50 = 20
    "spo": zeta(-0.01 * 20) / 0.01,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_value_by_hand(name):
    assert loss_of(name, one_pair()).item() == pytest.approx(BY_HAND[name], rel=1e-12)


def test_strength_map_and_tau():
    pair = one_pair()
    found = loss_of("unm-wr", pair, tau=0.5, levels=(1.0, 4.0, 9.0), beta=0.1)
    assert found.item() == pytest.approx(zeta((0.5 * 4 - 0.1 * 4) / 2), rel=1e-12)
    with pytest.raises(UserError, match="must not decrease"):
        loss_of("unm-wr", pair, levels=(3.0, 1.0))
    for bad in (3.0, "123", ["a"], [math.nan], [1.0, math.inf]):
        with pytest.raises(UserError):
            loss_of("unm-wr", pair, levels=bad)


def test_beta_ln_from_lengths():
    chosen, rejected = torch.tensor([300, 364, 500]), torch.tensor([200, 365, 700])
    assert beta_ln_from_lengths(chosen, rejected) == pytest.approx(0.05 * 364.5)  # 18.225, as for HelpSteer3
    even = beta_ln_from_lengths(torch.tensor([10, 20]), torch.tensor([10, 20]), beta=1.0)
    assert even == 15  # the median of an even number is the mean of the middle two
    with pytest.raises(ValueError, match="at least one pair"):
        beta_ln_from_lengths(torch.tensor([]), torch.tensor([]))


# --- Reductions and semantics ---------------------------------------------------------------------


@given(st.integers(0, 1000), st.floats(0, 0.49))
def test_robust_dpo_averaged_over_flips_is_dpo(seed, flips):
    pairs = random_pairs(5, seed)
    swapped = replace(
        pairs,
        chosen=pairs.rejected,
        rejected=pairs.chosen,
        ref_chosen=pairs.ref_rejected,
        ref_rejected=pairs.ref_chosen,
    )
    as_labelled, turned = (loss_of("robust-dpo", labels, flips=flips) for labels in (pairs, swapped))
    assert torch.allclose((1 - flips) * as_labelled + flips * turned, loss_of("dpo", pairs), rtol=1e-9, atol=1e-9)
    assert torch.allclose(loss_of("cdpo", pairs, flips=0.0), loss_of("dpo", pairs), rtol=1e-14)


@given(st.integers(0, 1000), st.floats(0.1, 3))
def test_rpo_is_a_distance_between_two_bernoulli_variables(seed, eta):
    pairs = random_pairs(5, seed)
    mine, wanted = Bernoulli(logits=0.05 * pairs.log_ratio), Bernoulli(logits=eta * pairs.strength.double())
    forward = loss_of("rpo-fwd-kl", pairs, eta=eta)
    assert torch.allclose(forward, kl_divergence(mine, wanted), rtol=1e-6, atol=1e-9)
    backward = loss_of("mmpo", pairs, slope=eta) - wanted.entropy()
    assert torch.allclose(backward, kl_divergence(wanted, mine), rtol=1e-6, atol=1e-9)
    assert torch.allclose(loss_of("rpo-sq", pairs, eta=eta), (mine.logits - wanted.logits) ** 2)


def test_sft_is_the_mean_over_the_chosen_tokens():
    pairs = random_pairs(3)
    pairs = replace(pairs, chosen=torch.tensor([-6.0, -1.0, 0.0]), chosen_tokens=torch.tensor([3, 4, 5]))
    assert sft(pairs).tolist() == [2.0, 0.25, 0.0]


@given(st.integers(0, 1000))
def test_unit_scale_is_fixed_margin_and_no_margin_is_dpo(seed):
    pairs = random_pairs(5, seed)
    unit = replace(pairs, scale=torch.ones(5, dtype=torch.float64))
    fixed = loss_of("fixed-margin", pairs)
    assert torch.allclose(loss_of("unm-ao", unit), fixed, rtol=1e-14)
    assert torch.allclose(loss_of("unm-wr", unit), fixed, rtol=1e-14)
    plain = loss_of("dpo", pairs)
    for name in ("fixed-margin", "unm-ao", "unm-wr"):
        assert torch.allclose(loss_of(name, unit, tau=0.0), plain, rtol=1e-14)
    assert torch.allclose(loss_of("odpo", pairs, offset=0.0), plain, rtol=1e-14)
    ln = loss_of("ln-dpo", pairs, beta=13.6)
    for name in ("ulnm-ao", "ulnm-wr"):
        assert torch.allclose(loss_of(name, unit, tau=0.0, beta=13.6), ln, rtol=1e-14)
    assert torch.allclose(loss_of("odpo", pairs, offset=1.0), fixed, rtol=1e-14)


def test_equal_lengths_make_normalized_and_sequence_losses_agree():
    pairs = random_pairs(6)
    same = torch.full((6,), 272)
    pairs = replace(pairs, chosen_tokens=same, rejected_tokens=same)
    beta_ln = beta_ln_from_lengths(same, same)
    assert beta_ln == pytest.approx(13.6)  # HelpSteer2's
    assert torch.allclose(loss_of("ulnm-wr", pairs, beta=beta_ln), loss_of("unm-wr", pairs))


def test_mmpo_is_least_at_its_target():
    # CE(t, z) has its minimum where σ(z) = t: β₀A = 2.2·k
    at_target = one_pair(log_ratio=2.2 * 2 / 0.05)
    below, above = one_pair(log_ratio=80.0), one_pair(log_ratio=96.0)
    assert loss_of("mmpo", at_target) < loss_of("mmpo", below)
    assert loss_of("mmpo", at_target) < loss_of("mmpo", above)


def test_mmpo_keeps_the_complement_of_strong_targets():
    pair = replace(one_pair(200.0, strength=8.0), strength=torch.tensor([8.0]))
    single = PairLogps(**{k: v.float() if v.is_floating_point() else v for k, v in vars(pair).items()})
    z = 10.0
    by_hand = zeta(-z) / (1 + math.exp(-17.6)) + zeta(z) / (1 + math.exp(17.6))
    assert loss_of("mmpo", single).item() == pytest.approx(by_hand, rel=1e-5)


def test_simpo_without_margin_is_the_plain_logistic_loss_of_mean_gaps():
    pairs = random_pairs(6)
    assert torch.allclose(loss_of("simpo", pairs, gamma=0.0), softplus(-2.5 * pairs.mean_policy_gap))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_threshold_semantics(scale):
    """Γ = 0 (loss log 2) at β₀A = τ·m·q under AO and at τ·m under WR, whatever the scale."""
    assert loss_of("unm-ao", one_pair(2 * scale / 0.05, 2.0, scale)).item() == pytest.approx(math.log(2))
    assert loss_of("unm-wr", one_pair(2 / 0.05, 2.0, scale)).item() == pytest.approx(math.log(2))


def test_scale_sets_wr_sensitivity_at_the_margin():
    """∂ζ((c − b)/q)/∂b = −1/(2q) at b = c ("Connection to policy training")."""
    for scale in (0.5, 1.0, 2.0):
        pair = one_pair(40.0, 2.0, scale)
        chosen = pair.chosen.clone().requires_grad_()
        loss_of("unm-wr", replace(pair, chosen=chosen)).sum().backward()
        assert chosen.grad.item() == pytest.approx(-0.05 / (2 * scale))


# --- Adaptive Preference Scaling ------------------------------------------------------------------


@given(st.floats(-60, 60), st.floats(0.01, 0.6))
def test_ada_dpo_solves_its_inner_problem(gap, rho):
    pair = one_pair(log_ratio=gap / 0.05)
    found = loss_of("ada-dpo", pair, rho=rho).item()
    grid = torch.linspace(0.5, 2.0, 20001, dtype=torch.float64)
    values = grid * softplus(-gap / grid) + (rho - math.log(2)) * grid
    assert found == pytest.approx(values.min().item(), abs=1e-6)


def test_ada_dpo_bounds():
    with pytest.raises(UserError, match=r"'ada-dpo': low \(3\.0\) must not exceed high"):
        loss_of("ada-dpo", one_pair(), low=3.0)
    assert loss_of("ada-dpo", one_pair(0.0), rho=1e-6).isfinite()
    fixed = loss_of("ada-dpo", one_pair(), low=1.0, high=1.0, rho=math.log(2))
    assert fixed.item() == pytest.approx(BY_HAND["dpo"])  # a scale of one, no entropy term
