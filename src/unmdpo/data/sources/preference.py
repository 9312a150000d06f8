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
from unmdpo.data.sources.pair_texts import ANSWERS, Said, pair_texts, read_out
from unmdpo.data.strength import StrengthRule, are_strengths, grade, grade_columns, graded_by

NO_STRENGTHS = "no strengths, margins or scores were found"
ReadTexts = Callable[[Row], tuple[Prompt, Said, Said]]  # the prompt and both responses, the better one first
ROWS_LOOKED_AT = 100  # to see where strengths are


def pairs(texts: ReadTexts) -> Reader:
    """For rows that each hold one pair. Where strengths are is settled for the whole file by its first rows."""

    def read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        rest = iter(rows)
        head = list(islice(rest, ROWS_LOOKED_AT))
        return bad.parse(chain(head, rest), PairReader(source.rule, texts, head).read)

    return read


class PairReader:
    """Reads rows that give their strength in the same columns."""

    def __init__(self, rule: StrengthRule, texts: ReadTexts, head: Sequence[Row]) -> None:
        self.rule = rule
        self.texts = texts
        self.columns = strength_columns(head, self.rule)
        self._warned = False
        if self.rule.labels is not None and not (self.columns and are_strengths(self.columns, self.rule)):
            raise UserError("strength.labels says what words mean: name the column that holds them in strength.column")

    def read(self, row: Row) -> Comparison:
        prompt, chosen, rejected = self.texts(row)
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

    def _warn_once(self, first: Row) -> None:
        """With the first row that can be read."""
        if self._warned:
            return
        self._warned = True
        if not self.columns:
            _warn(f"{first.origin.file}: {NO_STRENGTHS}; every strength is 1, so margins carry no information")


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
    pairs(pair_texts),
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
