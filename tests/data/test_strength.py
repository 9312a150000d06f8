"""Which of several scored responses are compared."""

from hypothesis import given
from hypothesis import strategies as st

from unmdpo.data import PairRule


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
