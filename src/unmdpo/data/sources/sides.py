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
from unmdpo.data.sources.guess import as_option
from unmdpo.data.sources.pair_texts import ANSWERS, with_system
from unmdpo.data.strength import StrengthRule, signed

HEAD = 200  # rows, to see what kind of labels they have
PAIRS = tuple(
    (f"{name}{gap}{first}", f"{name}{gap}{second}")
    for gap in ("_", "")
    for name in ("response", "answer", "output", "completion", "text", "candidate", "model_output")
    for first, second in (("a", "b"), ("1", "2"), ("left", "right"))
)
LABELS = (
    "label",
    "labels",
    "preference",
    "winner",
    "choice",
    "verdict",
    "better",
    "rating",
    "annotation",
    "preferred",
)
DOMAINS = ("domain", "category", "task")
FIRST, SECOND = {"a", "1", "left", "first"}, {"b", "2", "right", "second"}
NOUNS = {"response", "answer", "model", "output", "completion", "candidate", "option", "text", "side", "assistant"}
PLAIN = {"the", "one", "is", "was", "better", "best", "win", "wins", "won", "winner", "prefer", "preferred", "i"}
STRONG = {"much", "far", "significantly", "strongly", "clearly", "definitely", "lot"}
WEAK = {"slightly", "somewhat", "bit", "little", "marginally", "weakly", "barely"}
TIED = {"tie", "tied", "same", "equal", "equally", "both", "neither", "draw", "none", "no", "bothbad"}
OF_TIES = {"about", "roughly", "are", "is", "the", "good", "bad", "poor", "preference", "it's", "it", "of", "them"}
BAD = {"bad", "poor", "neither", "bothbad"}
NUMBER, BY_NUMBER = re.compile(r"[-+]?\d{1,6}(\.0+)?"), {0: 0, 1: -1, 2: 1}
ARTICLE, WORD = re.compile(r"\ba (?=(?:bit|little|lot|tie|draw)\b)"), re.compile(r"[^\W_]+(?:'\w+)?")
ODD = re.compile(r"[^\w\s.,:;()\[\]'\"/-]|(?<!\w)-|-(?!\w)")  # a sign may turn a label around: !A, A--, A <
MOST = 20  # steps of a scale that is spelled out
OTHER_KIND = "say what all labels mean with strength.labels, or --label"


@dataclass(frozen=True)
class Reader:
    """Reads labels of one kind, which the first rows of a file settle."""

    rule: StrengthRule
    graded: bool  # some label has a degree, so one without is in the middle
    signed: bool  # some number has a sign, so numbers are no sides
    numbers: frozenset[int]  # that were seen
    degrees: StrengthRule | None = None  # of a strength column with words beside the labels

    @classmethod
    def of(cls, rule: StrengthRule, labels: Sequence[Any], strengths: Sequence[Any] = ()) -> "Reader":
        if any(isinstance(value, str) and value.strip() and _number(value) is None for value in strengths):
            sides = cls.of(rule.model_copy(update={"labels": None}), labels)  # what labels mean is said of those words
            return replace(sides, degrees=rule)
        numbers = sorted({found for label in labels if (found := _number(label)) is not None})
        has_sign = any(_number(label) is not None and str(label).strip()[0] in "+-−" for label in labels)
        if rule.labels is None and numbers and not has_sign and not _are_sides(numbers):
            raise UserError(_advice(numbers))
        graded = any((STRONG | WEAK) & {*_words(label)} for label in labels)
        return cls(rule, graded, has_sign, frozenset(numbers))

    def sign(self, row: Row, column: str, label: object) -> int:
        """Of one label: negative for the first response, 0 for a tie."""
        if self.rule.labels is not None:
            return signed(row, column, label, self.rule.labels)
        number = _number(label)
        if number is not None and self.signed:
            return row.as_integer(column, number, -self.rule.levels, self.rule.levels)
        if number is not None and number not in self.numbers:
            raise UserError(f"{row.origin}: '{column}' is {number}, and no label before was: {OTHER_KIND}")
        words = _words(label)
        if number is None and not self.graded and {*words} & (STRONG | WEAK):
            raise UserError(
                f"{row.origin}: '{column}' says how much better, and none of the first {HEAD} labels did: {OTHER_KIND}"
            )
        odd = ODD.search(str(label).strip().rstrip(".!"))
        found = BY_NUMBER[number] if number is not None else None if odd else self._spoken(words)
        if found is None:
            raise row.error(f"'{column}' is {str(label)[:40]!r}, which does not say which response is better")
        return found

    def _spoken(self, words: list[str]) -> int | None:
        """None where any word is not known to name a better side: what is worse, or right, is not guessed."""
        sides = {-1 if word in FIRST else 1 for word in words if word in FIRST | SECOND}
        digits = [place for place, word in enumerate(words) if word in ("1", "2")]
        if any(place == 0 or words[place - 1] not in NOUNS for place in digits):
            return None
        if {*words} & TIED:
            return None if sides or {*words} - TIED - OF_TIES - NOUNS else 0
        if len(sides) != 1 or {*words} - FIRST - SECOND - NOUNS - PLAIN - STRONG - WEAK:
            return None
        degree = 3 if {*words} & STRONG else 1 if {*words} & WEAK else 2 if self.graded else 1
        return min(degree, self.rule.levels) * sides.pop()

    def _degree(self, row: Row) -> int:
        if self.degrees is None:
            return row.integer("strength", 1, self.rule.levels)
        said = row.value("strength")
        if self.degrees.labels is not None:
            return abs(signed(row, "strength", said, self.degrees.labels))
        words = {*_words(said)}
        if not words or words - PLAIN - STRONG - WEAK:
            raise row.error(f"'strength' is {str(said)[:40]!r}, which does not say how much better; {OTHER_KIND}")
        return min(self.rule.levels, 3 if words & STRONG else 1 if words & WEAK else 2)

    def read(self, row: Row) -> Comparison:
        names, column = _names(row)
        value = row.value(column)
        if value is None or value == "" or value == [] or (isinstance(value, float) and math.isnan(value)):
            raise row.no_comparison("there is no label")
        if "inconsistent" in _words(value):
            raise row.no_comparison("the judge's verdict depends on the order of the answers")
        votes = [self.sign(row, column, label) for label in (value if isinstance(value, list) else [value])]
        mean = abs(sum(votes)) / len(votes)
        label = max(1, int(mean + 0.5)) * ((sum(votes) > 0) - (sum(votes) < 0))
        domain = next((row.optional_text(name) for name in DOMAINS if name in row), "")
        first, second = (row.text(name) for name in names)
        prompt = (*row.tools(), *with_system(row, row.prompt("prompt")))
        if "strength" in row and abs(label) == 1:  # a side, and how much better it is beside it
            label *= self._degree(row)
        made = Texts(prompt, first, second, domain, row.optional_text("language")).compare(
            row, label, tuple(votes) if len(votes) > 1 else ()
        )
        bad = label == 0 and not isinstance(value, list) and bool(BAD & {*_words(value)})
        return replace(made, tie=BOTH_BAD) if bad else made


