"""β-DPO, γ-PO and MixDPO, checked against slow code written from the paper, and how they handle their state."""

import math
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from unmdpo.objectives import OBJECTIVES, AdaptiveObjective

ADAPTIVE = [name for name, objective in OBJECTIVES.items() if isinstance(objective, AdaptiveObjective)]


def log_ratios(n=20, seed=0, spread=5.0):
    return spread * torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same_state(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# --- State ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADAPTIVE)
def test_same_seed_same_run_other_seed_other_run(name):
    objective = OBJECTIVES[name]

    def run(seed):
        state = objective.init(seed)
        for i in range(4):
            knobs, state = objective.adapt(log_ratios(seed=i), state)
        return knobs, state

    assert same_state(run(42)[1], run(42)[1])
    assert same_state(run(42)[0], run(42)[0])
    assert not same_state(run(42)[1], run(17)[1])


@pytest.mark.parametrize("name", ADAPTIVE)
def test_state_survives_safetensors_exactly(name):
    objective = OBJECTIVES[name]
    _, state = objective.adapt(log_ratios(), objective.init(42))
    restored = objective.restore(load(save(state._asdict())))
    assert same_state(state, restored)
    for i in range(3):
        (knobs, state), (again, restored) = (objective.adapt(log_ratios(seed=i), s) for s in (state, restored))
        assert same_state(knobs, again)
    assert same_state(state, restored)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_validation_changes_nothing_and_repeats(name):
    objective = OBJECTIVES[name]
    _, state = objective.adapt(log_ratios(), objective.init(42))
    before = [tensor.clone() for tensor in state]
    first, after = objective.adapt(log_ratios(seed=5), state, train=False)
    second, _ = objective.adapt(log_ratios(seed=5), state, train=False)
    assert same_state(before, after)
    assert same_state(first, second)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adapt_is_pure(name):
    """The given state is never changed in place, and log-ratios may carry a gradient."""
    objective = OBJECTIVES[name]
    state = objective.init(42)
    before = [tensor.clone() for tensor in state]
    knobs, _ = objective.adapt(log_ratios().requires_grad_(), state)
    assert same_state(before, state)
    assert not any(tensor.requires_grad for tensor in knobs)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_batch_without_pairs_is_refused(name):
    with pytest.raises(ValueError, match="without valid pairs"):
        OBJECTIVES[name].adapt(torch.empty(0), OBJECTIVES[name].init(42))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_what_is_not_finite_is_refused(name):
    objective = OBJECTIVES[name]
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match=r"pairs \[1\] are not finite"):
            objective.adapt(torch.tensor([0.0, bad, 1.0]), objective.init(42))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_knobs_of_other_pairs_are_refused(name):
    from tests.worlds.objectives import random_pairs

    objective = OBJECTIVES[name]
    knobs, _ = objective.adapt(torch.tensor([1.0]), objective.init(42))
    with pytest.raises(ValueError, match="knobs for 1 pairs, but the batch has 3"):
        objective.loss(random_pairs(3), knobs)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_singleton_and_extreme_batches_are_defined(name):
    objective = OBJECTIVES[name]
    for batch in (torch.tensor([3.0]), torch.tensor([0.0, 1e4, -1e4, 0.1, 0.2]), torch.zeros(6)):
        knobs, state = objective.adapt(batch, objective.init(42))
        assert all(tensor.isfinite().all() for tensor in knobs)
        assert all(tensor.isfinite().all() for tensor in state)


# --- β-DPO ----------------------------------------------------------------------------------------


def test_beta_dpo_by_hand():
    objective, batch = OBJECTIVES["beta-dpo"], log_ratios(10)
    knobs, state = objective.adapt(batch, objective.init(42))
    mean = 0.9 * 0 + 0.1 * batch.mean()
    spread = 0.9 * 1 + 0.1 * batch.std()
    assert state.mean == pytest.approx(mean.item())
    assert state.spread == pytest.approx(spread.item())
    weights = torch.exp(-0.5 * ((batch - mean) / spread) ** 2)
    rng = torch.Generator().manual_seed(42 + 93)
    selected = torch.multinomial(weights / weights.max(), 8, replacement=False, generator=rng)
    assert sorted(selected.tolist()) == knobs.weight.nonzero().flatten().tolist()
    assert knobs.weight[selected].tolist() == [10 / 8] * 8
    beta = 0.05 * (1 + 0.2 * (batch[selected].mean() - mean))
    assert knobs.beta.tolist() == pytest.approx([max(1e-3, beta.item())] * 10)


