"""Which of several scored responses are compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmdpo.core.errors import UserError
from unmdpo.data import PairRule, StrengthRule, load_comparisons

REAL = {"strength": StrengthRule(continuous=True)}


@given(st.lists(st.integers(0, 9).map(float), min_size=2, max_size=30), st.integers(1, 40))
def test_of_too_many_pairs_some_are_drawn(scores, most):
    every, drawn = list(PairRule().select(scores)), list(PairRule(most=most).select(scores))
    assert len(drawn) == min(most, len(every)) == len(every) - PairRule(most=most).left_out(len(scores))
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(every)
    assert drawn == list(PairRule(most=most).select(scores))


def test_prompts_of_one_size_draw_different_pairs():
    drawn = {tuple(PairRule(most=3).select([float(i) + shift for i in range(10)])) for shift in (0.0, 0.5, 1.0)}
    assert len({tuple((better, worse) for better, worse, _ in pairs) for pairs in drawn}) > 1


def pair(number, **more):
    return {"prompt": f"{number}?", "chosen": "good", "rejected": "bad", **more}


@pytest.mark.parametrize(
    "given",
    [
        lambda k: {"margin": k},
        lambda k: {"strength": k},
        lambda k: {"score_chosen": 1.5 + k, "score_rejected": 1.5},
        lambda k: {"chosen_rating": 5, "rejected_rating": 5 - k},
    ],
)
def test_continuous_strengths_are_what_the_data_says(write, given):
    wanted = [0.03, 1.37, 2.0, 11.5]
    data = load_comparisons(write([pair(k, **given(k)) for k in [*wanted, 0.0]]), **REAL)
    assert [row.strength for row in data] == pytest.approx(wanted)
    assert len(data.ties) == 1
    assert data.graded == "strengths as they are given"


def test_scored_responses_have_continuous_strengths(write):
    rows = [{"prompt": "Q?", "responses": ["a", "b", "c"], "scores": [0.5, 2.25, 1.0]}]
    assert [row.strength for row in load_comparisons(write(rows), **REAL)] == [1.25, 1.75, 0.5]


def test_a_negative_continuous_strength_is_a_bad_row(write):
    with pytest.raises(UserError, match="the strength strength is -2: the rejected response is the better one"):
        load_comparisons(write([pair(1, strength=-2.0)]), **REAL)


@pytest.mark.parametrize("more", [{"levels": 4}, {"thresholds": [1.0, 2.0]}, {"labels": {"much": 1}}])
def test_continuous_strengths_have_no_levels(more):
    with pytest.raises(ValueError, match="continuous strengths have no levels"):
        StrengthRule(continuous=True, **more)


def test_labels_are_not_continuous(write):
    rows = [{"prompt": "Q?", "response_a": "x", "response_b": "y", "label": "a"}]
    with pytest.raises(UserError, match="only levels and labels apply"):
        load_comparisons(write(rows), **REAL)


def test_a_weight_is_read_and_said(write):
    rows = [pair(k, strength=1 + k, weight=k / 2) for k in range(3)] + [pair(9, strength=1)]
    assert [row.weight for row in load_comparisons(write(rows))] == [0.0, 0.5, 1.0, None]
    sides = [{"prompt": f"{k}?", "response_a": "x", "response_b": "y", "label": "a", "sure": k} for k in (1, 2)]
    read = load_comparisons(write(sides), source="sides", columns={"weight": "sure"})
    assert [row.weight for row in read] == [1.0, 2.0]


@pytest.mark.parametrize(("weight", "why"), [(-1, "zero or more"), ("much", "should be a number"), (1e400, "finite")])
def test_a_bad_weight_is_a_bad_row(write, weight, why):
    with pytest.raises(UserError, match=why):
        load_comparisons(write([pair(1, strength=1, weight=weight)]))


def test_a_continuous_rule_survives_being_written_down():
    rule = StrengthRule(continuous=True)
    assert StrengthRule.model_validate(rule.model_dump(mode="json")) == rule
