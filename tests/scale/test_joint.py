"""Scales that learn beside a policy, step by step."""

import math
from dataclasses import replace

import pytest
import torch

from tests.worlds.scales import BESIDE, small_world
from unmdpo.scale import ESTIMATORS, EMAScale, JointScale, PooledScale, SigmoidJointScale
from unmdpo.scale.maps import ScaleHead


@pytest.mark.parametrize("placement", ["ao", "wr"])
def test_ema_steps_equal_a_slow_twin(placement):
    units, rows = small_world(40)
    rows = replace(rows, evidence=30 * rows.evidence)
    ema = EMAScale(placement=placement, learning_rate=1e-2).start(units, rows.unit)
    counts = torch.bincount(rows.unit, minlength=40)
    repeated = units.features.repeat_interleave(counts, 0).double()
    x = ((units.features - repeated.mean(0)) / repeated.std(0, correction=0)).float()
    head = ScaleHead(12, 3, seed=742, activation="tanh")
    assert isinstance(head.activation, torch.nn.Tanh)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-3)
    rng, center = torch.Generator().manual_seed(742), torch.zeros(())
    for i in range(4):
        batch = rows.select(torch.arange(16 * i, 16 * (i + 1)))
        ema.scales(batch.unit)
        ema.step(batch.unit, batch.evidence, batch.strength)
        v, d = x[batch.unit], units.domains[batch.unit]
        raw = head(v, d)
        center = 0.9 * center + 0.1 * raw.detach().mean()
        noise = 0.01 * torch.randn(v.shape, generator=rng)
        log_q = math.log(2) * torch.tanh(raw - center)
        moved = math.log(2) * torch.tanh(head(v + noise, d) - center)
        q, gap, c = log_q.exp(), batch.evidence, batch.strength
        score = gap / q - c if placement == "ao" else (gap - c) / q
        loss = torch.nn.functional.softplus(-score).mean() + log_q.mean() ** 2
        loss = loss + 0.01 * (((moved - log_q) / 0.01) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            slow = (math.log(2) * torch.tanh(head(x, units.domains) - center)).exp()
        assert torch.allclose(ema.q_, slow, atol=1e-6)
    assert (ema.q_ - 1).abs().max() > 1e-3


@pytest.mark.parametrize("name", BESIDE)
def test_the_policy_gets_the_head_from_before_the_step(name):
    units, rows = small_world()
    estimator = ESTIMATORS[name].make().start(units, rows.unit)
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

    whole = ESTIMATORS[name].make().start(units, rows.unit)
    learn(whole, range(12))
    first = ESTIMATORS[name].make().start(units, rows.unit)
    learn(first, range(5))
    resumed = ESTIMATORS[name].make().start(units, rows.unit).load_state(load(save(first.state())))
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
    pooled = PooledScale(placement="ao", updates=1).fit(units, rows)
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


@pytest.mark.parametrize("name", BESIDE)
def test_validation_moves_nothing(name):
    units, rows = small_world()
    estimator = ESTIMATORS[name].make().start(units, rows.unit)
    estimator.scales(rows.unit[:20])
    estimator.step(rows.unit[:20], rows.evidence[:20], rows.strength[:20])
    before = {key: value.clone() for key, value in estimator.state().items()}
    first = estimator.scales(rows.unit[5:9], train=False)
    assert torch.equal(first, estimator.scales(rows.unit[5:9], train=False))
    assert all(torch.equal(value, estimator.state()[key]) for key, value in before.items())


@pytest.mark.parametrize("name", BESIDE)
def test_bad_batches_are_refused_before_they_do_harm(name):
    units, rows = small_world()
    estimator = ESTIMATORS[name].make().start(units, rows.unit)
    with pytest.raises(ValueError, match="without valid pairs"):
        estimator.scales(rows.unit[:0])
    with pytest.raises(ValueError, match="finite evidence"):
        estimator.step(rows.unit[:2], torch.tensor([1.0, torch.nan]), rows.strength[:2])
    with pytest.raises(ValueError, match=r"evidence has shape \(2, 1\)"):
        estimator.step(rows.unit[:2], rows.evidence[:2, None], rows.strength[:2])
    assert estimator.scales(rows.unit).tolist() == [1.0] * len(rows)


def test_the_sigmoid_variant_saturates_and_the_centered_one_does_not():
    """Residuals are mostly negative, so a larger scale is always better ("Earlier joint scale saturation")."""
    units, rows = small_world()
    evidence = rows.evidence - 5

    def learn(estimator):
        estimator.start(units, rows.unit)
        for _ in range(400):
            estimator.step(rows.unit, evidence, rows.strength)
        return estimator.finish(replace(rows, evidence=evidence)).diagnostics_

    sigmoid = learn(SigmoidJointScale(learning_rate=1e-2))
    joint = learn(JointScale(placement="wr", learning_rate=1e-2))
    assert sigmoid["geometric_mean"] > 1.8
    assert joint["geometric_mean"] == pytest.approx(1, abs=1e-6)
