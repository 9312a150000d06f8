"""All the shapes of preference data we can read. Source names in recipes are resolved here and nowhere else."""

from collections.abc import Iterable

from unmdpo.core.errors import did_you_mean
from unmdpo.data.rows import Row
from unmdpo.data.sources.annotated import HELPSTEER2, HELPSTEER3
from unmdpo.data.sources.arena import ARENA
from unmdpo.data.sources.base import Source, SourceSettings
from unmdpo.data.sources.exports import ARGILLA, LABEL_STUDIO
from unmdpo.data.sources.pairs import SAFE_HARMLESS, SAFE_HELPFUL, SHP
from unmdpo.data.sources.preference import PREFERENCE
from unmdpo.data.sources.scored import HELPSTEER, RANKED, SCORED, ULTRAFEEDBACK
from unmdpo.data.sources.sides import SIDES
from unmdpo.data.sources.transcripts import TRANSCRIPTS

MOST_SHOWN = 12

# In the order `detect` tries them: the most specific columns first.
SOURCES: dict[str, Source] = {
    "helpsteer3": HELPSTEER3,
    "helpsteer2": HELPSTEER2,
    "helpsteer": HELPSTEER,
    "ultrafeedback": ULTRAFEEDBACK,
    "ranked": RANKED,
    "shp": SHP,
    "safe-rlhf": SAFE_HELPFUL,
    "safe-rlhf-harmless": SAFE_HARMLESS,
    "arena": ARENA,
    "label-studio": LABEL_STUDIO,
    "argilla": ARGILLA,
    "sides": SIDES,
    "hh": TRANSCRIPTS,
    "preference": PREFERENCE,
    "scored": SCORED,
}

# Sources of earlier versions, and what to write instead.
GONE = dict.fromkeys(
    (
        "pandalm",
        "pandalm-training",
        "summaries",
        "webgpt",
        "alpaca-eval",
        "helpsteer3-edits",
        "good-and-bad",
        "prodigy",
    ),
    "a function reads such rows: `source: package.module:function` (examples/sources.py has PandaLM's)",
)

# Shapes that people bring and that hold no comparisons, with what to take instead.
WITHOUT_COMPARISONS: dict[frozenset[str], str] = {
    frozenset({"context", "feedback1", "feedback2"}): "HelpSteer3's 'feedback' says how each response does, not which "
    "is better: use its configuration 'preference'",
    frozenset({"context", "principle", "fulfilment"}): "HelpSteer3's 'principle' has one response in a row: use its "
    "configuration 'preference' or 'edit_quality'",
    frozenset({"info", "summary"}): "the configuration 'axis' rates single summaries: use 'comparisons'",
    frozenset({"prompt", "completion", "label"}): "single answers marked good or bad (TRL's unpaired preferences) are "
    "not compared with each other",
    frozenset({"transcript", "rating"}): "red-team transcripts are single conversations, without a better one",
    frozenset({"instruction", "output"}): "instructions with one output are demonstrations, without a worse answer",
    frozenset({"message_tree_id", "parent_id", "rank"}): "message trees have one message in a row: put the answers to "
    "a message together first, as 'prompt' and 'answers' with ranks",
}


def detect(row: Row) -> str:
    """The source whose columns the row has."""
    for name, source in SOURCES.items():
        if source.fits(row):
            return name
    for columns, why in WITHOUT_COMPARISONS.items():
        if columns <= row.values.keys():
            raise row.error(f"there are no comparisons in this: {why}")
    shown = ", ".join(list(row.values)[:MOST_SHOWN])[:200]
    name, columns = _nearest_shape(row.values)
    advice = (
        "Say which columns hold what with `columns` in a recipe, such as {prompt: question, chosen: best, rejected: "
        "worst} (--column prompt=question for a command), name the source, or write a function that reads them"
    )
    if 2 * len(columns & {column.lower() for column in row.values}) <= len(columns):
        raise row.error(f"these columns match no known source: {shown}. {advice}")
    missing = sorted(columns - row.values.keys())
    hints = "; ".join(f"'{column}' ({did_you_mean(column, row.values)})" for column in missing)
    raise row.error(f"these columns match no known source. The closest is '{name}', but it needs {hints}. {advice}")


def _nearest_shape(columns: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Of those that lack a column: some have all, and are not meant for other reasons."""
    have = {column.lower() for column in columns}
    shapes = [(name, shape) for name, source in SOURCES.items() for shape in source.shapes if shape - have]
    return max(shapes, key=lambda pair: len(pair[1] & have) / len(pair[1]))


__all__ = ["GONE", "SOURCES", "Source", "SourceSettings", "detect"]
