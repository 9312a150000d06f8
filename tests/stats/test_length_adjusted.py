"""Win rates at equal length, and how much a judge likes length."""

import numpy as np
import pytest

from tests.worlds.recomputed import equal_length
from unmdpo.stats.evaluation import Judged
from unmdpo.stats.length_adjusted import length_adjusted, longer_chosen, longer_preferred


def sides(rng, n=400, gain=0.0, longer=0.0, liking=0.0, seeds=None):
    """Two policies; a judge that adds `liking` for each standard deviation of length."""
    shape = n if seeds is None else (seeds, n)
    lengths = [rng.normal(100 + longer, 20, shape).clip(1), rng.normal(100, 20, shape).clip(1)]
    scores = [
        plus + rng.normal(size=shape) + liking * length / 20 for plus, length in zip((gain, 0), lengths, strict=True)
    ]
    return [Judged(score, length) for score, length in zip(scores, lengths, strict=True)]


@pytest.mark.parametrize("seeds", [None, 3])
def test_it_is_scikit_learn_s_regression(seeds):
    ours, theirs = sides(np.random.default_rng(1), gain=0.4, longer=15, liking=0.8, seeds=seeds)
    assert length_adjusted(ours, theirs).value == pytest.approx(equal_length(ours, theirs), abs=1e-4)


def test_a_policy_that_is_only_longer_gains_nothing():
    ours, theirs = sides(np.random.default_rng(2), n=3000, longer=15, liking=1.0)
    assert (ours.scores > theirs.scores).mean() > 0.6
    found = length_adjusted(ours, theirs)
    assert found.low < 50 < found.high
    assert found.high - found.low < 6


def test_the_interval_is_about_right():
    covered = 0
    for world in range(100):
        found = length_adjusted(*sides(np.random.default_rng(world), longer=10, liking=0.5))
        covered += found.low <= 50 <= found.high
    assert 88 <= covered <= 100


def test_a_prompt_s_seeds_count_once():
    """Equal seeds say no more than one."""
    ours, theirs = sides(np.random.default_rng(4), gain=0.3)
    thrice = [Judged.of_seeds([side] * 3) for side in (ours, theirs)]
    one, three = length_adjusted(ours, theirs), length_adjusted(*thrice)
    assert three.low == pytest.approx(one.low, abs=0.1)
    assert three.high == pytest.approx(one.high, abs=0.1)


def test_nothing_is_said_where_one_side_is_always_longer():
    ours, theirs = sides(np.random.default_rng(5), n=500, gain=1.0, longer=200)
    assert length_adjusted(ours, theirs) is None


def test_seeds_that_differ_widen_the_interval():
    ours, theirs = sides(np.random.default_rng(6), seeds=3)
    apart = Judged(ours.scores + np.array([-1.0, 0.0, 1.0])[:, None, None], ours.characters)
    same, wide = (length_adjusted(side, theirs) for side in (ours, apart))
    assert wide.high - wide.low > 2 * (same.high - same.low)


def test_extremes_are_finite():
    n = 50
    wins, losses = Judged(np.ones(n), np.arange(n) + 1.0), Judged(np.zeros(n), np.full(n, 20.0))
    assert 95 < length_adjusted(wins, losses).value < 100
    assert length_adjusted(wins, Judged(np.zeros(n), np.arange(n) + 1.0)) is None  # equally long


def test_longer_answers_preferred_by_hand():
    first, second = Judged(np.array([1.0, 0, 0]), np.array([5.0, 5, 5])), Judged(np.zeros(3), np.array([3.0, 3, 5]))
    assert longer_preferred([first, second]).value == 75  # preferred, tied, and equally long
    assert longer_preferred([first]) is None
    assert longer_chosen(np.array([2.0, 1, 3]), np.array([1.0, 2, 3]), ["a", "b", "c"]).value == 50
    assert longer_chosen(np.array([1.0]), np.array([1.0]), ["a"]) is None


def test_the_share_s_interval_is_over_prompts():
    one = longer_chosen(np.array([2.0, 1, 2, 2]), np.array([1.0, 2, 1, 1]), [*"abcd"])
    chosen, rejected, prompts = ([2.0, 1, 2, 2], [1.0, 2, 1, 1], [*"abcd"])
    repeated = longer_chosen(*(np.repeat(values, 50) for values in (chosen, rejected, prompts)))
    assert repeated.high - repeated.low == pytest.approx(one.high - one.low)
