"""Arena-Hard-Auto's files and scores."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from typer.testing import CliRunner

from unmdpo.cli import app
from unmdpo.core.errors import DataError, UserError
from unmdpo.data.arena import Setting, Style, read_judgments, read_styles, style, write_answers
from unmdpo.data.identity import Message
from unmdpo.results.arena import controlled_for_style
from unmdpo.stats.arena import style_controlled, style_difference, win_rate


def judgment(first, second, uid="1", model="mine", **more):
    games = [{"score": first, "judgment": "…"}, {"score": second}]
    return {
        "uid": uid,
        "model": model,
        "judge": "gpt",
        "category": "hard_prompt",
        "baseline": "o3",
        "games": games,
    } | more


def answer(uid, model, text, **more):
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": {"answer": text}}]
    return {"uid": uid, "ans_id": "x", "model": model, "messages": messages} | more


@pytest.mark.parametrize(
    ("first", "second", "points"),
    [
        ("A>B", "A>B", [1, 0]),  # the baseline is A in the first game, the model in the second
        ("B>A", "A>B", [1, 1]),
        ("A<B", "B<A", [1, 1]),
        ("B>>A", "A=B", [0.5, 1, 1, 1]),
        ("A>>B", "A<<B", [0, 0, 0, 0, 0, 0]),
        ("B=A", "B<<A", [1, 1, 1, 0.5]),
    ],
)
def test_verdicts(write, first, second, points):
    (games,) = read_judgments([Path(write([judgment(first, second)]))]).values()
    assert games.scores.tolist() == points


def test_judgments_without_a_verdict_are_counted(write):
    rows = [judgment("A>B", None), judgment("B>A", "A>B", "2"), {**judgment("A>B", "A>B", "3"), "games": [None, None]}]
    ((setting, games),) = read_judgments([Path(write(rows))]).items()
    assert setting == Setting("gpt", "hard_prompt", "o3", "mine")
    assert (games.judgments, games.unread, games.prompts) == (3, 2, ["2", "2"])


def test_the_first_versions_rows(write):
    row = {"question_id": "a", "model": "mine", "judge": "gpt", "games": [{"score": "B>A"}, {"score": "A>B"}]}
    ((setting, games),) = read_judgments([Path(write([row]))]).items()
    assert (setting.baseline, setting.category, games.prompts) == ("baseline", "", ["a", "a"])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (judgment("A>C", "A>B"), "verdict 'A>C'"),
        (judgment("A>A", "A>B"), "verdict 'A>A'"),
        ({**judgment("A>B", "A>B"), "games": [{"score": "A>B"}]}, "two games"),
        ({"model": "mine", "games": []}, "'uid' or 'question_id'"),
    ],
)
def test_what_is_no_judgment(write, row, says):
    with pytest.raises(DataError, match=says):
        read_judgments([Path(write([row]))])


def test_marks_are_counted_outside_of_code():
    text = "# Title\n## Part\n- one\n* two\n1. three\n**bold** and __bold__\n```\n# comment\n- no\n```\n"
    assert style(text, tokens=40) == Style(40, 2, 3, 2)
    assert style("Two words.") == Style(3, 0, 0, 0)


def test_lengths_are_tokens_only_if_all_answers_have_them(write):
    rows = [answer("1", "mine", "a b", metadata={"token_len": 9}), answer("1", "o3", "a b c")]
    found = read_styles([Path(write(rows))])
    assert (found["mine"]["1"].length, found["o3"]["1"].length) == (2, 3)
    rows[1]["metadata"] = {"token_len": 7}
    assert read_styles([Path(write(rows))])["mine"]["1"].length == 9
    old = {"question_id": "1", "model_id": "old", "choices": [{"index": 0, "turns": [{"content": "a b"}]}]}
    assert read_styles([Path(write([old]))])["old"]["1"].length == 2


def test_a_win_rate_with_its_bootstrap():
    scores = np.repeat([0.0, 0.5, 1.0], [30, 20, 50])
    found = win_rate(scores)
    assert found.value == 60
    error = 100 * scores.std() / 10
    assert (found.low, found.high) == pytest.approx((60 - 1.645 * error, 60 + 1.645 * error), abs=1.0)


def test_style_differences_by_hand():
    ours, theirs = np.array([[30.0, 3, 0, 6]]), np.array([[10.0, 0, 2, 1]])
    dense = [(0.1 - 0) / (0.1 + 0 + 1), (0 - 0.2) / (0 + 0.2 + 1), (0.2 - 0.1) / (0.2 + 0.1 + 1)]
    assert style_difference(ours, theirs)[0] == pytest.approx([0.5, *dense])
    assert np.isfinite(style_difference(np.zeros((1, 4)), np.zeros((1, 4)))).all()  # two empty answers


def test_style_control_equals_a_plain_fit(monkeypatch):
    """The same likelihood, with a column for the baseline as Arena-Hard-Auto has it, minimized by another library."""
    random = np.random.default_rng(0)
    features = {name: random.normal(size=(400, 4)) for name in ("one", "two")}
    strength = {"one": 0.8, "two": -0.4}
    scores = {}
    for name, some in features.items():
        chance = 1 / (1 + np.exp(-(strength[name] + some @ [1.0, 0.0, 0.3, 0.0])))
        scores[name] = np.where(random.random(400) < 0.1, 0.5, random.random(400) < chance)
    every, outcomes = np.concatenate([*features.values()]), np.concatenate([*scores.values()])
    every = (every - every.mean(0)) / every.std(0, ddof=1)
    who = np.kron(np.eye(2), np.ones((400, 1)))
    design = np.hstack([who, -np.ones((800, 1)), every])

    def loss(at):
        logits = design @ at
        return np.sum(np.logaddexp(0, logits) - outcomes * logits)

    fitted = minimize(loss, np.full(7, 0.5), method="L-BFGS-B", options={"maxiter": 500}).x
    expected = 100 / (1 + np.exp(-(fitted[:2] - fitted[2])))
    found = style_controlled(scores, features)
    assert [found["one"].value, found["two"].value] == pytest.approx(expected, abs=0.8)  # a median of 100 resamples
    assert found["one"].low < expected[0] < found["one"].high
    raw = 100 * scores["one"].mean()
    assert abs(raw - expected[0]) > 1  # it does something


def test_style_control_needs_all_answers(write):
    games = read_judgments([Path(write([judgment("B>A", "A>B")]))])
    with pytest.raises(UserError, match="answers of 'o3' to all prompts: 1 are missing, such as 1"):
        controlled_for_style(games, {"mine": {"1": Style(1, 0, 0, 0)}})


def test_by_command(tmp_path):
    judged, answers = tmp_path / "j.jsonl", tmp_path / "a.jsonl"
    random = np.random.default_rng(1)
    verdicts = ["A>B", "B>A", "A=B", "B>>A"]
    rows = [judgment(*random.choice(verdicts, 2), uid=str(i)) for i in range(40)] + [judgment("A>B", None, "40")]
    judged.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [
        answer(str(i), model, "word " * int(random.integers(1, 30))) for i in range(41) for model in ("mine", "o3")
    ]
    answers.write_text("".join(json.dumps(row) + "\n" for row in texts))
    found = CliRunner().invoke(app, ["arena", str(judged), "--answers", str(answers)], env={"COLUMNS": "160"})
    assert found.exit_code == 0, found.output
    assert "41 (1 without a verdict)" in found.output
    assert found.output.count("[") == 2  # an interval for each rate


def test_answers_for_it(tmp_path):
    rows = [{"prompt": (Message("user", "Why?"),), "id": "7", "text": "Because."}]
    write_answers(tmp_path / "mine.jsonl", "mine", rows)
    (line,) = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert line["messages"][-1]["content"]["answer"] == "Because."
    assert (line["uid"], line["model"], line["messages"][0]) == ("7", "mine", {"role": "user", "content": "Why?"})
    assert read_styles([tmp_path / "mine.jsonl"])["mine"]["7"].length == 2
    with pytest.raises(UserError, match="'uid' or 'question_id'"):
        write_answers(tmp_path / "none.jsonl", "mine", [{**rows[0], "id": ""}])
    assert not (tmp_path / "none.jsonl").exists()