def test_beta_dpo_mean_over_all_is_mean_over_selected():
    from tests.worlds.objectives import random_pairs

    objective, pairs = OBJECTIVES["beta-dpo"], random_pairs(13)
    knobs, _ = objective.adapt(pairs.log_ratio, objective.init(42))
    chosen = knobs.weight > 0
    assert chosen.sum() == math.floor(0.8 * 13)
    plain = -torch.nn.functional.logsigmoid(knobs.beta * pairs.log_ratio)
    assert objective.loss(pairs, knobs).mean() == pytest.approx(plain[chosen].mean().item())


def test_beta_dpo_floor_and_singleton():
    objective = OBJECTIVES["beta-dpo"]
    knobs, state = objective.adapt(torch.tensor([-1000.0]), objective.init(42))
    assert knobs.beta.item() == 1e-3
    assert state.spread == pytest.approx(0.9)  # a singleton batch has no spread
    assert knobs.weight.item() == 1


def test_beta_dpo_validation_uses_all_pairs_and_running_statistics():
    objective, batch = OBJECTIVES["beta-dpo"], log_ratios(10)
    _, state = objective.adapt(log_ratios(seed=3), objective.init(42))
    knobs, _ = objective.adapt(batch, state, train=False)
    assert knobs.weight.tolist() == [1.0] * 10
    assert knobs.beta[0] == pytest.approx((0.05 * (1 + 0.2 * (batch.mean() - state.mean))).item())


def test_beta_dpo_outliers_do_not_empty_the_draw():
    objective = OBJECTIVES["beta-dpo"]
    batch = torch.tensor([0.0] + [1e4] * 9)  # nine weights underflow in any precision
    knobs, _ = objective.adapt(batch, objective.init(42))
    assert (knobs.weight > 0).sum() == 8


def test_beta_dpo_draws_by_weight_even_where_all_weights_underflow():
    """Every pair is forty or more deviations out, and half of them even further: the nearer half is drawn."""
    objective = OBJECTIVES["beta-dpo"]
    state = objective.init(42)._replace(mean=torch.tensor(-1e5, dtype=torch.float64))
    batch = torch.tensor([0.0, 300.0] * 8)
    for seed in range(5):
        state = state._replace(generator=torch.Generator().manual_seed(seed).get_state())
        knobs, _ = objective.adapt(batch, state, keep=0.5)
        assert knobs.weight.nonzero().flatten().tolist() == list(range(0, 16, 2))


def test_beta_dpo_momentum_moves_both_statistics():
    objective, batch = OBJECTIVES["beta-dpo"], log_ratios(10)
    _, state = objective.adapt(batch, objective.init(42), momentum=0.5)
    assert state.mean == pytest.approx(0.5 * batch.mean().item())
    assert state.spread == pytest.approx(0.5 + 0.5 * batch.std().item())


# --- γ-PO -----------------------------------------------------------------------------------------


def slow_gamma(current, recalled, gamma=0.02, regularization=10.0, step=0.05, iterations=20):
    """The mirror updates as the paper prints them, r = 0, …, 19, in NumPy loops."""
    a = np.array([*current, *recalled])
    n = len(a)
    p = np.full(n, 1 / n)
    for _ in range(iterations):
        margins = gamma * n * p
        h = [
            regularization * (1 + math.log(n * (p[j] + 1e-10))) + gamma / (1 + math.exp(-(margins[j] - a[j])))
            for j in range(n)
        ]
        unnormalised = p * np.exp(-step * np.array(h))
        p = unnormalised / unnormalised.sum()
    return margins[: len(current)] - gamma  # computed before the last update of p


def test_gamma_po_matches_the_printed_updates():
    objective = OBJECTIVES["gamma-po"]
    state = objective.init(42)
    queue_rng = random.Random(42 + 91)
    queue = [queue_rng.gauss(0, 1) for _ in range(8)]
    assert state.queue.tolist() == queue
    sample_rng = random.Random(42 + 92)
    for i in range(3):
        current = (0.05 * log_ratios(6, seed=i, spread=40.0)).tolist()
        recalled = sample_rng.sample(queue, min(len(queue), 256 - 6))
        knobs, state = objective.adapt(log_ratios(6, seed=i, spread=40.0), state)
        assert knobs.margin.tolist() == pytest.approx(slow_gamma(current, recalled), rel=1e-9, abs=1e-15)
        queue += current
        assert state.queue.tolist() == pytest.approx(queue)


