"""The lab's world: rewards worked out by hand, noise as configured, files that our loaders read."""

import math
import random
from collections import Counter
from statistics import fmean, pstdev

import pytest

from unmdpo.data import load_comparisons
from unmdpo.lab.shapes import SHAPES, write
from unmdpo.lab.tasks import NUMBERS, TASKS
from unmdpo.lab.world import Compared, Knobs, World, gold_reward, true_scale


def test_rewards_by_hand():
    answer = ("one", "three", "four")
    assert gold_reward(answer, "one three four") == 3.0
    assert gold_reward(answer, "") == 0.0
    assert gold_reward(answer, "four three one") == 3 / 3 - 3 * 2 / 3  # one word in order, two idle
    assert gold_reward(answer, "well one three four") == 3 - 3 / 4
    assert gold_reward(answer, "red") == -1.0
    assert gold_reward(("cats",), "CATS") == 3.0


@pytest.mark.parametrize("domain", TASKS)
def test_tasks_have_one_right_answer(domain):
    rng = random.Random(1)
    for _ in range(50):
        task = TASKS[domain](rng)
        assert task.domain == domain
        assert gold_reward(task.answer, " ".join(task.answer)) == 3.0
        if domain == "sorting":
            assert list(task.answer) == sorted(task.instruction.split()[1:], key=NUMBERS.index)
        if domain == "reversing":
            assert list(task.answer) == task.instruction.split()[:0:-1]


def test_scales_have_the_mean_and_spread_that_were_asked_for():
    knobs = Knobs(noise=0.7, noise_spread=0.5)
    rng = random.Random(0)
    logs = [math.log(true_scale(TASKS[d](rng), vague, knobs)) for d in sorted(TASKS) for vague in (False, True)]
    assert fmean(logs) == pytest.approx(math.log(0.7))
    assert pstdev(logs) == pytest.approx(0.5)
    task = TASKS["addition"](rng)
    assert true_scale(task, True, knobs) > true_scale(task, False, knobs)


def test_the_same_seed_gives_the_same_world():
    assert World(Knobs(prompts=30)).comparisons() == World(Knobs(prompts=30)).comparisons()
    assert World(Knobs(prompts=30)).comparisons() != World(Knobs(prompts=30, seed=1)).comparisons()


def test_streams_share_no_prompt():
    world = World(Knobs(prompts=300))
    train = {prompt.text for prompt in world.prompts()}
    held_out = {prompt.text for prompt in world.prompts(100, "validation")}
    assert len(train) == 300
    assert not train & held_out


def agreement(world, noisy):
    """Share of votes that agree with the gold reward, among prompts above or below the typical scale."""
    right = []
    for one in world.comparisons():
        if (one.prompt.scale > world.knobs.noise) != noisy:
            continue
        answer = one.prompt.task.answer
        gap = gold_reward(answer, one.second) - gold_reward(answer, one.first)
        right += [vote * gap > 0 for vote in one.votes if vote and abs(gap) > 0.2]
    return fmean(right)


def test_noise_shows_in_the_votes():
    world = World(Knobs(prompts=600, noise_spread=1.0))
    assert agreement(world, noisy=False) > agreement(world, noisy=True) + 0.1
    same = World(Knobs(prompts=600, noise_spread=0.0))
    assert abs(agreement(same, noisy=False) - 0.5) > 0.2  # all prompts count as not noisy: q* is the noise


def test_votes_follow_the_logistic_model():
    """P(U > 0) = σ(Δ/q), checked on one pair."""
    world = World(Knobs(noise=1.0, noise_spread=0.0))
    prompt = world.prompts(1)[0]
    rng, good, bad = random.Random(0), " ".join(prompt.task.answer), "well well"
    gap = gold_reward(prompt.task.answer, bad) - gold_reward(prompt.task.answer, good)
    votes = [world._vote(gap / 4, 1.0, rng) for _ in range(20_000)]
    better = sum(vote > 0 for vote in votes) + sum(vote == 0 for vote in votes) / 2
    assert better / len(votes) == pytest.approx(1 / (1 + math.exp(-gap / 4)), abs=0.02)


def test_knobs_do_what_they_say():
    longer = World(Knobs(prompts=200, length_spread=2.0)).comparisons()
    lengths = {
        vague: fmean(len(c.first.split()) for c in longer if c.prompt.vague is vague) for vague in (True, False)
    }
    assert lengths[True] > lengths[False] + 3
    flipped = World(Knobs(prompts=300, flips=1.0, noise=0.1))
    straight = World(Knobs(prompts=300, flips=0.0, noise=0.1))
    assert agreement(flipped, False) < 0.2 < 0.8 < agreement(straight, False)
    vague = World(Knobs(prompts=300, informativeness=0.0, noise=0.01, noise_spread=0.0)).comparisons()
    assert len(Counter(abs(vote) for one in vague for vote in one.votes)) == 4


def test_labels_are_rounded_means():
    prompt = World().prompts(1)[0]
    for votes, label in (((1, 2, 3), 2), ((1, -1, 0), 0), ((1, 1, 0), 1), ((-3, -2), -3), ((1, 0), 1)):
        assert Compared(prompt, "a", "b", votes).label == label


@pytest.mark.parametrize("shape", SHAPES)
def test_files_are_read_by_our_own_loaders(shape, tmp_path):
    compared = World(Knobs(prompts=40)).comparisons()
    path = tmp_path / "data.jsonl"
    count = write(path, compared, shape)
    data = load_comparisons(str(path), source=shape)
    ties = sum(one.label == 0 for one in compared)
    assert len(data) == len(compared) - ties
    assert count == len(compared) - (ties if shape == "preference" else 0)
    by_text = {(one.prompt.text, frozenset((one.first, one.second))): one for one in compared}
    row = data.rows[0]
    one = by_text[row.prompt[0].content, frozenset((row.chosen, row.rejected))]
    assert row.strength == abs(one.label)
    assert row.chosen == (one.second if one.label > 0 else one.first)
