"""What a source is: the columns it recognizes, and how its rows become comparisons."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.strength import PairRule, StrengthRule
from unmdpo.errors import UserError


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


class Source(ABC):
    """Turns rows of one shape into comparisons."""

    shapes: ClassVar[tuple[frozenset[str], ...]]  # a row with all columns of one of these sets fits
    labels: ClassVar[str] = "strength labels"
    hub: ClassVar[HubData | None] = None
    also: ClassVar[tuple[str, ...]] = ()  # other data sets of this shape, by their names on the Hub
    strength: ClassVar[str] = "its labels"  # where the strength comes from, in words
    thresholds: ClassVar[tuple[float, ...] | None] = None  # of margins, if the data has usual ones; else quantiles
    split_column: ClassVar[str | None] = None  # set if one file holds several splits
    uses: ClassVar[frozenset[str]] = frozenset()  # the settings this source reads

    def __init__(self, settings: SourceSettings | None = None) -> None:
        self.settings = settings or SourceSettings()
        for name, default in vars(SourceSettings()).items():
            if name not in self.uses and getattr(self.settings, name) != default:
                raise UserError(f"this data comes with {self.labels}, so {name} settings do not apply to it")

    @classmethod
    def fits(cls, row: Row) -> bool:
        return any(columns <= row.values.keys() for columns in cls.shapes)

    @property
    def rule(self) -> StrengthRule:
        """How margins are cut: as the user says, or as is usual for this data."""
        given = self.settings.strength
        usual = self.thresholds is not None and given.thresholds is None and given.levels == len(self.thresholds) + 1
        return given.model_copy(update={"thresholds": self.thresholds}) if usual else given

    @abstractmethod
    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        """All comparisons in `rows`, ties included as strength or margin 0."""

    def all_of(self, rows: Iterable[Row], bad: BadRows) -> list[Comparison]:
        """The same in memory, with all strengths cut."""
        found = list(self.comparisons(rows, bad))
        levels = iter(self.rule.cut([row.margin for row in found if row.margin is not None]))
        return [row if row.margin is None else replace(row, strength=next(levels), margin=None) for row in found]


class Unlabelled(NamedTuple):
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
            margin=margin,
        )


class AnnotatedSource(Source):
    """A source with one pair per row and several annotators' votes on it.

    Texts and labels are read separately, so an audit can lock away the labels of its test prompts before anything
    parses them.
    """

    label_columns: ClassVar[tuple[str, ...]]  # everything that `label` and `votes` read

    @abstractmethod
    def unlabelled(self, row: Row) -> Unlabelled: ...

    @abstractmethod
    def label(self, row: Row) -> int:
        """The aggregated signed strength; positive prefers the second response."""

    @abstractmethod
    def votes(self, row: Row) -> tuple[int, ...]:
        """Each annotator's signed strength; positive prefers the second response."""

    def comparison(self, row: Row) -> Comparison:
        return self.unlabelled(row).compare(row, self.label(row), self.votes(row))

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self.comparison)


def asked(text: str) -> Prompt:
    return (Message("user", text),)
