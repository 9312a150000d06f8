"""Two responses in columns of their own, and a label that says which is better.

A label is `a` or `1` for the first response, `b` or `2` for the second, `tie` or `0`, or a number with a sign (−3 … 3,
negative for the first). What any other label means is said in `strength.labels`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Texts, shape
from unmdpo.data.sources.pair_texts import ANSWERS, with_system
from unmdpo.data.strength import SIDES as WORDS
from unmdpo.data.strength import StrengthRule

ROWS_LOOKED_AT = 200  # to see what kind of labels a file has
MAX_LABELS_SHOWN = 20
UNREAD_SHARE = 0.1  # of the labels looked at: more are no slips, but another language
RESPONSE_COLUMNS = tuple(
    (f"{name}{gap}{first}", f"{name}{gap}{second}")
    for gap in ("_", "")
    for name in ("response", "answer", "output", "completion", "text", "candidate", "model_output")
    for first, second in (("a", "b"), ("1", "2"), ("left", "right"))
)
LABEL_COLUMNS = (
    "label", "labels", "preference", "winner", "choice", "verdict", "better", "rating", "annotation", "preferred",
)  # fmt: skip
DOMAIN_COLUMNS = ("domain", "category", "task")
Meaning = Mapping[str, int]  # label → signed strength, negative for the first response


def label_text(label: object) -> str:
    """A label as it is looked up: `1.0` in a table is `1`, and case and typographic minus signs do not matter."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return str(label).strip().replace("−", "-").lower().removesuffix(".0")


def meaning_of(labels: Sequence[object], rule: StrengthRule) -> Meaning:
    """What the labels of a file mean, settled by its first rows; raises if that cannot be known."""
    texts = [label_text(label) for label in labels]
    words = dict(WORDS)
    if rule.labels is not None:
        meaning = words | {label_text(label): sign for label, sign in rule.labels.items()}
    elif any(text[:1] in ("+", "-") for text in texts):
        signs = range(-rule.levels, rule.levels + 1)
        meaning = words | {str(sign): sign for sign in signs} | {f"+{sign}": sign for sign in signs if sign > 0}
    elif "2" in texts or "0" not in texts:
        meaning = words | {"1": -1, "2": 1, "0": 0}
    else:  # 0 and 1 alone may mean either side
        meaning = words
    unknown = [text for text in texts if text not in meaning]
    if len(unknown) > UNREAD_SHARE * len(texts):
        raise UserError(_advice(dict.fromkeys(map(str, labels)), meaning))
    return meaning


def _advice(labels: Iterable[str], meaning: Meaning) -> str:
    """The distinct labels, as a map that is ready to be completed."""
    distinct = sorted(labels)
    shown = ", ".join(f"{label}: {meaning.get(label_text(label), '?')}" for label in distinct[:MAX_LABELS_SHOWN])
    more = f" (and {len(distinct) - MAX_LABELS_SHOWN} more)" if len(distinct) > MAX_LABELS_SHOWN else ""
    return (
        "the labels do not say which response is better. Write strength: {labels: {" + shown + "}}" + more + " in a "
        "recipe, or --label LABEL=MEANING for each, with a, b, tie, or a number for each ?: negative where the first "
        "response is better (-3 much, -1 slightly), positive where the second is"
    )


class LabelledRows:
    """Reads rows whose labels have one meaning throughout a file."""

    def __init__(self, meaning: Meaning, levels: int) -> None:
        self.meaning = meaning
        self.levels = levels

    def read(self, row: Row) -> Comparison:
        responses, column = _columns(row)
        value = row.value(column)
        if value is None or value == "" or value == [] or (isinstance(value, float) and math.isnan(value)):
            raise row.no_comparison("there is no label")
        votes = [self._sign(row, column, label) for label in (value if isinstance(value, list) else [value])]
        mean = sum(votes) / len(votes)
        sign = (mean > 0) - (mean < 0)
        label = sign * max(1, int(abs(mean) + 0.5))
        if "strength" in row and abs(label) == 1:  # how much better is said beside the side
            label *= self._degree(row)
        domain = next((row.optional_text(name) for name in DOMAIN_COLUMNS if name in row), "")
        first, second = (row.text(name) for name in responses)
        prompt = (*row.tools(), *with_system(row, row.prompt("prompt")))
        texts = Texts(prompt, first, second, domain, row.optional_text("language"))
        return texts.compare(row, label, tuple(votes) if len(votes) > 1 else ())

    def _sign(self, row: Row, column: str, label: object) -> int:
        text = label_text(label)
        if text not in self.meaning:
            known = ", ".join(list(self.meaning)[:MAX_LABELS_SHOWN])
            raise row.error(f"'{column}' is {str(label)[:40]!r}, which is none of the labels: {known}")
        return self.meaning[text]

    def _degree(self, row: Row) -> int:
        """A number, or a word that `strength.labels` lists."""
        text = label_text(row.value("strength"))
        return abs(self.meaning[text]) if text in self.meaning else row.integer("strength", 1, self.levels)


def _columns(row: Row) -> tuple[tuple[str, str], str]:
    """Those of the two responses, and of the label."""
    responses = next((names for names in RESPONSE_COLUMNS if row.values.keys() >= set(names)), None)
    label = _label_column(row)
    if responses is None:
        raise row.error("lacks one of the two responses")
    if label is None:
        raise row.error(f"lacks a label: say which column holds it, such as --column label={[*row.values][-1]}")
    return responses, label


def _label_column(row: Row) -> str | None:
    return next((name for name in LABEL_COLUMNS if name in row.values), None)


def _is_labelled(row: Row) -> bool:
    says_which = any(row.values.keys() >= set(names) for names in ANSWERS)  # then other columns say what is better
    return "prompt" in row.values and _label_column(row) is not None and not says_which


def _read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
    rule = source.settings.strength
    if rule.column is not None or rule.thresholds is not None or rule.continuous:
        raise UserError("labels say how strong they are: of strength's settings, only levels and labels apply")
    rest = iter(rows)
    head = list(islice(rest, ROWS_LOOKED_AT))
    values: list[Any] = [row.values[name] for row in head if (name := _label_column(row)) is not None and name in row]
    labels = chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
    meaning = meaning_of([label for label in labels if label not in (None, "")], source.rule)
    return bad.parse(chain(head, rest), LabelledRows(meaning, source.rule.levels).read)


SIDES = Source(
    tuple(shape(*names) for names in RESPONSE_COLUMNS),
    _read,
    "the label's number, `strength.labels`, or a `strength` column; else 1",
    uses=frozenset({"strength"}),
    accepts=_is_labelled,
)
