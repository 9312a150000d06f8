"""What each estimator promises beyond the contract: slow reference fits, seeds, resuming, recovery."""

import math
from dataclasses import replace

import pytest
import torch
from benchmarks.synthetic import random_utility_world
from scipy.stats import spearmanr

from tests.worlds.scales import BESIDE, small_world
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.scale import (
    ESTIMATORS,
    CrossFittedScale,
    EMAScale,
    EntropyScale,
    PooledScale,
    Rows,
    Units,
    load_scale,
    save_scale,
)
from unmdpo.scale.entropy import entropy_targets
from unmdpo.scale.maps import ScaleHead

# --- Weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pooled", "ridge", "joint", "ema"])
def test_a_row_of_weight_two_is_a_row_that_comes_twice(name):
    units, rows = small_world(prompts=40)
    rows = replace(rows.valid_rows, valid=None)
    often = 1 + (torch.arange(len(rows)) % 3 == 0).long()
    repeated = rows.select(torch.arange(len(rows)).repeat_interleave(often))
    weighed = replace(rows, weight=often / often.float().mean())
    found = []
    for given in (repeated, weighed):
        estimator = ESTIMATORS[name].make(**({"smoothness": 0.0} if name == "ema" else {}))
        if name in BESIDE:
            estimator.start(units, rows.unit)
            for _ in range(5):
                estimator.scales(rows.unit)
                estimator.step(given.unit, given.evidence, given.strength, given.weight)
            found.append(estimator.q_)
        else:
            found.append(estimator.fit(units, given).q_)
    assert torch.allclose(*found, rtol=1e-4)
    assert float(found[0].std()) > 1e-3 or name in BESIDE


# --- Pooled ---------------------------------------------------------------------------------------


