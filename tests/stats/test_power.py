"""What a comparison can show, against simulation."""

import numpy as np
import pytest

from unmdpo.stats.evaluation import Judged, Resamples, compare
from unmdpo.stats.power import USUAL, Noise


def points(rng, seeds, prompts, noise):
    shape = seeds, prompts
    return (
        rng.normal(0, noise.seed, (seeds, 1)) + rng.normal(0, noise.prompt, prompts)
        + rng.normal(0, noise.chance, shape)
    )  # fmt: skip


def test_noise_is_found_again():
    found = Noise.of(points(np.random.default_rng(0), 200, 2000, Noise(3.0, 20.0, 40.0)))
    assert (found.seed, found.prompt, found.chance) == pytest.approx((3.0, 20.0, 40.0), rel=0.15)
    alone = Noise.of(np.array([[0.0, 100.0, 50.0, 50.0]]))
    assert (alone.seed, alone.prompt, alone.chance) == pytest.approx((USUAL.seed, np.sqrt(1250), 0.0))


@pytest.mark.parametrize(("seeds", "prompts"), [(1, 200), (3, 100), (5, 400)])
def test_a_detectable_difference_is_found_in_four_of_five_cases(seeds, prompts):
    noise = Noise(0.0 if seeds == 1 else 1.5, 20.0, 40.0)
    difference, found = noise.detectable(prompts, seeds), 0
    resamples = Resamples.draw(prompts, 0, 400)
    for world in range(200):
        scores = difference + points(np.random.default_rng([world, seeds]), seeds, prompts, noise)
        sides = Judged(scores, np.ones_like(scores)), Judged(np.zeros_like(scores), np.ones_like(scores))
        found += compare(*sides, resamples).p_reward_difference < 0.05
    assert 0.7 <= found / 200 <= 0.9


def test_more_prompts_show_smaller_differences_until_seeds_differ_too_much():
    assert USUAL.detectable(1600, 3) < USUAL.detectable(400, 3)
    few = USUAL.prompts_for(20.0, 3)
    assert USUAL.detectable(few, 3) <= 20.0 < USUAL.detectable(few // 2, 3)
    assert USUAL.prompts_for(0.5, 3) is None
