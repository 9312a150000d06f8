"""Rows of other shapes, read by a function of the user."""

import json
import sys
from pathlib import Path

import pytest

from unmdpo.core.errors import DataError, UserError
from unmdpo.data import StrengthRule, load_comparisons
from unmdpo.recipe import Recipe
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples"
PANDALM = {"instruction": "Add.", "input": "1 + 2", "response1": "4", "response2": "3", "idx": 7}
WEBGPT = {
    "question": {"full_text": "Why?", "dataset": "eli5"}, "answer_0": "Scattering.", "answer_1": "The sea.",
    "quotes_0": {"title": []}, "score_1": -0.5,
}  # fmt: skip


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "sources", raising=False)


def votes(*numbers):
    return PANDALM | {f"annotator{place}": number for place, number in enumerate(numbers, 1)}


def test_pandalm(write, examples):
    path = write([votes(2, 2, 0), votes(1, 1, 1), votes(1, 2, 0)])
    data = load_comparisons(path, source="sources:pandalm")
    assert [(row.chosen, row.strength, row.votes) for row in data.rows] == [("3", 2, (1, 1, 0)), ("4", 3, (1, 1, 1))]
    assert len(data.ties) == 1
    assert data.rows[0].prompt[0].content == "Add.\n\n1 + 2"
    assert str(data.rows[1].source).endswith("row 2")


def test_webgpt(write, examples):
    rows = [WEBGPT | {"score_0": score} for score in (0.5, -1.0, 0.25)]
    rule = {"strength": StrengthRule(thresholds=(0.5, 1.0))}
    data = load_comparisons(write(rows), source="sources:webgpt", **rule)
    assert [(row.chosen, row.strength, row.domain) for row in data.rows] == [
        ("Scattering.", 2, "eli5"), ("The sea.", 3, "eli5"), ("Scattering.", 1, "eli5"),
    ]  # fmt: skip


def test_a_function_may_return_several_pairs_or_none(write, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def pairs(row):\n"
        "    if not row['worse']:\n        return None\n"
        "    pair = {'prompt': row['q'], 'chosen': row['best'], 'strength': 1}\n"
        "    return [pair | {'rejected': worse} for worse in row['worse']]\n"
    )
    monkeypatch.chdir(tmp_path)
    path = write([{"q": "Q", "best": "a", "worse": ["b", "c"]}, {"q": "R", "best": "a", "worse": []}])
    data = load_comparisons(path, source="mine:pairs")
    assert [row.rejected for row in data.rows] == ["b", "c"]
    assert data.left_out == {"mine:pairs returned no pair": 1}
    monkeypatch.delitem(sys.modules, "mine")


def test_what_a_function_raises_names_function_file_and_row(write, examples):
    with pytest.raises(DataError, match=r"data\.jsonl, row 1: sources:pandalm raised KeyError: 'annotator1'"):
        load_comparisons(write([PANDALM]), source="sources:pandalm")
    with pytest.raises(UserError, match="source 'sources:nothing' cannot be imported: AttributeError"):
        load_comparisons(write([PANDALM]), source="sources:nothing")
    with pytest.raises(UserError, match="source 'nowhere:pandalm' cannot be imported: ModuleNotFoundError"):
        load_comparisons(write([PANDALM]), source="nowhere:pandalm")


@pytest.mark.parametrize("name", ["pandalm", "webgpt", "summaries", "prodigy", "good-and-bad"])
def test_a_source_that_went_says_what_to_write(write, name):
    with pytest.raises(UserError, match=r"went: a function reads such rows: `source: package\.module:function`"):
        load_comparisons(write([PANDALM]), source=name)
    with pytest.raises(ValueError, match=f"'{name}' went: a function reads such rows"):
        Recipe.model_validate(described("d.jsonl", name))


def described(path, source):
    return {
        "name": "mine", "model": {"path": "m"}, "data": {"path": str(path), "source": source},
        "policies": {"dpo": {"objective": "dpo"}},
    }  # fmt: skip


def test_the_function_is_part_of_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps(PANDALM) + "\n")
    keys = []
    for text in ("def pair(row):\n    return None\n", "def pair(row):\n    return []\n"):
        Path("reader.py").write_text(text)
        run = open_run(Recipe.model_validate(described("rows.jsonl", "reader:pair")), Store(tmp_path / "store"))
        keys.append(run.stages["comparisons"].key)
    assert keys[0] != keys[1]