def slow_pooled(units, rows, updates, placement="wr", penalty=0.01):
    """Three updates of the paper's fit, row by row, with plain torch."""
    x = units.features.double()
    x = ((x - x.mean(0)) / x.std(0, correction=0)).float()
    made = ScaleHead(x.shape[1], 3, seed=42)
    first, last = torch.nn.Linear(x.shape[1], 16), torch.nn.Linear(16, 1)
    first.load_state_dict(made.hidden.state_dict())
    last.load_state_dict(made.output.state_dict())
    domain = torch.nn.Parameter(torch.zeros(3))
    parameters = [domain, *first.parameters(), *last.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    b = math.log(2) / 2

    def log_scales():
        a = last(torch.nn.functional.gelu(first(x))).squeeze(1) + domain[units.domains]
        u = b * torch.tanh((a - a.mean()) / b)
        return u - u.mean()

    for _ in range(updates):
        optimizer.zero_grad()
        log_q = log_scales()
        losses = []
        for i in range(len(rows)):
            if rows.valid[i]:
                q = log_q[rows.unit[i]].exp()
                gap, c = rows.evidence[i], rows.strength[i]
                score = (gap - c) / q if placement == "wr" else gap / q - c
                losses.append(torch.nn.functional.softplus(-score))
        loss = torch.stack(losses).mean() + penalty * (log_q**2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return log_scales().detach().exp()


@pytest.mark.parametrize("placement", ["wr", "ao"])
def test_pooled_fit_equals_a_slow_twin(placement):
    """Masked and unevenly repeated rows, with residuals large enough for clipping to matter."""
    units, rows = small_world(30)
    valid = rows.unit % 7 != 0
    rows = replace(rows, valid=valid, evidence=torch.where(valid, 40 * rows.evidence, torch.nan))
    for updates in (1, 3):
        fast = PooledScale(placement=placement, updates=updates, penalty=0.5).fit(units, rows).q_
        slow = slow_pooled(units, rows, updates, placement, penalty=0.5)
        assert torch.allclose(fast, slow, atol=1e-6)
        assert (fast - 1).abs().max() > 1e-5


def test_diagnostics_by_hand():
    from unmdpo.scale.diagnostics import diagnose

    q = torch.tensor([0.5, 2.0, 1.0])
    rows = Rows(
        unit=torch.tensor([0, 1, 1, 2]),
        evidence=torch.tensor([1.0, -1.0, 3.0, torch.nan]),
        strength=torch.tensor([2.0, 1.0, 3.0, 1.0]),
        valid=torch.tensor([True, True, True, False]),
        lengths=torch.tensor([9.0, 5.0, 5.0, 0.0]),
    )
    found = diagnose(q, rows, rows.strength, torch.tensor([-1.0, 0.96, 0.0]))
    assert found["geometric_mean"] == pytest.approx(1)
    assert (found["min"], found["max"]) == (0.5, 2.0)
    assert found["negative_residuals"] == pytest.approx(2 / 3)  # −1, −2 and 0
    assert found["saturated"] == pytest.approx(2 / 3)
    assert (found["valid_rows"], found["masked_rows"]) == (3, 1)
    assert found["strength_correlation"] == pytest.approx(0, abs=1e-9)  # strengths 2, 1, 3 at log q −, +, +
    assert found["length_correlation"] == pytest.approx(-1)


def test_saturation_is_seen_through_the_centered_map():
    units, rows = small_world(400, rows_per_prompt=1)
    loose = PooledScale(updates=20).fit(units, rows)
    pinned = PooledScale(updates=600, learning_rate=3e-2, penalty=0.0).fit(units, rows)
    assert loose.diagnostics_["saturated"] < 0.05
    assert pinned.diagnostics_["saturated"] > 0.3


def test_no_updates_is_exactly_one():
    units, rows = small_world()
    assert PooledScale(updates=0).fit(units, rows).q_.tolist() == [1.0] * len(units)
    for name in BESIDE:
        assert ESTIMATORS[name].make().start(units, rows.unit).q_.tolist() == [1.0] * len(units)


def test_curve_starts_at_the_constant_scale_and_falls():
    units, rows = small_world()
    estimator = PooledScale().fit(units, rows)
    residual = rows.evidence - rows.strength
    assert estimator.curve_[0] == pytest.approx(torch.nn.functional.softplus(-residual).mean().item(), rel=1e-6)
    assert estimator.curve_[-1] < estimator.curve_[0]
    assert len(estimator.curve_) == 150


def test_placements_tau_and_levels_matter():
    units, rows = small_world()
    base = PooledScale().fit(units, rows).q_
    for settings in ({"placement": "ao"}, {"tau": 0.5}, {"levels": (1.0, 4.0, 9.0)}, {"penalty": 0.0}):
        assert not torch.allclose(PooledScale(**settings).fit(units, rows).q_, base)
    linear = PooledScale(levels=(1.0, 2.0, 3.0)).fit(units, rows).q_
    assert torch.equal(linear, base)


def test_uncentered_scales_follow_the_mean_residual():
    """All residuals are negative: an uncentered scale grows as a whole, a centered one cannot."""
    units, rows = small_world()
    gloomy = replace(rows, evidence=rows.evidence - 5)
    free = PooledScale(centered=False, penalty=0.0, updates=300).fit(units, gloomy)
    assert free.diagnostics_["geometric_mean"] > 1.1
    assert free.diagnostics_["negative_residuals"] > 0.95
    held = PooledScale().fit(units, gloomy)
    assert held.diagnostics_["geometric_mean"] == pytest.approx(1, abs=1e-6)


def test_rows_weigh_the_loss_and_units_the_centering():
    """Repeating a unit's rows changes the fit, while the geometric mean over units stays one."""
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
    """Heteroskedastic random utility with many prompts, where q* is a function of the features."""
    world = random_utility_world(4000, pilot_noise=pilot_noise, seed=11)
    found = PooledScale().fit(world.units, world.rows)
    assert spearmanr(found.q_, world.true_scale).statistic > least
    new = random_utility_world(4000, seed=11).units  # the same prompts, as if unseen
    assert spearmanr(found.predict(new), world.true_scale).statistic > least


def test_gaps_are_mistaken_for_noise():
    """What the paper warns about: if only reward gaps vary, the scale still varies with them."""
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
    outside = units.folds != 2  # each head is centered over the units it is fitted to
    assert scale.heads_[2].log_scales(units.select(outside)).mean().item() == pytest.approx(0, abs=1e-6)


def test_documented_seeds():
    units, rows = small_world()
    cross = CrossFittedScale(updates=0).fit(units, rows)
    with pytest.warns(UnmdpoWarning, match="q ≡ 1"):
        entropy = EntropyScale(epochs=0, otherwise="one").fit(units, rows)
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
    assert all(scale.gate_.values())
    q = scale.q_[rows.unit]
    assert q[disputed].mean() > q[~disputed].mean()


def test_entropy_that_features_do_not_predict_is_no_scale(tmp_path):
    """The paper's gate: a held-out correlation that is not positive."""
    units, rows = small_world()
    rng = torch.Generator().manual_seed(3)
    anyhow = replace(rows, votes=rows.votes[torch.randperm(len(rows), generator=rng)])
    with pytest.raises(UserError, match=r"correlation is positive: no.*otherwise: one"):
        EntropyScale(learning_rate=1e-2).fit(units, anyhow)
    with pytest.warns(UnmdpoWarning, match="q ≡ 1 is taken instead"):
        scale = EntropyScale(learning_rate=1e-2, otherwise="one").fit(units, anyhow)
    assert scale.diagnostics_["target_correlation"] <= 0
    assert scale.diagnostics_["gate"] == 0
    save_scale(scale, tmp_path)
    for one in (scale, load_scale(tmp_path)):
        assert one.q_.tolist() == one.predict(units).tolist() == [1.0] * len(units)


def test_missing_inputs_are_said():
    units, rows = small_world()
    with pytest.raises(ValueError, match="fold of every unit"):
        CrossFittedScale().fit(Units(units.features), rows)
    with pytest.raises(ValueError, match="at least two folds"):
        CrossFittedScale().fit(replace(units, folds=torch.zeros(len(units), dtype=torch.int64)), rows)
    with pytest.raises(ValueError, match="need votes"):
        EntropyScale().fit(units, replace(rows, votes=None))


def test_cross_fitted_heads_standardize_over_all_units():
    units, rows = small_world()
    scale = CrossFittedScale(updates=1).fit(units, rows)
    for head in scale.heads_:
        assert torch.allclose(head.standardizer.mean, units.features.mean(0), atol=1e-6)


def test_entropy_fit_equals_a_slow_twin():
    """One epoch in one batch: SmoothL1, roughness, decay and clipping in plain torch."""
    units, rows = small_world(40, seed=10)
    scale = EntropyScale(epochs=1, learning_rate=1e-2).fit(units, rows)
    counts = torch.bincount(rows.unit, minlength=40)
    repeated = units.features.repeat_interleave(counts, 0).double()
    x = ((units.features - repeated.mean(0)) / repeated.std(0, correction=0)).float()
    targets = entropy_targets(rows.votes)
    order = sorted(range(len(rows)), key=lambda i: (rows.unit[i].item(), targets[i].item()))
    raw = torch.empty(40)
    for fold in range(5):
        kept = [i for i in order if units.folds[rows.unit[i]] != fold]
        seed = 260827 + 1009 * (fold + 1)
        head = ScaleHead(12, 3, seed=seed)
        optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-3)
        rng = torch.Generator().manual_seed(seed)
        shuffled = torch.tensor(kept)[torch.randperm(len(kept), generator=rng)]
        v, d = x[rows.unit[shuffled]], units.domains[rows.unit[shuffled]]
        noise = 0.01 * torch.randn(v.shape, generator=rng)
        base = head(v, d)
        rough = (((head(v + noise, d) - base) / 0.01) ** 2).mean()
        loss = torch.nn.SmoothL1Loss(beta=1.0)(base, targets[shuffled].float()) + 0.01 * rough
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            raw[units.folds == fold] = head(x, units.domains)[units.folds == fold]
    b = math.log(2) / 2
    row_raw = raw[rows.unit]
    u, row_u = (b * torch.tanh((a - row_raw.mean()) / b) for a in (raw, row_raw))
    assert torch.allclose(scale.q_, (u - row_u.mean()).exp(), atol=1e-6)
    assert (scale.q_ - 1).abs().max() > 1e-4


def test_loading_nonsense_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no fitted scale here"):
        load_scale(tmp_path)
    for text in ('{"estimator": "nope", "settings": {}}', '{"estimator": "constant", "settings": {"width": 3}}', "["):
        (tmp_path / "scale.json").write_text(text)
        with pytest.raises(UserError, match="not a readable scale"):
            load_scale(tmp_path)
    units, rows = small_world()
    save_scale(PooledScale(updates=1).fit(units, rows), tmp_path)
    (tmp_path / "scale.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="not a readable scale"):
        load_scale(tmp_path)


def test_rows_of_other_units_are_renumbered():
    rows = Rows(torch.tensor([0, 2, 2, 3]), torch.arange(4.0), torch.ones(4))
    kept = rows.reindexed(torch.tensor([True, False, True, False]))
    assert kept.unit.tolist() == [0, 1, 1]
    assert kept.evidence.tolist() == [0.0, 1.0, 2.0]
