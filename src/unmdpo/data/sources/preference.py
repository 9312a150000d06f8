"""Pairs that say which response is better: TRL's shapes, and those of others with the same columns by other names."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Reader, Source, shape
from unmdpo.data.sources.pair_texts import ANSWERS, PROMPTS, Said, pair_texts, prompt_column, read_out
from unmdpo.data.strength import StrengthRule, are_strengths, grade, grade_columns, graded_by

NO_STRENGTHS = "no strengths, margins or scores were found"
BESIDE = ("documents", "passage")  # what may belong to a prompt, beside its other names
ReadTexts = Callable[[Row], tuple[Prompt, Said, Said]]  # the prompt and both responses, the better one first
HEAD, SHORT, NEARLY = 100, 12, 0.9  # rows looked at; a prompt that answers may begin with by chance; share of rows


def pairs(texts: ReadTexts, *, may_repeat: bool = False) -> Reader:
    """For rows that each hold one pair. What is so for the whole file, such as where strengths are, is settled by its
    first rows; if responses `may_repeat` the prompt, whether they do."""

    def read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        rest = iter(rows)
        head = list(islice(rest, HEAD))
        return bad.parse(chain(head, rest), PairReader(source.rule, texts, head, may_repeat).read)

    return read


class PairReader:
    """Reads rows that give their strength in the same columns, and their prompt in the same way."""

    def __init__(self, rule: StrengthRule, texts: ReadTexts, head: Sequence[Row], may_repeat: bool) -> None:
        self.rule, self.texts = rule, texts
        self.columns = strength_columns(head, self.rule)
        self.repeats = may_repeat and _repeats(head)
        self.unused = unused_columns(head)
        self._warned = False
        if self.rule.labels is not None and not (self.columns and are_strengths(self.columns, self.rule)):
            raise UserError("strength.labels says what words mean: name the column that holds them in strength.column")

    def read(self, row: Row) -> Comparison:
        prompt, chosen, rejected = self._said(row)
        self._warn_once(row)
        strength, margin = self._grade(row)
        return Comparison(
            prompt=(*row.tools(), *prompt),
            chosen=read_out(chosen),
            rejected=read_out(rejected),
            chosen_turns=() if isinstance(chosen, str) else chosen,
            rejected_turns=() if isinstance(rejected, str) else rejected,
            strength=strength,
            source=row.origin,
            domain=row.optional_text("domain"),
            language=row.optional_text("language"),
            votes=_votes(row, self.rule.levels),
            weight=row.weight(),
            margin=margin,
        )

    def _grade(self, row: Row) -> tuple[int, float | None]:
        """The strength, or the margin that it is cut from later."""
        columns = self.columns
        if not row.values.keys() >= set(columns) or (not columns and self._graded(row)):
            raise row.error(
                f"gives its strength in {_names(grade_columns(row, self.rule))}, "
                f"but the rows before it in {_names(columns)}"
            )
        if not columns:
            return 1, None
        value = grade(row, columns, self.rule)
        return (int(value), None) if are_strengths(columns, self.rule) else (0, value)

    def _graded(self, row: Row) -> bool:
        return any(all(name in row for name in names) for names in graded_by(row))

    def _said(self, row: Row) -> tuple[Prompt, Said, Said]:
        prompt, chosen, rejected = self.texts(row)
        if self.repeats and isinstance(chosen, str) and isinstance(rejected, str):
            chosen, rejected = _without_prompt(row, chosen, rejected)
        return prompt, chosen, rejected

    def _warn_once(self, first: Row) -> None:
        """With the first row that can be read."""
        if self._warned:
            return
        self._warned = True
        if not self.columns:
            _warn(f"{first.origin.file}: {NO_STRENGTHS}; every strength is 1, so margins carry no information")
        if self.unused:
            _warn(f"{first.origin.file}: not used, as the prompt is elsewhere: {_names(self.unused)}; "
                  "data.columns can say what the prompt is")  # fmt: skip
        if self.repeats:
            _warn(f"{first.origin.file}: the responses repeat the prompt, which is taken off them")


@contextlib.contextmanager
def strengths_come_later() -> Iterator[None]:
    """Data without strengths is nothing to warn of where a judge will give them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NO_STRENGTHS}")
        yield


