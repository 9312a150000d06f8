"""Answers for Arena-Hard-Auto, and its verdicts."""

import json

import pytest

from unmdpo.core.errors import UserError
from unmdpo.data.arena import share_of_a, write_answers
from unmdpo.data.identity import Message


@pytest.mark.parametrize(
    ("verdict", "share"),
    [("A>>B", 1), ("A>B", 0.75), ("A=B", 0.5), ("B>A", 0.25), ("B>>A", 0), ("A<B", 0.25), ("A>A", None), ("A", None)],
)
def test_verdicts(verdict, share):
    assert share_of_a(verdict) == share


def test_answers_for_it(tmp_path):
    rows = [{"prompt": (Message("user", "Why?"),), "id": "7", "text": "Because."}]
    write_answers(tmp_path / "mine.jsonl", "mine", rows)
    (line,) = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert line["messages"][-1]["content"]["answer"] == "Because."
    assert (line["uid"], line["model"], line["messages"][0]) == ("7", "mine", {"role": "user", "content": "Why?"})
    with pytest.raises(UserError, match="'uid' or 'question_id'"):
        write_answers(tmp_path / "none.jsonl", "mine", [{**rows[0], "id": ""}])
    assert not (tmp_path / "none.jsonl").exists()
