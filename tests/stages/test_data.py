"""Data in a run: mixtures, bad rows, counts, and what is left in the work folder."""

import json
from pathlib import Path

import pytest

from tests.worlds.pipeline import judged_by, recipe, world
from tests.worlds.rows import preference
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.execute import execute
from unmdpo.execute.row_counts import count_rows
from unmdpo.recipe.loader import load_recipe
from unmdpo.results.run import open_run
from unmdpo.stages.comparisons import in_share
from unmdpo.stages.shared.files import BAD_ROWS, COMPARISONS
from unmdpo.store.store import Store


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = world(tmp_path_factory.mktemp("mix"))
    for name, count in (("a", 40), ("b", 60)):
        rows = [
            preference(prompt=f"w{i} {name}", chosen=f"w{i} w1", rejected="w2", strength=1 + i % 3)
            for i in range(count)
        ]
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_of(place, store, until="encoded", **data):
    made = recipe(place)
    values = made.model_dump(exclude_unset=True) | {"data": data, "evaluation": None}
    run = open_run(type(made).model_validate(values), Store(place / store))
    return execute(run, until=until)


def test_parts_keep_their_names_and_weights(place):
    mix = {"a": {"path": str(place / "a.jsonl"), "weight": 2.5}, "b": {"path": str(place / "b.jsonl"), "weight": 0.5}}
    run = run_of(place, "weights", mix=mix, validation={"fraction": 0.1})
    rows = COMPARISONS.load(run.artifact("comparisons"))
    counts = {part: sum(row.part == part for row in rows) for part in "ab"}
    prompts = {part: {row.prompt_hash for row in rows if row.part == part} for part in "ab"}
    assert 2 * len(prompts["a"]) < counts["a"] < 3 * len(prompts["a"])
    assert counts["b"] == len(prompts["b"]) < 45
    assert all(in_share(name, 0.5) for name in prompts["b"])
    assert {row.source.file for row in rows if row.part == "a"} == {str(place / "a.jsonl")}
    notes = run.artifact("comparisons").manifest["notes"]
    assert (notes["read"], notes["parts"], notes["sources"]) == (100, counts, {"a": "preference", "b": "preference"})
    counted = count_rows(run)
    assert counted.parts == counts
    assert "100 rows read · 0 bad · 100 comparisons · 0 ties · 10 held out · " in counted.line()


def test_weight_one_is_the_parts_one_after_the_other(place):
    mix = {name: {"path": str(place / f"{name}.jsonl")} for name in "ab"}
    run = run_of(place, "plain", until="comparisons", mix=mix, validation={"fraction": 0.1})
    rows = COMPARISONS.load(run.artifact("comparisons"))
    assert [row.part for row in rows] == sorted(row.part for row in rows)
    assert len(rows) == 90
    numbers = [row.source.row for row in rows if row.part == "b"]
    assert numbers == sorted(numbers)


def test_held_out_prompts_are_in_no_part(place):
    mix = {name: {"path": str(place / f"{name}.jsonl"), "weight": 3} for name in "ab"}
    run = run_of(place, "held", until="comparisons", mix=mix, validation={"fraction": 0.2})
    execute(run, until="comparisons")
    trained = {row.prompt_hash for row in COMPARISONS.load(run.artifact("comparisons"))}
    assert len(trained) == 80


def test_bad_rows_are_counted_listed_and_reported(place):
    rows = [preference(prompt=f"w{i}", chosen="w1", rejected="w2") for i in range(198)]
    write_rows(place / "few-bad.jsonl", [*rows, preference(prompt=" "), preference(strength=9)])
    with pytest.warns(UnmdpoWarning, match="2 of 200 rows are bad, and skipped"):
        run = run_of(place, "bad", path=str(place / "few-bad.jsonl"))
    artifact = run.artifact("comparisons")
    assert [row["row"] for row in BAD_ROWS.load(artifact)] == [199, 200]
    assert sorted(path.name for path in artifact.path.iterdir()) == [
        "bad-rows.jsonl",
        "comparisons.parquet",
        "manifest.json",
    ]
    assert count_rows(run).counts[f"bad ({artifact.path / 'bad-rows.jsonl'})"] == 2
    strict = {"path": str(place / "few-bad.jsonl"), "max_bad_rows": 0}
    with pytest.raises(UserError, match="2 of 200 rows are bad") as caught:
        run_of(place, "strict", **strict)
    listing = str(caught.value).split("all of them are in ")[1].split("\n")[0]
    assert len(Path(listing).read_text().splitlines()) == 2


def test_no_bad_rows_leave_no_file(place):
    run = run_of(place, "good", until="comparisons", path=str(place / "a.jsonl"))
    names = sorted(path.name for path in run.artifact("comparisons").path.iterdir())
    assert names == ["comparisons.parquet", "manifest.json"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"mix": {"a": {"path": "x"}}, "path": "y"}, "with a mix, this belongs to its parts"),
        ({"source": "auto"}, "data needs a path"),
        ({"path": "x", "columns": {"promt": "q"}}, "this source has no field 'promt'"),
        ({"path": "x", "max_bad_rows": 1.5}, "a share is below 1"),
        ({"mix": {"a": {"path": "x", "weight": 0}}}, "greater than 0"),
        ({"path": "x", "source": "helpsteer"}, None),
        ({"mix": {"a": {"path": "x"}, "b": {"path": "y", "weight": 0.5}}}, None),
        ({"path": "x", "max_bad_rows": 0}, None),
    ],
)
def test_recipes_about_data(tmp_path, data, says):
    path = tmp_path / "r.yaml"
    path.write_text(
        json.dumps({"name": "r", "model": {"path": "m"}, "data": data, "policies": {"dpo": {"objective": "dpo"}}})
    )
    if says is None:
        path.write_text(load_recipe(str(path)).to_yaml())  # every default filled in
        load_recipe(str(path))
        return
    with pytest.raises(UserError, match=says):
        load_recipe(str(path))


def test_nothing_to_train_on_is_said(place):
    write_rows(place / "ties.jsonl", [preference(strength=0), preference(prompt="w2", strength=0)])
    with pytest.raises(UserError, match="no comparison is left to train on: 2 rows read, 0 bad, 2 ties, 0 held out"):
        run_of(place, "ties", path=str(place / "ties.jsonl"))


def test_later_panels_have_other_prompts(place, tmp_path):
    panels = {"one": {"size": 2, "seed": 1}, "two": {"size": 1, "seed": 1}}
    for seed in range(4):
        both = {name: spec | {"seed": seed} for name, spec in panels.items()}
        run = open_run(recipe(place, evaluation=judged_by("longest") | {"panels": both}), Store(tmp_path / str(seed)))
        execute(run, until="panel[one],panel[two]")
        assert not {*run.panel("one").hashes} & {*run.panel("two").hashes}
