"""What to read: the one type that recipes, judges, panels, audits and commands share."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from unmdpo.core.errors import did_you_mean
from unmdpo.core.functions import FunctionName
from unmdpo.core.settings import Strict, among, resolve
from unmdpo.data.bad import A_FEW, BadRowLimit
from unmdpo.data.columns import TARGETS
from unmdpo.data.places import DataPlace
from unmdpo.data.sources import GONE, SOURCES
from unmdpo.data.sources.base import HubData
from unmdpo.data.strength import PairRule, StrengthRule

AUTO, ALL = "auto", "all"  # a source to be recognized; every split
TRAIN = "train"


def _source(name: str) -> str:
    """A source of the table, or `package.module:function`, which is pinned like any file."""
    if ":" in name:
        return FunctionName.checked(name)
    if name in GONE:
        raise ValueError(f"'{name}' went: {GONE[name]}")
    if name not in (known := [*SOURCES, AUTO]):
        raise ValueError(f"unknown name '{name}'; {did_you_mean(name, known)}")
    return name


def _sources_in_schema(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"enum": sorted([*SOURCES, AUTO])}, {"pattern": r"^[\w.]+:\w+$"}]


SourceName = Annotated[str, AfterValidator(_source), Field(json_schema_extra=_sources_in_schema)]


class RowsSettings(Strict):
    """Which rows to read, and how they become comparisons."""

    source: SourceName = Field(AUTO, description="how rows are read; auto recognizes it by their columns")
    path: DataPlace | None = Field(None, description="file, folder or Hub name; default: the source's own")
    revision: str | None = Field(None, description="branch, tag or commit on the Hub")
    config: str | None = Field(None, description="configuration of a Hub dataset, or a subfolder")
    split: str = Field(TRAIN, description="the split to read, or all")
    max_bad_rows: BadRowLimit = A_FEW
    columns: dict[str, str] = Field(
        {}, description="what a column holds → its name, with dots into nested fields, such as chosen: answers.0.text"
    )
    ignore: list[str] = Field([], description="columns to leave out; pictures and sound must be named here")
    strength: StrengthRule = Field(StrengthRule(), description="how strengths are read, or cut from margins")
    pairing: PairRule = Field(PairRule(), description="which of several scored responses are compared")

    @model_validator(mode="before")
    @classmethod
    def _official_path(cls, values: Any) -> Any:
        """A source with data of its own on the Hub reads that unless a path is given."""
        if isinstance(values, dict) and values.get("path") is None and not values.get("mix"):
            source = SOURCES.get(str(values.get("source")))
            if source is not None and source.hub is not None:
                return values | {"path": source.hub.path}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.source == AUTO:
            for name in self.columns:
                among(TARGETS, name, ("data", "columns"), f"this source has no field '{name}'")
        self._check_path()
        return self

    def _check_path(self) -> None:
        if self.path is None:
            raise ValueError("data needs a path" if self.source == AUTO else f"source '{self.source}' needs a path")

    @property
    def place(self) -> DataPlace:
        assert self.path is not None  # a mixture's parts have the paths
        return self.path

    @property
    def official(self) -> HubData | None:
        """The source's own data on the Hub, if that is what is read."""
        hub = SOURCES[self.source].hub if self.source in SOURCES else None
        return hub if hub is not None and self.path == hub.path else None

    def of_split(self, split: str) -> Self:
        return self.model_copy(update={"split": split})


def rows_of(path: str, **settings: Any) -> RowsSettings:
    """The rows at a path, with any of the settings that a recipe's `data` has."""
    return resolve(RowsSettings, {"path": path, **settings}, "data")
