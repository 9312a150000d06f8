"""The answer to the primary question, in words."""

import json

import pytest

from tests.worlds.pipeline import recipe
from unmdpo.recipe import Recipe
from unmdpo.recipe.evaluation import PrimaryRecipe
from unmdpo.results.tables import UNTRUSTED, answer, doubts, judge_accuracy, judge_mark

ASKED = PrimaryRecipe(policy="a", against="dpo", panel="test", judge="")


def told(value, low, high, p, *, adjusted=None, seeds=3, mark="", trainings=(3, 3), prompts=200):
    outcome = {
        "win_rate": {"value": value, "low": low, "high": high},
        "p_win_rate": p,
        "wins": 3,
        "losses": 2,
        "length_adjusted": adjusted and dict(zip(("value", "low", "high"), adjusted, strict=True)),
        "seeds": dict.fromkeys(range(seeds)),
        "noise": {"seed": 3.0, "prompt": 50.0, "chance": 0.0},
    }
    better = outcome | {"win_rate": {"value": 99.0, "low": 98.0, "high": 100.0}, "p_win_rate": 0.0}
    tables = {"": {"against": {"dpo": {"best": better, "a": outcome}}}}
    counts = dict(zip(("a", "dpo"), trainings, strict=True))
    return answer({"other": None, "test": {"prompts": prompts, "judges": tables}}, ASKED, counts, mark)


def test_better():
    assert told(61.2, 55.0, 67.0, 0.001, adjusted=(59.0, 52.0, 66.0)) == (
        "Better: a won 61.2 % [55.0, 67.0] (p = 0.001) against dpo on the 200 prompts of test, with 3 seeds. At equal "
        "length, 59.0 % [52.0, 66.0]."
    )


def test_a_chance_that_is_too_small_to_write():
    assert "(p < 0.001)" in told(61.2, 55.0, 67.0, 1e-6)


def test_better_by_length_alone():
    assert told(61.2, 55.0, 67.0, 0.001, adjusted=(51.0, 45.0, 57.0)).endswith(
        "At equal length, 51.0 % [45.0, 57.0], so it may be length alone."
    )


@pytest.mark.parametrize(
    ("judge", "length", "pairs", "mark", "ending"),
    [
        (0.6, 0.55, 200, "", "55.0 %"),
        (0.55, 0.55, 200, UNTRUSTED, ": do not judge by it"),
        (0.45, 0.3, 200, UNTRUSTED, ": do not judge by it"),
        (1.0, 0.0, 9, "a judge measured on only 9 pairs", ": too few to rely on"),
    ],
)
def test_what_a_judge_s_accuracy_says(judge, length, pairs, mark, ending):
    notes = {"held_out": {"judge": judge, "length": length, "pairs": pairs}}
    assert judge_mark(notes) == mark
    assert judge_accuracy("judge", notes).endswith(ending)


def test_what_makes_numbers_hard_to_believe():
    outcomes = {"a": {"wins": 0, "losses": 0}, "b": {"wins": 1, "losses": 0}, "c": {"wins": 0, "losses": 0}}
    report = {"judges": {"": {"against": {"dpo": outcomes}}}}
    assert list(doubts(report, 10, 100)) == ["tied with dpo on every prompt: a, c; train longer to see a difference"]
    assert next(doubts(report, 11, 100)) == "11 of 100 answers are cut off: raise evaluation.max_new_tokens"


def test_worse_and_a_judge_that_nobody_should_believe():
    found = told(30.0, 20.0, 40.0, 0.001, mark="a judge that is no better than length")
    assert found.startswith("No verdict: a won 30.0 %")
    assert told(30.0, 20.0, 40.0, 0.001).startswith("Worse: a won 30.0 %")
    assert ", by a judge that is no better than length, with 3 seeds" in found


def test_no_difference_and_how_large_one_could_have_been_missed():
    found = told(52.0, 42.0, 62.0, 0.7)
    assert found.startswith("No difference shown: a won 52.0 % [42.0, 62.0] (p = 0.700) against dpo")
    assert "A run like this shows a difference of" in found


@pytest.mark.parametrize(
    ("trainings", "ours", "theirs"),
    [
        ((1, 1), "a's checkpoint", "dpo's checkpoint"),
        ((5, 1), "a's 5 checkpoints", "dpo's checkpoint"),
        ((1, None), "a's checkpoint", "dpo"),
    ],
)
@pytest.mark.parametrize("p", [0.001, 0.7])
def test_one_seed_says_nothing_about_methods(trainings, ours, theirs, p):
    """Intervals count prompts: with seeds that differ by three points, they called equal methods better or worse in
    21 % of runs with one seed, and in 15 % of those whose baseline was trained once."""
    found = told(61.2, 55.0, 67.0, p, seeds=0, trainings=trainings)
    assert found.startswith("No verdict on methods, with one seed: ")
    assert f": {ours} won 61.2 % [55.0, 67.0] (p = {p:.3f}) against {theirs} on" in found
    assert "compare methods with 3 seeds or more" in found
    assert not any(word in found for word in ("Better", "Worse", "No difference"))


def test_what_is_not_trained_here_needs_no_seeds():
    assert told(61.2, 55.0, 67.0, 0.001, trainings=(None, None)).startswith("Better: a won")
    assert told(61.2, 55.0, 67.0, 0.001, trainings=(3, None)).startswith("Better: a won")


def test_few_prompts_decide_nothing():
    found = told(100.0, 100.0, 100.0, 1e-9, prompts=19)
    counted = "a won 3 and lost 2 against dpo on the 19 prompts of test"
    assert found == f"No verdict: {counted}, and fewer than 20 prompts decide nothing."
    assert told(61.2, 55.0, 67.0, 0.001, prompts=20).startswith("Better")


def test_nothing_to_tell():
    assert answer({}, ASKED, {}) is None
    assert answer({"test": {}}, PrimaryRecipe(), {}) is None


def test_the_question_is_in_the_record_of_the_run(done):
    record = json.loads((done.folder / "run.json").read_text())
    assert record["primary"] == done.recipe.primary.model_dump()


def asked(folder, **primary):
    whole = recipe(folder).model_dump(mode="json")
    whole["evaluation"]["primary"] = primary
    return Recipe.model_validate(whole).primary


def test_the_question_follows_a_rule_or_the_recipe(folder):
    plain = recipe(folder)
    policies, panels = [name for name in plain.candidates if name != "dpo"], [*plain.evaluation.panels]
    assert plain.primary == PrimaryRecipe(policy=policies[-1], against="dpo", panel=panels[0], judge="")
    assert asked(folder, policy=policies[0], panel=panels[1]).policy == policies[0]
    with pytest.raises(ValueError, match="is not one of"):
        asked(folder, policy="nobody")
    with pytest.raises(ValueError, match="compared with itself"):
        asked(folder, policy="dpo")
