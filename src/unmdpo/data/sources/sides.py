"""Two responses in columns of their own, and a label that says which is better, as people and their tools write it.

A label names a side ("left", "model_a", "response 2", "tie"), perhaps with a degree ("A is slightly better"), or is a
number whose sign names the side (−3 … 3, negative for the first response). Anything else, such as a scale from 1 to 7,
needs `strength.labels`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import BOTH_BAD, Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Texts, shape
from unmdpo.data.strength import StrengthRule, signed

HEAD = 200  # rows, to see what kind of labels they have
PAIRS = tuple(
    (f"{name}_{first}", f"{name}_{second}")
    for name in ("response", "answer", "output", "completion", "text", "candidate", "model_output")
    for first, second in (("a", "b"), ("1", "2"), ("left", "right"))
)
LABELS = ("label", "labels", "preference", "winner", "choice", "verdict", "better", "rating", "annotation")
DOMAINS = ("domain", "category", "task")
FIRST, SECOND = r"(?:a|1|left|first|one)", r"(?:b|2|right|second|two)"
NOUN = r"(?:(?:the )?(?:response|answer|model|output|completion|candidate|option|text|side|assistant) ?)?"
SIDE = re.compile(rf"\b{NOUN}(?:(?P<a>{FIRST})|(?P<b>{SECOND}))\b(?: (?:one|response|answer|model|output))?")
NEITHER = re.compile(r"\b(tie|tied|same|equal|equally|both|neither|draw|no preference|none)\b")
BAD = re.compile(r"\b(bad|poor|neither|bothbad)\b")
WORSE = re.compile(r"\b(worse|loses|lost|not|rejected)\b")
NUMBER, BY_NUMBER = re.compile(r"[-+]?\d+"), {0: 0, 1: -1, 2: 1}
DEGREES = (
    (3, re.compile(r"\b(much|far|significantly|strongly|clearly|a lot|definitely)\b")),
    (1, re.compile(r"\b(slightly|somewhat|a bit|a little|marginally|weakly|barely)\b")),
)


@dataclass(frozen=True)
class Reader:
    """Reads labels of one kind, which the first rows of a file settle."""

    rule: StrengthRule
    graded: bool  # some label has a degree, so one without is in the middle
    signed: bool  # some label is a negative number, so numbers are no sides

    @classmethod
    def of(cls, rule: StrengthRule, labels: Sequence[Any]) -> "Reader":
        words = [_words(label) for label in labels]
        numbers = sorted({int(word) for word in words if NUMBER.fullmatch(word)})
        if rule.labels is None and numbers and numbers[0] >= 0 and not _are_sides(numbers):
            raise UserError(_advice(numbers))
        graded = any(pattern.search(word) for word in words for _, pattern in DEGREES)
        return cls(rule, graded, bool(numbers) and numbers[0] < 0)

    def sign(self, row: Row, column: str, label: object) -> int:
        """Of one label: negative for the first response, 0 for a tie."""
        if self.rule.labels is not None:
            return signed(row, column, label, self.rule.labels)
        word = _words(label)
        if NUMBER.fullmatch(word) and (self.signed or int(word) not in BY_NUMBER):
            return row.as_integer(column, int(word), -self.rule.levels, self.rule.levels)
        if NUMBER.fullmatch(word):
            return BY_NUMBER[int(word)]
        sides = {match.lastgroup for match in SIDE.finditer(word)}
        if NEITHER.search(word) and len(sides) != 1:
            return 0
        if len(sides) != 1 or WORSE.search(word):
            raise row.error(f"'{column}' is {str(label)[:40]!r}, which does not say which response is better")
        degree = next((size for size, pattern in DEGREES if pattern.search(word)), 2 if self.graded else 1)
        return min(degree, self.rule.levels) * (-1 if sides == {"a"} else 1)

    def read(self, row: Row) -> Comparison:
        names, column = _names(row)
        value = row.value(column)
        if value is None or value == "" or value == []:
            raise row.no_comparison("there is no label")
        votes = [self.sign(row, column, label) for label in (value if isinstance(value, list) else [value])]
        mean = sum(votes) / len(votes)
        label = int(abs(mean) + 0.5) * (1 if mean > 0 else -1)
        domain = next((row.optional_text(name) for name in DOMAINS if name in row), "")
        first, second = (row.text(name) for name in names)
        texts = Texts(row.prompt("prompt"), first, second, domain, row.optional_text("language"))
        made = texts.compare(row, label, tuple(votes) if len(votes) > 1 else ())
        bad = label == 0 and not isinstance(value, list) and BAD.search(_words(value)) is not None
        return replace(made, tie=BOTH_BAD) if bad else made


def _words(label: object) -> str:
    """A label in lower case, with spaces between words."""
    return " ".join(re.sub(r"[_\-./()]+(?!\d*$)|(?<=[a-z])[_\-](?=\d)", " ", str(label).strip().lower()).split())


def _are_sides(numbers: Sequence[int]) -> bool:
    """1 and 2 are, and 0 beside them is a tie; 0 and 1 may mean either."""
    return set(numbers) <= BY_NUMBER.keys() and (2 in numbers or 0 not in numbers)


def _advice(numbers: Sequence[int]) -> str:
    """Where only the user knows: a line that is ready to be used."""
    low, high = numbers[0], numbers[-1]
    if low > 0:  # a scale from one
        low, high = 1, max(high, 5)
    middle = (low + high) / 2
    away = {value: value - middle for value in range(low, high + 1)}
    guess = {value: int(math.copysign(math.ceil(abs(far)), far)) for value, far in away.items()}
    mapping = ", ".join(f"{value}: {sign}" for value, sign in guess.items())
    flags = " ".join(f"--label {value}={sign}" for value, sign in guess.items())
    return (
        f"labels are numbers from {numbers[0]} to {numbers[-1]} without a sign, which do not say what side they mean. "
        f"If large ones prefer the second response, write strength: {{levels: {max(guess.values())}, labels: "
        f"{{{mapping}}}}} in a recipe, or {flags}; if the first, turn the signs around"
    )


def _names(row: Row) -> tuple[tuple[str, str], str]:
    names = next((names for names in PAIRS if row.values.keys() >= set(names)), None)
    label = _label(row)
    if names is None or label is None:
        raise row.error("lacks one of the two responses, or a label")
    return names, label


def _label(row: Row) -> str | None:
    return next((name for name in LABELS if name in row.values), None)


def _is_labelled(row: Row) -> bool:
    return "prompt" in row.values and _label(row) is not None


def _read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
    rest = iter(rows)
    head = list(islice(rest, HEAD))
    values = [row.values[name] for row in head if (name := _label(row)) is not None and name in row]
    labels = list(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    return bad.parse(chain(head, rest), Reader.of(source.rule, labels).read)


SIDES = Source(
    tuple(shape(*names) for names in PAIRS),
    _read,
    "the label's degree (slightly 1, much 3), its number, or `strength.labels`",
    uses=frozenset({"strength"}),
    accepts=_is_labelled,
)
