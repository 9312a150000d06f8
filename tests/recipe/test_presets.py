"""Pilots at the price of one policy."""

import pytest
from pydantic import ValidationError

from unmdpo.recipe import Recipe


def recipe(pilots, training):
    return Recipe.model_validate(
        {
            "name": "mine",
            "model": {"path": "some/model"},
            "data": {"path": "pairs.jsonl"},
            "training": training,
            "pilots": pilots,
            "policies": {"dpo": {"objective": "dpo"}},
        }
    )


@pytest.mark.parametrize(
    ("training", "budget"),
    [({"updates": 54}, (27, None)), ({}, (75, None)), ({"epochs": 3}, (None, 3)), ({"updates": 1}, (1, None))],
)
def test_cheap_pilots_cost_as_much_as_one_policy(training, budget):
    pilots = recipe({"preset": "cheap"}, training).pilots
    assert (pilots.folds, pilots.updates, pilots.epochs) == (2, *budget)


def test_it_is_not_mixed_with_other_numbers():
    """Those of a recipe that is extended would make something that is neither."""
    given = {"preset": "cheap", "folds": None, "updates": None, "seed": 3}
    pilots = recipe(given, {"updates": 54}).pilots
    assert (pilots.folds, pilots.updates, pilots.seed) == (2, 27, 3)
    for key in ("folds", "updates", "epochs"):
        with pytest.raises(
            ValidationError, match=f"decides this, and here it is 4; leave it out, or set pilots.{key}=n"
        ):
            recipe(given | {key: 4}, {})


def test_it_is_the_same_recipe_as_the_one_it_stands_for():
    short, long = recipe({"preset": "cheap"}, {"updates": 54}), recipe({"folds": 2, "updates": 27}, {"updates": 54})
    assert short.digest == long.digest


def test_other_presets_are_refused():
    with pytest.raises(ValidationError, match="cheap"):
        recipe({"preset": "free"}, {})
