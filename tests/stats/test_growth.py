"""Evidence of a pilot that was still learning, put on one scale."""

import numpy as np
import pytest

from unmdpo.stats.growth import Grown, enlarge, latest


def test_early_evidence_is_enlarged_to_the_size_of_the_last():
    update = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    evidence = np.array([0.0, 0.0, 1.0, -1.0, 3.0, -1.0, 4.0, -4.0])  # mean sizes 0, 1, 2, 4
    found = enlarge(evidence, update, np.ones(8, bool))
    assert found.evidence[2:] == pytest.approx([4.0, -4.0, 6.0, -2.0, 4.0, -4.0])
    assert found.usable.tolist() == [False, False, True, True, True, True, True, True]


def test_what_would_be_enlarged_more_than_four_times_is_left_out():
    found = enlarge(np.array([0.9, 1.0, 4.0]), np.array([0, 1, 2]), np.ones(3, bool))
    assert found.usable.tolist() == [False, True, True]


def test_sizes_never_shrink_and_masked_comparisons_do_not_count():
    update, evidence = np.array([0, 1, 2, 2]), np.array([2.0, 4.0, 2.0, 900.0])
    found = enlarge(evidence, update, np.array([True, True, True, False]))
    assert found.evidence[:3] == pytest.approx([2.0, 4.0, 2.0])  # sizes 2, then 3 and 3, but at most the last: 2
    assert found.usable.tolist() == [True, True, True, False]


def test_one_comparison_at_the_end_does_not_decide():
    rng = np.random.default_rng(49)
    update = np.append(np.repeat(np.arange(50), 128), 50)
    evidence = rng.normal(size=len(update)) * (1 + update / 10)
    evidence[-1] = 400.0
    found = enlarge(evidence, update, np.ones(len(update), bool))
    late = update == 49
    assert found.usable[late].all()
    assert found.usable.mean() > 0.8
    assert np.abs(found.evidence[late] / evidence[late]).max() < 1.2


def test_nothing_valid_is_nothing_usable():
    assert not enlarge(np.ones(3), np.arange(3), np.zeros(3, bool)).usable.any()


def test_the_later_of_two_passes_counts():
    first = Grown(np.array([1.0, 2.0, 3.0]), np.array([False, True, True]))
    second = Grown(np.array([-1.0, -2.0, -3.0]), np.array([True, True, False]))
    found = latest([first, second], [np.array([0, 1, 2]), np.array([2, 1, 0])])
    assert found.evidence.tolist() == [-1.0, 2.0, 3.0]
    assert found.usable.all()
