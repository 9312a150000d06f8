"""Several seeds: means over them, intervals that resample them too, Holm's correction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.recomputed import corrected, recomputed
from unmdpo.recipe.seeds import TrainingRun, pair_by_seed
from unmdpo.stats.evaluation import Judged, Resamples, compare, holm

RNG = np.random.default_rng(3)


def of(scores):
    scores = np.asarray(scores, dtype=np.float64)
    return Judged(scores, np.full(scores.shape, 10.0))


def test_the_mean_over_seeds_is_the_mean_of_their_values():
    ours, theirs = RNG.normal(0.2, 1, (3, 50)), RNG.normal(0, 1, (3, 50))
    resamples = Resamples.draw(50, seed=1)
    together = compare(of(ours), of(theirs), resamples)
    each = [compare(of(a), of(b), resamples) for a, b in zip(ours, theirs, strict=True)]
    assert together.reward_difference.value == pytest.approx(np.mean([one.reward_difference.value for one in each]))
    assert together.win_rate.value == pytest.approx(np.mean([one.win_rate.value for one in each]))
    assert together.wins == sum(one.wins for one in each)
    assert together.prompts == 50


def test_one_seed_gives_what_no_seeds_give():
    ours, theirs = RNG.normal(size=40), RNG.normal(size=40)
    resamples = Resamples.draw(40, seed=5)
    assert compare(of(ours[None]), of(theirs[None]), resamples) == compare(of(ours), of(theirs), resamples)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_know_that_seeds_differ(seeds):
    """Prompts that do not differ leave the seeds' own variance, which should be s²/S."""
    levels = RNG.normal(0, 1, seeds)
    ours = np.repeat(levels[:, None], 30, axis=1)
    draws = Resamples.draw(30, seed=2).means(ours)
    assert draws.var() == pytest.approx(levels.var(ddof=1) / seeds, rel=0.05)
    assert draws.mean() == pytest.approx(levels.mean(), abs=0.05)


def test_intervals_cover_the_truth_over_worlds_of_seeds_and_prompts():
    covered = 0
    for world in range(200):
        rng = np.random.default_rng(world)
        scores = 0.3 + rng.normal(0, 0.3, (4, 1)) + rng.normal(0, 1, (1, 60)) + rng.normal(0, 0.5, (4, 60))
        found = compare(of(scores), of(np.zeros((4, 60))), Resamples.draw(60, seed=world, resamples=400))
        covered += found.reward_difference.low <= 0.3 <= found.reward_difference.high
    assert covered >= 175  # 95 % of 200 would be 190; four seeds make percentile intervals a little narrow


@pytest.mark.parametrize("seeds", [2, 4])
def test_more_seeds_make_intervals_narrower_where_seeds_do_not_differ(seeds):
    """Only chance differs between seeds and prompts: the error of the mean is that of all answers together."""
    widths, covered = [], 0
    for world in range(100):
        rng = np.random.default_rng(world)
        found = compare(
            of(rng.normal(size=(seeds, 100))), of(np.zeros((seeds, 100))), Resamples.draw(100, world, resamples=300)
        ).reward_difference
        widths.append(found.high - found.low)
        covered += found.low <= 0 <= found.high
    right = 2 * 1.96 / np.sqrt(100 * seeds)
    assert right * 0.9 < np.mean(widths) < right * 1.3
    assert 88 <= covered <= 100


def test_p_is_uniform_where_nothing_differs():
    found = []
    for world in range(200):
        rng = np.random.default_rng(world)
        ours, theirs = rng.normal(size=(2, 80))
        found.append(compare(of(ours), of(theirs), Resamples.draw(80, world, resamples=400)).p_reward_difference)
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.1
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_agrees_with_its_definition(values):
    p = {str(place): value for place, value in enumerate(values)}
    assert holm(p) == pytest.approx(corrected(p))


@pytest.mark.parametrize("shape", [(1, 30), (3, 30)])
def test_verify_s_way_gives_the_same(shape):
    ours, theirs = (Judged(RNG.normal(size=shape).round(1), RNG.integers(0, 50, shape) * 1.0) for _ in range(2))
    found = compare(ours, theirs, Resamples.draw(30, seed=9)).to_dict()
    for name, expected in recomputed(ours, theirs, seed=9).items():
        value = found[name]
        flat = [value["value"], value["low"], value["high"]] if isinstance(value, dict) else [value]
        assert flat == pytest.approx(expected), name


def runs(*seeds):
    return [TrainingRun(seed, f"run{seed}") for seed in seeds]


def test_pairing():
    assert [p.theirs for p in pair_by_seed(runs(42, 17), runs(17, 42, 7))] == ["run42", "run17"]
    assert [p.theirs for p in pair_by_seed(runs(42, 17), runs(1))] == [
        "run1",
        "run1",
    ]  # an opponent that was trained once
    assert [p.seed for p in pair_by_seed(runs(None), runs(42, 17))] == [
        42,
        17,
    ]  # answers made elsewhere meet every seed
    assert [p.theirs for p in pair_by_seed(runs(42, 17), runs(None))] == ["runNone", "runNone"]
    with pytest.raises(ValueError, match="seed 3 has no counterpart"):
        pair_by_seed(runs(42, 3), runs(42, 17))