def _warn(message: str) -> None:
    warnings.warn(message, UnmdpoWarning, stacklevel=2)


def strength_columns(head: Sequence[Row], rule: StrengthRule) -> tuple[str, ...]:
    """The first of the usual strength columns that some row has values in; one that is empty throughout is none."""
    if rule.column is not None:
        return (rule.column,)
    candidates = dict.fromkeys(columns for row in head for columns in graded_by(row))
    return next((names for names in candidates if any(all(name in row for name in names) for row in head)), ())


def _repeats(head: Sequence[Row]) -> bool:
    """Whether texts next to a prompt begin with it, in nearly all rows; short ones may do so by chance."""
    long = [row for row in head if len(_prompt_text(row)) >= SHORT]
    return 2 * len(long) >= len(head) > 0 and sum(map(_repeats_prompt, long)) >= NEARLY * len(long)


def _prompt_text(row: Row) -> str:
    prompt = row.values.get("prompt")
    return prompt if isinstance(prompt, str) else ""


def _repeats_prompt(row: Row) -> bool:
    prompt = _prompt_text(row)
    answers = [row.values.get(name) for name in ANSWERS[0]]
    return len(prompt) >= SHORT and all(isinstance(text, str) and _begins_with(text, prompt) for text in answers)


def _begins_with(text: str, prompt: str) -> bool:
    """And goes on with another word."""
    return text.startswith(prompt) and (prompt[-1:].isspace() or not text[len(prompt) : len(prompt) + 1].isalnum())


def _without_prompt(row: Row, chosen: str, rejected: str) -> tuple[str, str]:
    if not _repeats_prompt(row):
        return chosen, rejected
    prompt = row.text("prompt")
    rests = (text.removeprefix(prompt) for text in (chosen, rejected))
    first, second = (rest if prompt[-1:].isspace() else rest.lstrip() for rest in rests)
    return first, second


def unused_columns(head: Sequence[Row]) -> tuple[str, ...]:
    """Columns that may hold a part of the prompt in some row, and are not read."""
    return tuple(dict.fromkeys(name for row in head for name in _unused_in(row)))


def _unused_in(row: Row) -> Iterator[str]:
    used = prompt_column(row)
    known = ["", *(row.values.get(name) for name in ("prompt", used or ""))]
    for name in (*PROMPTS[1:], *BESIDE):
        joined = name == "input" and used == "instruction"
        if name != used and not joined and isinstance(row.values.get(name), str) and row.values[name] not in known:
            yield name


def _names(columns: tuple[str, ...]) -> str:
    return " and ".join(f"'{column}'" for column in columns) or "no column"


def _votes(row: Row, levels: int) -> tuple[int, ...]:
    """Each annotator's; a number of votes says nothing about them."""
    votes = row.values.get("votes")
    if not isinstance(votes, list):
        return ()
    return tuple(row.as_integer(f"votes[{i}]", vote, -levels, levels) for i, vote in enumerate(votes))


PREFERENCE = Source(
    tuple(shape(*answers) for answers in ANSWERS),
    pairs(pair_texts, may_repeat=True),
    "a `strength` column, a `margin`, or the difference of two scores; else 1",
    uses=frozenset({"strength"}),
    labels="fixed pairs",
    finds_strength=True,
    also=(
        "HuggingFaceH4/ultrafeedback_binarized",
        "argilla/ultrafeedback-binarized-preferences-cleaned",
        "Skywork/Skywork-Reward-Preference-80K-v0.2",
        "allenai/llama-3.1-tulu-3-8b-preference-mixture",
        "allenai/olmo-2-1124-7b-preference-mix",
        "Intel/orca_dpo_pairs",
        "argilla/distilabel-intel-orca-dpo-pairs",
        "argilla/dpo-mix-7k",
        "allenai/reward-bench",
        "openbmb/UltraInteract_pair",
        "lvwerra/stack-exchange-paired",
    ),
)
