"""Win rates worked out by hand; intervals checked against SciPy's bootstrap and a slow loop."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unmdpo.stats.evaluation import Judged, Outcome, Resamples, by_domain, compare, select


def judged(scores, characters=None):
    scores = np.array(scores, dtype=np.float64)
    return Judged(scores, np.ones(len(scores)) if characters is None else np.array(characters, dtype=np.float64))


def test_by_hand():
    candidate = judged([2.0, 1.0, 0.0, 5.0], [10, 20, 30, 40])
    baseline = judged([1.0, 1.0 + 5e-7, 3.0, 4.0], [10, 10, 10, 20])
    found = compare(candidate, baseline, Resamples.draw(4, seed=0))
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert found.win_rate.value == 62.5
    assert found.reward_difference.value == pytest.approx((1 - 5e-7 - 3 + 1) / 4)
    assert found.length_ratio.value == 2.0
    assert not found.eligible


def test_the_tie_threshold_is_inclusive():
    found = compare(judged([1e-6, 1.1e-6, -1.1e-6]), judged([0.0, 0, 0]), Resamples.draw(3, 0))
    assert (found.wins, found.ties, found.losses) == (1, 1, 1)


def test_intervals_equal_a_slow_loop_over_the_same_draws():
    rng = np.random.default_rng(1)
    candidate, baseline = (judged(rng.normal(size=120), rng.integers(20, 900, 120)) for _ in range(2))
    drawn = np.random.default_rng(7).integers(0, 120, size=(2000, 120))
    found = compare(candidate, baseline, Resamples.draw(120, seed=7, resamples=2000))
    difference = (candidate.scores - baseline.scores).ravel()
    slow = [
        (100 * np.mean(difference[row] > 0), difference[row].mean(),
         candidate.characters[0, row].mean() / baseline.characters[0, row].mean())
        for row in drawn
    ]  # fmt: skip
    for estimate, draws in zip(
        (found.win_rate, found.reward_difference, found.length_ratio), zip(*slow, strict=True), strict=True
    ):
        assert [estimate.low, estimate.high] == pytest.approx(np.percentile(draws, [2.5, 97.5]), rel=1e-6)


def test_intervals_agree_with_scipys_bootstrap():
    rng = np.random.default_rng(2)
    candidate, baseline = judged(rng.normal(0.3, 1, 400)), judged(rng.normal(0, 1, 400))
    found = compare(candidate, baseline, Resamples.draw(400, seed=1)).reward_difference
    theirs = stats.bootstrap(
        ((candidate.scores - baseline.scores).ravel(),), np.mean, n_resamples=10_000, method="percentile", rng=3
    ).confidence_interval
    assert [found.low, found.high] == pytest.approx([theirs.low, theirs.high], abs=0.01)


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=2, max_size=40))
def test_exchanging_the_policies_mirrors_everything(scores):
    a, b = (judged(column) for column in zip(*scores, strict=True))
    resamples = Resamples.draw(len(scores), seed=0, resamples=200)
    there, back = compare(a, b, resamples), compare(b, a, resamples)
    assert there.win_rate.value == pytest.approx(100 - back.win_rate.value)
    assert there.win_rate.low == pytest.approx(100 - back.win_rate.high, abs=1e-4)
    assert there.reward_difference.value == pytest.approx(-back.reward_difference.value)
    assert (there.wins, there.ties) == (back.losses, back.ties)
    same = compare(a, a, resamples)
    assert (same.win_rate.value, same.win_rate.low, same.win_rate.high) == (50, 50, 50)


def test_domains_are_compared_on_their_own_prompts():
    candidate, baseline = judged([1.0, 2, 3, 4]), judged([0.0, 3, 2, 5])
    found = by_domain(candidate, baseline, ["b", "a", "b", "a"], seed=0)
    assert list(found) == ["a", "b"]
    assert (found["a"].win_rate.value, found["b"].win_rate.value) == (0, 100)


def outcome(reward, length, wins=50):
    from unmdpo.stats.evaluation import Estimate

    return Outcome(10, 5, 0, 5, Estimate(wins, 40, 60), Estimate(reward, 0, 1), Estimate(length, 1, 1.3), 0.5, 0.5)


def test_the_selection_rule():
    candidates = {"long": outcome(2.0, 1.2), "good": outcome(1.0, 1.15), "fair": outcome(0.5, 1.0)}
    assert select(candidates) == "good"
    assert select({"worse": outcome(-0.1, 1.0)}) is None
    assert select({"a": outcome(1.0, 1.0, 50), "b": outcome(1.0, 1.0, 60), "c": outcome(1.0, 1.0, 55)}) == "b"


def test_policies_that_say_nothing_have_a_length_ratio():
    silent, short = judged([0.0, 0.0], [0, 0]), judged([0.0, 0.0], [3, 0])
    for a, b, ratio in ((silent, silent, 1.0), (short, silent, 1.5), (silent, short, 1 / 1.5)):
        found = compare(a, b, Resamples.draw(2, seed=0)).length_ratio
        assert found.value == pytest.approx(ratio)
        assert np.isfinite([found.low, found.high]).all()


def test_scores_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match=r"scores of prompts \[1\] are not finite"):
        judged([1.0, np.nan])


def test_twelve_methods_on_800_prompts_take_under_two_seconds():
    rng = np.random.default_rng(0)
    policies = [judged(rng.normal(size=800), rng.integers(50, 2000, 800)) for _ in range(12)]
    started = time.process_time()
    resamples = Resamples.draw(800, seed=42)
    for policy in policies[1:]:
        compare(policy, policies[0], resamples)
    assert time.process_time() - started < 2


def test_samples_are_averaged_within_their_prompt():
    """By hand: prompt 0 wins once of two, prompt 1 wins and ties."""
    ours = Judged(np.array([[[2.0, 0.0], [1.0, 0.5]]]), np.array([[[4.0, 6.0], [10.0, 10.0]]]))
    theirs = Judged(np.array([[[1.0, 1.0], [0.5, 0.5]]]), np.full((1, 2, 2), 5.0))
    found = compare(ours, theirs, Resamples.draw(2, seed=0, resamples=200))
    assert (found.prompts, found.wins, found.ties, found.losses) == (2, 2, 1, 1)
    assert found.win_rate.value == pytest.approx((50 + 75) / 2)
    assert found.reward_difference.value == pytest.approx((0.0 + 0.25) / 2)
    assert found.length_ratio.value == pytest.approx(7.5 / 5)
    assert (found.win_rate.low, found.win_rate.high) == (50, 75)  # a prompt is drawn with all its samples


def test_a_single_answer_is_compared_with_every_sample():
    one, four = judged([0.0, 1.0]), Judged(np.array([[[1.0, -1, 1, 1], [0.0, 0, 0, 0]]]), np.ones((1, 2, 4)))
    assert compare(four, one, Resamples.draw(2, seed=0, resamples=200)).win_rate.value == pytest.approx((75 + 0) / 2)


def test_intervals_over_samples_cover():
    """Prompts and samples both vary; the true win rate is the mean of many worlds."""
    rng, n, k, worlds = np.random.default_rng(7), 60, 4, 300

    def world():
        scores = 0.3 + rng.normal(size=(1, n, 1)) + rng.normal(size=(1, n, k))
        return compare(
            Judged(scores, np.ones_like(scores)), judged([0.0] * n), Resamples.draw(n, seed=1, resamples=500)
        )

    found = [world() for _ in range(worlds)]
    truth = np.mean([one.win_rate.value for one in found])
    assert 0.90 <= np.mean([one.win_rate.low <= truth <= one.win_rate.high for one in found]) <= 0.985
    assert 0.90 <= np.mean([one.reward_difference.low <= 0.3 <= one.reward_difference.high for one in found]) <= 0.985


def test_intervals_of_domains_are_drawn_with_the_seed():
    rng = np.random.default_rng(0)
    candidate, baseline = judged(rng.normal(0.2, 1, 40)), judged(rng.normal(0, 1, 40))
    for seed in (0, 42):
        found = by_domain(candidate, baseline, ["a"] * 40, seed=seed)["a"]
        expected = compare(candidate, baseline, Resamples.draw(40, seed))
        assert found.to_dict() == expected.to_dict()
    other = compare(candidate, baseline, Resamples.draw(40, 0))
    assert found.reward_difference != other.reward_difference
