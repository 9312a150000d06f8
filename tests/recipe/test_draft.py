"""A drafted recipe is a recipe, and its numbers fit the data."""

import pytest

from unmdpo.data import RowsSettings, rows_of
from unmdpo.recipe import load_recipe
from unmdpo.recipe.draft import Draft, fitting_length


def draft(comparisons, **changes):
    reading = {name: changes.pop(name) for name in [*changes] if name in RowsSettings.model_fields}
    rows = rows_of(**{"path": "d/My data.v2.jsonl.gz", "source": "preference"} | reading)
    return Draft(**{"rows": rows, "model": "m", "comparisons": comparisons, "prompts": comparisons} | changes)


@pytest.mark.parametrize("comparisons", [1, 7, 60, 900, 5_000, 40_000])
def test_a_draft_loads_and_its_batch_fits_what_pilots_see(tmp_path, comparisons):
    made = draft(comparisons)
    path = tmp_path / "r.yaml"
    path.write_text(made.text())
    recipe = load_recipe(str(path))
    assert recipe.name == "my-data"
    assert recipe.training.batch <= max(1, 0.95 * 0.8 * comparisons)
    if comparisons < 300:
        assert not recipe.scales
        assert "too few to learn from" in made.text()
    else:
        assert recipe.pilots.epochs == recipe.training.epochs
        assert recipe.scales["ln"].length_normalized


@pytest.mark.parametrize(
    ("parameters", "rate"), [(None, 1e-6), (8e9, 1e-6), (1.24e9, 1e-6), (360e6, 8e-6), (135e6, 5e-5), (1e6, 5e-5)]
)
def test_the_rate_follows_the_size(parameters, rate):
    assert draft(900, parameters=parameters).rate == rate


@pytest.mark.parametrize("comparisons", [60, 900, 40_000])
def test_all_methods_of_the_paper_s_main_table(tmp_path, comparisons):
    made = draft(comparisons, parameters=360e6)
    path = tmp_path / "r.yaml"
    path.write_text(made.text(all_methods=True))
    recipe, paper = load_recipe(str(path)), load_recipe("hs3-1b")
    assert recipe.policies.keys() == paper.policies.keys()
    assert recipe.scales.keys() == paper.scales.keys()
    for name, policy in recipe.policies.items():
        assert (policy.objective, policy.scale) == (paper.policies[name].objective, paper.policies[name].scale)
        ours, theirs = (r.training.with_overrides(r.policies[name].training).learning_rate for r in (recipe, paper))
        assert ours == pytest.approx(8 * theirs)


@pytest.mark.parametrize(("prompts", "held_out"), [(8, 2), (40, 10), (100, 20), (300, 21), (4_000, 200)])
def test_enough_is_held_out_of_few_prompts(prompts, held_out):
    made = draft(prompts)
    assert round(made.data["validation"]["fraction"] * prompts) == held_out
    assert ("validate_updates" in made.text()) == (prompts >= 20)


def test_the_paper_s_budget_where_there_is_enough():
    assert draft(40_000).budget == {"updates": 150}
    assert draft(40_000).batch == 128
    assert draft(3_000).budget == {"epochs": 1}
    assert draft(300).budget == {"epochs": 2}


def test_what_the_user_said_stays(tmp_path):
    made = draft(
        90, path="nvidia/HelpSteer3", source="helpsteer3", split="all-of-it", config="preference", revision="abc",
        max_length=1024, validation_split="validation",
    )  # fmt: skip
    path = tmp_path / "r.yaml"
    path.write_text(made.text())
    data = load_recipe(str(path)).data
    assert (data.split, data.config, data.revision, data.max_length) == ("all-of-it", "preference", "abc", 1024)
    assert data.validation.split == "validation"


def test_a_length_that_nearly_all_fit():
    over = {512: 0.5, 1024: 0.02, 2048: 0.004, 4096: 0.0}
    assert fitting_length(over, None) == 2048
    assert fitting_length(over, 1024) == 1024
    assert fitting_length({512: 1.0, 1024: 1.0}, None) == 1024
    assert fitting_length(over, 128) == 512


@pytest.mark.parametrize("name", ["2024", "null", "1e3", "true", "no"])
def test_names_that_yaml_would_take_for_something_else(tmp_path, name):
    path = tmp_path / "r.yaml"
    path.write_text(draft(90, path=f"{name}.jsonl", columns={"prompt": "a.b"}, max_bad_rows=0.5, split="all").text())
    recipe = load_recipe(str(path))
    assert recipe.name == name
    assert (recipe.data.columns, recipe.data.max_bad_rows, recipe.data.split) == ({"prompt": "a.b"}, 0.5, "all")
