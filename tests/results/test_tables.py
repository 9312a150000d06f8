"""The main result in words."""

from unmdpo.results.tables import headline


def outcome(value, low, high, p, adjusted=None):
    rate = {"value": value, "low": low, "high": high}
    return {"win_rate": rate, "holm_win_rate": p, "p_win_rate": p, "length_adjusted": adjusted}


def summary(**outcomes):
    report = {"prompts": 200, "baseline": "dpo", "judges": {}, "against": {"dpo": outcomes}}
    return {"tuning": None, "test": report}


def test_a_winner_is_named_with_its_interval():
    found = headline(summary(a=outcome(61.2, 55.0, 67.0, 0.001, {"value": 59.0}), b=outcome(51.0, 45.0, 54.9, 0.7)))
    assert found == "a won against dpo on the 200 prompts of test: 61.2 % [55.0, 67.0]; at equal length, 59.0 %."


def test_whoever_is_as_good_is_named_too():
    found = headline(summary(a=outcome(61.2, 55.0, 67.0, 0.001), b=outcome(58.0, 52.0, 64.0, 0.02)))
    assert found.endswith("Its interval overlaps with those of b.")


def test_no_winner():
    found = headline(summary(a=outcome(52.0, 46.0, 58.0, 0.4)))
    assert (
        found
        == "No policy differs significantly from dpo on the 200 prompts of test: the best, a, won 52.0 % [46.0, 58.0]."
    )


def test_losers_are_named():
    found = headline(summary(a=outcome(30.0, 20.0, 40.0, 0.001), b=outcome(49.0, 44.0, 54.0, 0.7)))
    assert found.startswith(
        "No policy won against dpo on the 200 prompts of test, and a lost: the best, b, won 49.0 %"
    )


def test_the_winner_is_one_that_is_distinguished():
    found = headline(summary(a=outcome(58.0, 49.0, 67.0, 0.06), b=outcome(57.0, 53.0, 61.0, 0.001)))
    assert found.startswith("b won against dpo")


def test_nothing_to_tell():
    assert headline({}) is None
    assert headline(summary()) is None