def test_gamma_po_margins_deviate_around_zero_and_favour_large_gaps():
    objective = OBJECTIVES["gamma-po"]
    knobs, _ = objective.adapt(torch.tensor([-100.0, 0.0, 100.0]), objective.init(42))
    low, middle, high = knobs.margin.tolist()
    assert low < middle < high
    assert abs(high) < 0.02


def test_gamma_po_queue_is_first_in_first_out_and_bounded():
    objective = OBJECTIVES["gamma-po"]
    state = objective.init(42)
    for i in range(5):
        _, state = objective.adapt(torch.full((4,), float(i)), state, capacity=10)
    assert state.queue.tolist() == pytest.approx([0.05 * x for x in [2, 2, 3, 3, 3, 3, 4, 4, 4, 4]])


def test_gamma_po_survives_strong_regularization():
    objective = OBJECTIVES["gamma-po"]
    knobs, _ = objective.adapt(log_ratios(6), objective.init(42), regularization=2e4)
    assert knobs.margin.isfinite().all()


def test_gamma_po_large_batches_recall_nothing():
    objective = OBJECTIVES["gamma-po"]
    batch = log_ratios(300)
    knobs, _ = objective.adapt(batch, objective.init(42))
    assert knobs.margin.tolist() == pytest.approx(slow_gamma((0.05 * batch).tolist(), []), abs=1e-12)


def test_gamma_po_validation_seed():
    objective, batch = OBJECTIVES["gamma-po"], log_ratios(250)
    state = objective.init(42)
    recalled = random.Random(42 + 502).sample(state.queue.tolist(), 6)
    knobs, _ = objective.adapt(batch, state, train=False)
    assert knobs.margin.tolist() == pytest.approx(slow_gamma((0.05 * batch).tolist(), recalled), abs=1e-12)


# --- MixDPO ---------------------------------------------------------------------------------------


def test_mixdpo_matches_torchs_own_adamw():
    objective = OBJECTIVES["mixdpo"]
    state = objective.init(42)
    mu = torch.nn.Parameter(torch.tensor(math.log(0.1), dtype=torch.float64))
    rho = torch.nn.Parameter(torch.tensor(math.log(math.expm1(0.6)), dtype=torch.float64))
    assert torch.nn.functional.softplus(rho).item() == pytest.approx(0.6)
    optimizer = torch.optim.AdamW([mu, rho], lr=1e-4, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8)
    rng = torch.Generator().manual_seed(42 + 501)
    for i in range(5):
        a = log_ratios(7, seed=i, spread=30.0) - (400.0 if i == 2 else 0.0)  # one gradient is clipped
        noise = torch.randn(7, 16, generator=rng, dtype=torch.float64)
        b = torch.exp(mu + torch.nn.functional.softplus(rho) * noise)
        knobs, state = objective.adapt(a, state)
        assert torch.allclose(knobs.beta, b.detach(), rtol=1e-12)  # drawn before the update
        loss = -torch.log(torch.sigmoid(b * a[:, None]).mean(dim=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([mu, rho], 1.0)
        assert (norm > 1) == (i == 2)
        optimizer.step()
        assert state.parameters.tolist() == pytest.approx([mu.item(), rho.item()], rel=1e-10)


def test_mixdpo_loss_by_hand():
    from tests.worlds.objectives import random_pairs

    objective, pairs = OBJECTIVES["mixdpo"], random_pairs(5, spread=2.0)
    knobs, _ = objective.adapt(pairs.log_ratio, objective.init(42))
    by_hand = [
        -math.log(sum(1 / (1 + math.exp(-b * a)) for b in row) / 16)
        for row, a in zip(knobs.beta.tolist(), pairs.log_ratio.tolist(), strict=True)
    ]
    assert objective.loss(pairs, knobs).tolist() == pytest.approx(by_hand)


def test_mixdpo_validation_draws():
    objective = OBJECTIVES["mixdpo"]
    state = objective.init(42)
    knobs, _ = objective.adapt(log_ratios(3), state, train=False)
    noise = torch.randn(3, 16, generator=torch.Generator().manual_seed(42 + 1501), dtype=torch.float64)
    assert torch.allclose(knobs.beta, torch.exp(math.log(0.1) + 0.6 * noise))


def test_beta_dpo_draws_anew_in_every_update():
    """From one generator, so that two updates on one batch select differently."""
    objective, a = OBJECTIVES["beta-dpo"], log_ratios(n=40, spread=0.1)
    first, state = objective.adapt(a, objective.init(42))
    second, after = objective.adapt(a, state)
    assert not torch.equal(first.weight, second.weight)
    assert not torch.equal(state.generator, after.generator)
