"""Arena-Hard-Auto's files: answers for it, and its judgments.

A judgment has two games. In the first the baseline is A and the model B, in the second it is the other way round. Its
first version names a prompt `question_id` and keeps answers in `choices`, its second has `uid` and `messages`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmdpo.core.errors import UserError
from unmdpo.core.files import write_lines
from unmdpo.data.readers.files import read_strictly
from unmdpo.data.rows import Row

Floats = NDArray[np.float64]
VERDICT = re.compile(r"(A|B)(>>|>|=|<|<<)(A|B)")
MUCH = 3  # a verdict of >> or << counts as three games
IDS = ("uid", "question_id")
CODE = re.compile(r"```([^`]*)```")
HEADERS = {f"h{depth}": re.compile(rf"^#{{{depth}}}\s", re.MULTILINE) for depth in range(1, 7)}
LISTS = {"ordered": re.compile(r"^\s*\d+\.\s", re.MULTILINE), "unordered": re.compile(r"^\s*[-*+]\s", re.MULTILINE)}
BOLD = {"**": re.compile(r"\*\*[^*\n]+\*\*"), "__": re.compile(r"__[^_\n]+__")}
STYLES: dict[str, dict[str, re.Pattern[str]]] = {"header_count": HEADERS, "list_count": LISTS, "bold_count": BOLD}
WORD = re.compile(r"\w+|[^\w\s]")


class Setting(NamedTuple):
    """What is compared with what, and by whom."""

    judge: str
    category: str
    baseline: str
    model: str


@dataclass(frozen=True)
class Games:
    """One model's games; (n,) each."""

    prompts: list[str]
    scores: Floats  # 1 if the model won, ½ for a tie
    judgments: int
    unread: int  # judgments without a verdict in both games, which are left out


class Style(NamedTuple):
    """What style control looks at in an answer."""

    length: float  # tokens, or words and signs
    headers: float
    lists: float
    bold: float


def read_judgments(paths: Iterable[Path]) -> dict[Setting, Games]:
    found = dict[Setting, list[tuple[str, list[float] | None]]]()
    for path in paths:
        for row in read_strictly(path):
            setting = Setting(
                row.optional_text("judge"),
                row.optional_text("category"),
                row.optional_text("baseline") or "baseline",
                row.text("model"),
            )
            found.setdefault(setting, []).append((_id(row), _scores(row)))
    return {setting: _games(rows) for setting, rows in found.items()}


def _games(rows: Sequence[tuple[str, list[float] | None]]) -> Games:
    played = [(name, score) for name, scores in rows for score in scores or ()]
    unread = sum(scores is None for _, scores in rows)
    return Games([name for name, _ in played], np.array([score for _, score in played]), len(rows), unread)


def _id(row: Row) -> str:
    column = next((name for name in IDS if name in row), None)
    if column is None:
        raise row.error(f"no {' or '.join(map(repr, IDS))}: this is not a judgment of Arena-Hard-Auto")
    return row.optional_text(column)


def _scores(row: Row) -> list[float] | None:
    """The model's points, a strong verdict three times; none if either game has no verdict."""
    games = row.items("games")
    if len(games) != 2:
        raise row.error(f"'games' should have two games, in both orders, not {len(games)}")
    verdicts = [game.get("score") if isinstance(game, dict) else None for game in games]
    if None in verdicts:
        return None
    of_a = [_points(row, verdict) for verdict in verdicts]
    return of_a[1] + [1 - point for point in of_a[0]]


def _points(row: Row, verdict: object) -> list[float]:
    """What A gets."""
    share = share_of_a(verdict) if isinstance(verdict, str) else None
    if share is None:
        raise row.error(f"'games' has the verdict {verdict!r}; it should be like A>B, B>>A or A=B")
    if share == 0.5:
        return [0.5]
    return [float(share > 0.5)] * (MUCH if share in (0, 1) else 1)


def share_of_a(verdict: str) -> float | None:
    """1 if A is much better, ¾ if it is better, ½ for a tie, and so on; None if it is no verdict."""
    read = VERDICT.fullmatch(verdict)
    if read is None or read[1] == read[3]:
        return None
    better = read[1] if read[2].startswith(">") else read[3]
    step = {0: 0.0, 1: 0.25, 2: 0.5}[0 if read[2] == "=" else len(read[2])]
    return 0.5 + step if better == "A" else 0.5 - step


def write_answers(path: Path, model: str, answers: Iterable[Mapping[str, Any]]) -> None:
    """Rows as `gen_judgment.py` reads them. An answer has a `prompt`, the `id` that came with it, and a `text`."""
    rows = []
    for answer in answers:
        if not answer["id"]:
            raise UserError(
                "the panel's prompts have no ids, by which Arena-Hard-Auto knows them: "
                f"its file of prompts should have a column {' or '.join(map(repr, IDS))}"
            )
        messages = [message.to_dict() for message in answer["prompt"]]
        messages.append({"role": "assistant", "content": {"answer": answer["text"]}})
        rows.append({"uid": answer["id"], "ans_id": f"{model}-{answer['id']}", "model": model, "messages": messages})
    write_lines(path, rows)


def read_styles(paths: Iterable[Path]) -> dict[str, dict[str, Style]]:
    """The style of each model's answers, by prompt. Lengths are those that the files have for all answers
    (`token_len`), or else words and signs, so that all are counted alike."""
    texts = dict[str, dict[str, tuple[str, Any]]]()
    for path in paths:
        for row in read_strictly(path):
            model = row.optional_text("model") or row.optional_text("model_id")
            texts.setdefault(model, {})[_id(row)] = _answer(row)
    counted = all(isinstance(tokens, int) for answers in texts.values() for _, tokens in answers.values())
    return {
        model: {name: style(text, tokens if counted else None) for name, (text, tokens) in answers.items()}
        for model, answers in texts.items()
    }


def _answer(row: Row) -> tuple[str, Any]:
    """The text, and its length in tokens if the file has it."""
    known = row.values.get("metadata", row.values.get("conv_metadata"))
    tokens = known.get("token_len") if isinstance(known, dict) else None
    try:
        text = (
            row.items("messages")[-1]["content"]["answer"]
            if "messages" in row
            else row.items("choices")[0]["turns"][0]["content"]
        )
    except (KeyError, IndexError, TypeError) as error:
        raise row.error("no answer in 'messages' or 'choices', as Arena-Hard-Auto writes it") from error
    return str(text), tokens


def style(text: str, tokens: int | None = None) -> Style:
    """Marks are counted outside of blocks of code."""
    plain = text
    for block in CODE.findall(text):
        plain = plain.replace(block, "")
    counts = [sum(len(mark.findall(plain)) for mark in marks.values()) for marks in STYLES.values()]
    return Style(len(WORD.findall(text)) if tokens is None else tokens, *counts)
