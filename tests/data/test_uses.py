"""What became of every column; what is not text is refused, or left out by the user's own word."""

import json

import pytest

from unmdpo.core.errors import UserError
from unmdpo.data import DataRef, SourceSettings
from unmdpo.data.load import Reading, first_rows, load
from unmdpo.data.sources import SOURCES
from unmdpo.data.uses import uses

PAIR = {
    "prompt": "Why is the sky blue?", "chosen": "Light scatters.", "rejected": "It is not.", "strength": 2,
    "domain": "physics", "weight": 0.5, "ref_logps": -12.5, "margin": 3.0,
}  # fmt: skip
JUDGED = {
    "instruction": "Add.", "input": "1 + 2", "response1": "3", "response2": "4",
    "annotator1": 1, "annotator2": 1, "annotator3": 1, "idx": 7,
}  # fmt: skip
SCORED = [
    {"prompt": "Add.", "response": "3", "score": 9, "by": "a"},
    {"prompt": "Add.", "response": "4", "score": 2, "by": "b"},
]


def used(tmp_path, source, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return uses(SOURCES[source].configured(SourceSettings()), first_rows(DataRef(str(path))))


def test_columns_of_pairs(tmp_path):
    other = PAIR | {"prompt": "And the sea?", "strength": 1, "domain": "biology"}
    assert used(tmp_path, "preference", [PAIR, other]) == {
        "prompt": "the prompt", "chosen": "the responses", "rejected": "the responses", "strength": "the strength",
        "domain": "the domain", "weight": "the weight", "ref_logps": "", "margin": "",
    }  # fmt: skip


def test_columns_of_votes(tmp_path):
    other = JUDGED | {"annotator1": 2, "annotator2": 2, "annotator3": 2}
    found = used(tmp_path, "pandalm", [JUDGED, other])
    assert found.pop("idx") == ""
    assert {found.pop(name) for name in ("instruction", "input")} == {"the prompt"}
    assert {found.pop(name) for name in ("response1", "response2")} == {"the responses"}
    assert all("votes" in what for what in found.values())


def test_columns_of_scored_responses(tmp_path):
    found = used(tmp_path, "scored", SCORED)
    assert found.pop("by") == ""
    assert all(found.values())


@pytest.mark.parametrize("name", ["images", "image", "audio", "video"])
def test_what_is_not_text_is_refused_unless_it_is_left_out(tmp_path, name):
    path = tmp_path / "rows.jsonl"
    rows = [PAIR, PAIR | {name: []}, PAIR | {name: [{"path": "x.png"}]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        UserError, match=rf"row 3: '{name}' is not read, because only text is.*data\.ignore: \[{name}\]"
    ):
        load(DataRef(str(path)), Reading())
    assert len(load(DataRef(str(path)), Reading(ignore=(name,)))) == 3
