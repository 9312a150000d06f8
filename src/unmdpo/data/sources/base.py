"""What a source is: the columns it recognises, and how its rows become comparisons."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.data.rows import BadRows, Row
from unmdpo.data.strength import PairRule, StrengthRule
from unmdpo.errors import UserError


@dataclass(frozen=True)
class SourceSettings:
    """The rules a source may need; those with labelled strengths ignore them."""

    strength: StrengthRule = field(default_factory=StrengthRule)
    pairing: PairRule = field(default_factory=PairRule)


class HubData(NamedTuple):
    """A source's official data on the Hub: in which part of which repository, and how much of it."""

    path: str = ""
    data_dir: str | None = None
    config: str | None = None
    pairs: int = 0  # training comparisons
    prompts: int = 0  # distinct ones among them
    validation_rows: int = 0  # an upper bound of the validation split's prompts


class Source(ABC):
    """Turns rows of one shape into comparisons."""

    shapes: ClassVar[tuple[frozenset[str], ...]]  # a row with all columns of one set fits
    labels: ClassVar[str] = "strengths of its own"
    hub: ClassVar[HubData | None] = None
    split_column: ClassVar[str | None] = None  # where one file holds several splits
    uses: ClassVar[frozenset[str]] = frozenset()  # the settings this source looks at

    def __init__(self, settings: SourceSettings | None = None) -> None:
        self.settings = settings or SourceSettings()
        for name, default in vars(SourceSettings()).items():
            if name not in self.uses and getattr(self.settings, name) != default:
                raise UserError(f"this data has {self.labels}: {name} settings do not apply to it")

    @abstractmethod
    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        """All comparisons in `rows`, ties included as strength 0."""


class Unlabelled(NamedTuple):
    """A row's texts, read without looking at any label."""

    prompt: Prompt
    first: str
    second: str
    domain: str = ""
    language: str = ""


class AnnotatedSource(Source):
    """A source with one pair a row and votes of several annotators on it.

    Texts and labels are read apart, so that an audit can lock away the labels of its test prompts before anything
    parses them.
    """

    label_columns: ClassVar[tuple[str, ...]]  # all that `label` and `votes` look at

    @abstractmethod
    def unlabelled(self, row: Row) -> Unlabelled: ...

    @abstractmethod
    def label(self, row: Row) -> int:
        """The aggregated signed strength; positive prefers the second response."""

    @abstractmethod
    def votes(self, row: Row) -> tuple[int, ...]:
        """Signed strengths of single annotators; positive prefers the second response."""

    def comparison(self, row: Row) -> Comparison:
        texts, label, votes = self.unlabelled(row), self.label(row), self.votes(row)
        second = label > 0
        return Comparison(
            prompt=texts.prompt,
            chosen=texts.second if second else texts.first,
            rejected=texts.first if second else texts.second,
            strength=abs(label),
            source=row.origin,
            domain=texts.domain,
            language=texts.language,
            votes=votes if second else tuple(-vote for vote in votes),
        )

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self.comparison)
