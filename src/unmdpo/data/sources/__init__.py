"""All the shapes of preference data we can read. Source names in recipes are resolved here and nowhere else."""

from collections.abc import Iterable

from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, SourceSettings
from unmdpo.data.sources.helpsteer2 import HelpSteer2
from unmdpo.data.sources.helpsteer3 import HelpSteer3
from unmdpo.data.sources.pandalm import PandaLM
from unmdpo.data.sources.preference import Preference
from unmdpo.data.sources.scored import Scored
from unmdpo.errors import did_you_mean

# In the order `detect` tries them: the most specific columns first.
SOURCES: dict[str, type[Source]] = {
    "helpsteer3": HelpSteer3,
    "helpsteer2": HelpSteer2,
    "pandalm": PandaLM,
    "preference": Preference,
    "scored": Scored,
}


def detect(row: Row) -> str:
    """The source whose columns the row has."""
    for name, source in SOURCES.items():
        if any(columns <= row.values.keys() for columns in source.shapes):
            return name
    name, columns = _nearest_shape(row.values)
    missing = sorted(columns - row.values.keys())
    hints = "; ".join(f"'{column}' ({did_you_mean(column, row.values)})" for column in missing)
    raise row.error(
        f"these columns match no known source. The closest is '{name}', but it needs {hints}. "
        f"If you know the source, name it: {', '.join(SOURCES)}"
    )


def _nearest_shape(columns: Iterable[str]) -> tuple[str, frozenset[str]]:
    have = set(columns)
    shapes = [(name, shape) for name, source in SOURCES.items() for shape in source.shapes]
    return max(shapes, key=lambda pair: len(pair[1] & have) / len(pair[1]))


__all__ = ["SOURCES", "Source", "SourceSettings", "detect"]