def _number(label: object) -> int | None:
    """A whole number, however it is written."""
    text = str(label).strip().replace("−", "-")
    return int(float(text)) if NUMBER.fullmatch(text) else None


def _words(label: object) -> list[str]:
    """A label's words in lower case; `response2` has two."""
    text = ARTICLE.sub("", re.sub(r"(?<=[a-z])(?=[12]$)", " ", str(label).strip().lower()))
    return WORD.findall(text)


def _are_sides(numbers: Sequence[int]) -> bool:
    """1 and 2 are, and 0 beside them is a tie; 0 and 1 may mean either."""
    return set(numbers) <= BY_NUMBER.keys() and (2 in numbers or 0 not in numbers)


def _advice(numbers: Sequence[int]) -> str:
    """Where only the user knows: a line that is ready to be used."""
    low, high = numbers[0], numbers[-1]
    if low > 0:  # a scale from one
        low, high = 1, max(high, 5)
    if high - low > MOST:
        return f"labels are numbers from {numbers[0]} to {high}, which do not say what side they mean; {OTHER_KIND}"
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
    if names is None:
        raise row.error("lacks one of the two responses")
    if label is None:
        such = as_option("label", [*row.values][-1])
        raise row.error(f"lacks a label: say which column holds it, such as {such}")
    return names, label


def _label(row: Row) -> str | None:
    return next((name for name in LABELS if name in row.values), None)


def _is_labelled(row: Row) -> bool:
    better = any(row.values.keys() >= set(names) for names in ANSWERS)  # which is said by other columns
    return "prompt" in row.values and _label(row) is not None and not better


def _read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
    given = source.settings.strength
    if given.column is not None or given.thresholds is not None or given.continuous:
        raise UserError("labels say how strong they are: of strength's settings, only levels and labels apply")
    rest = iter(rows)
    head = list(islice(rest, HEAD))
    values = [row.values[name] for row in head if (name := _label(row)) is not None and name in row]
    labels = list(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    strengths = [row.values["strength"] for row in head if "strength" in row.values]
    return bad.parse(chain(head, rest), Reader.of(source.rule, labels, strengths).read)


SIDES = Source(
    tuple(shape(*names) for names in PAIRS),
    _read,
    "the label's degree (slightly 1, much 3), its number, or `strength.labels`",
    uses=frozenset({"strength"}),
    accepts=_is_labelled,
)
