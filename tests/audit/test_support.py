"""The support audit's counting rules, on a few prompts counted by hand."""

import dataclasses
import random

import pytest

from unmdpo.audit import audit_support
from unmdpo.audit.support import prompt_support
from unmdpo.core.errors import UserError
from unmdpo.core.margins import StrengthMap
from unmdpo.data import Comparison, Comparisons, Message, Origin


def rows(prompt, *edges):
    return [
        Comparison((Message("user", prompt),), chosen, rejected, strength, Origin("f", 1))
        for chosen, rejected, strength in edges
    ]


DATA = Comparisons(
    rows=(
        *rows("one pair, three times", ("a", "b", 2), ("a", "b", 2), ("a", "b", 2)),
        *rows("two disconnected pairs", ("a", "b", 1), ("c", "d", 1)),
        *rows("a chain", ("a", "b", 1), ("b", "c", 2)),
        *rows("parallel contrast", ("a", "b", 1), ("a", "b", 3)),
        *rows("opposite directions", ("a", "b", 1), ("b", "a", 1)),
        *rows("triangle", ("a", "b", 1), ("b", "c", 1), ("a", "c", 1)),
        *rows("triangle that cancels", ("a", "b", 1), ("b", "c", 2), ("a", "c", 3)),
        *rows("self", ("a", "a", 2)),
        *rows("self and pair", ("a", "a", 2), ("a", "b", 1)),
    ),
    ties=tuple(rows("tied", ("a", "b", 0))),
)


def test_counts_by_hand():
    audit = audit_support(DATA)
    assert audit.rows == 3 + 2 + 2 + 2 + 2 + 3 + 3 + 1 + 2
    assert audit.ties == 1
    assert audit.exact_duplicates == 2
    assert audit.prompts == 9
    assert audit.pair_units == 1 + 2 + 2 + 1 + 1 + 3 + 3 + 1 + 2
    assert audit.prompts_one_pair == 4  # repeated, parallel, opposite, self
    assert audit.prompts_several_pairs == 5
    assert audit.prompts_disconnected == 1
    assert audit.prompts_with_cycle == 2
    assert audit.prompts_parallel_contrast == 2
    assert audit.self_comparisons == 2
    assert audit.prompts_identified == 3  # parallel, opposite, the first triangle
    assert audit.prompts_identified_with_self == 5
    assert audit.kappa_min == pytest.approx(3**-0.5)  # the triangle: |1 + 1 − 1|/√3
    assert audit.kappa_median == pytest.approx(2**0.5)  # both two-edge cycles: |2|/√2


def test_strength_map_and_tau_change_what_is_identified():
    flat = audit_support(DATA, strength_map=StrengthMap((1.0, 1.0, 1.0)))
    assert flat.prompts_parallel_contrast == 1  # only the opposite directions
    assert flat.prompts_identified == 3  # opposite, and now both triangles
    assert audit_support(DATA, tau=0).prompts_identified == 0
    assert audit_support(DATA, tau=0).prompts_identified_with_self == 0
    assert audit_support(DATA, tau=3.0).kappa_min == pytest.approx(3 * 3**-0.5)


def test_order_and_orientation_of_rows_do_not_matter():
    shuffled = list(DATA.rows)
    random.Random(0).shuffle(shuffled)
    first, second = audit_support(DATA), audit_support(Comparisons(tuple(shuffled), DATA.ties))
    for name, value in dataclasses.asdict(first).items():
        assert getattr(second, name) == pytest.approx(value), name


def test_disconnected_self_pair():
    alone = prompt_support([("c", "c", 1), ("a", "b", 1)], StrengthMap(), 1.0)
    assert (alone.pairs, alone.disconnected) == (2, True)
    shared = prompt_support([("a", "a", 1), ("a", "b", 1)], StrengthMap(), 1.0)
    assert (shared.pairs, shared.disconnected) == (2, False)


def test_strength_map_is_checked():
    with pytest.raises(UserError, match="must not decrease"):
        StrengthMap((2.0, 1.0))
    with pytest.raises(UserError, match="nonnegative"):
        StrengthMap((-1.0, 1.0))
    with pytest.raises(UserError, match="outside the map's 2 levels"):
        StrengthMap((1.0, 2.0))(3)
