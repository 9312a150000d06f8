"""What a source is: the columns by which it is recognized, and how its rows become comparisons."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple, Self

from unmdpo.core.errors import UserError
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.strength import PairRule, StrengthRule


@dataclass(frozen=True)
class SourceSettings:
    """The rules a source may need; sources with labeled strengths do not use them."""

    strength: StrengthRule = field(default_factory=StrengthRule)
    pairing: PairRule = field(default_factory=PairRule)


class HubData(NamedTuple):
    """A source's official data on the Hub: which part of which repository, and how much there is."""

    path: str = ""
    data_dir: str | None = None
    config: str | None = None
    pairs: int = 0  # training comparisons
    prompts: int = 0  # distinct ones among them
    validation_rows: int = 0  # an upper bound on the validation split's prompts


class Texts(NamedTuple):
    """A row's texts, read without looking at any label."""

    prompt: Prompt
    first: str
    second: str
    domain: str = ""
    language: str = ""

    def compare(self, row: Row, label: float, votes: tuple[int, ...] = (), margin: float | None = None) -> Comparison:
        """The comparison, of strength |label|; a positive label and positive votes prefer the second response."""
        second = label > 0
        return Comparison(
            prompt=self.prompt,
            chosen=self.second if second else self.first,
            rejected=self.first if second else self.second,
            strength=int(abs(label)),
            source=row.origin,
            domain=self.domain,
            language=self.language,
            votes=votes if second else tuple(-vote for vote in votes),
            weight=row.weight(),
            margin=margin,
        )


class Annotated(NamedTuple):
    """How to read a row with one pair and several annotators' votes on it. Texts and labels are read separately, so an
    audit can lock away the labels of its test prompts before anything parses them."""

    texts: Callable[[Row], Texts]
    label: Callable[[Row], int]  # the aggregated signed strength; positive prefers the second response
    votes: Callable[[Row], tuple[int, ...]]  # each annotator's
    columns: tuple[str, ...]  # everything that `label` and `votes` read


Reader = Callable[["Source", Iterable[Row], BadRows], Iterator[Comparison]]


@dataclass(frozen=True)
class Source:
    """One shape of preference data."""

    shapes: tuple[frozenset[str], ...]  # a row with all columns of one of these sets fits
    read: Reader  # all comparisons of some rows, ties included as strength or margin 0
    strength: str  # where the strength comes from, in words
    _: KW_ONLY
    labels: str = "strength labels"  # what the data comes with, so that some settings do not apply
    uses: frozenset[str] = frozenset()  # the settings that it reads
    thresholds: tuple[float, ...] | None = None  # of margins, if the data has usual ones; else quantiles
    also: tuple[str, ...] = ()  # data sets of this shape, by their names on the Hub
    hub: HubData | None = None
    split_column: str | None = None  # set if one file holds several splits
    accepts: Callable[[Row], bool] = lambda row: True  # besides having the columns
    annotated: Annotated | None = None
    finds_strength: bool = False  # strengths may be in any of several columns
    settings: SourceSettings = SourceSettings()

    def fits(self, row: Row) -> bool:
        return any(columns <= row.values.keys() for columns in self.shapes) and self.accepts(row)

    def configured(self, settings: SourceSettings) -> Self:
        """The same with the user's settings, if they apply."""
        for name, default in vars(SourceSettings()).items():
            if name not in self.uses and getattr(settings, name) != default:
                raise UserError(f"this data comes with {self.labels}, so {name} settings do not apply to it")
        return replace(self, settings=settings)

    @property
    def rule(self) -> StrengthRule:
        """How margins are cut: as the user says, or as is usual for this data."""
        given = self.settings.strength
        if self.thresholds is None or given.thresholds is not None or given.continuous:
            return given
        usual = given.levels == len(self.thresholds) + 1
        return given.model_copy(update={"thresholds": self.thresholds}) if usual else given

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return self.read(self, rows, bad)

    def all_of(self, rows: Iterable[Row], bad: BadRows) -> list[Comparison]:
        """The same in memory, with all strengths cut."""
        return self.rule.graded(list(self.comparisons(rows, bad)))


def shape(*columns: str) -> frozenset[str]:
    return frozenset(columns)


def one_by_one(comparison: Callable[[Row], Comparison]) -> Reader:
    """For rows that each hold one comparison; a bad row is counted, not fatal."""
    return lambda source, rows, bad: bad.parse(rows, comparison)


def question(row: Row, column: str, *parts: str) -> Prompt:
    """A prompt of one user turn; parts that are empty are left out."""
    return row.check_prompt(column, (Message("user", "\n\n".join(part for part in parts if part)),))
