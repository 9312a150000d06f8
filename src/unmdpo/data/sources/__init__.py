"""All the shapes of preference data we can read. Source names in recipes are resolved here and nowhere else."""

from collections.abc import Iterable

from unmdpo.data.rows import Row
from unmdpo.data.sources.alpaca_eval import AlpacaEval
from unmdpo.data.sources.arena import Arena
from unmdpo.data.sources.base import Source, SourceSettings
from unmdpo.data.sources.helpsteer import HelpSteerRatings
from unmdpo.data.sources.helpsteer2 import HelpSteer2
from unmdpo.data.sources.helpsteer3 import HelpSteer3, HelpSteer3Edits
from unmdpo.data.sources.hh import HelpfulHarmless
from unmdpo.data.sources.openai import Summaries, WebGPT
from unmdpo.data.sources.pandalm import PandaLM, PandaLMTraining
from unmdpo.data.sources.preference import Preference
from unmdpo.data.sources.ranked import Ranked
from unmdpo.data.sources.reward_bench import GoodAndBad
from unmdpo.data.sources.safe_rlhf import SafeHarmless, SafeHelpful
from unmdpo.data.sources.scored import Scored
from unmdpo.data.sources.shp import HumanPreferences
from unmdpo.data.sources.ultrafeedback import UltraFeedback
from unmdpo.errors import did_you_mean

MOST_SHOWN = 12

# In the order `detect` tries them: the most specific columns first.
SOURCES: dict[str, type[Source]] = {
    "helpsteer3": HelpSteer3,
    "helpsteer3-edits": HelpSteer3Edits,
    "helpsteer2": HelpSteer2,
    "helpsteer": HelpSteerRatings,
    "pandalm": PandaLM,
    "pandalm-training": PandaLMTraining,
    "ultrafeedback": UltraFeedback,
    "ranked": Ranked,
    "shp": HumanPreferences,
    "summaries": Summaries,
    "webgpt": WebGPT,
    "safe-rlhf": SafeHelpful,
    "safe-rlhf-harmless": SafeHarmless,
    "arena": Arena,
    "alpaca-eval": AlpacaEval,
    "hh": HelpfulHarmless,
    "good-and-bad": GoodAndBad,
    "preference": Preference,
    "scored": Scored,
}

# Shapes that people bring and that hold no comparisons, with what to take instead.
WITHOUT_COMPARISONS: dict[frozenset[str], str] = {
    frozenset({"context", "feedback1", "feedback2"}): "HelpSteer3's 'feedback' says how each response does, not which "
    "is better: use its configuration 'preference' or 'edit_quality'",
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
    advice = f"Say which columns hold what with `columns`, or name the source: {', '.join(SOURCES)}"
    name, columns = _nearest_shape(row.values)
    if not columns & {column.lower() for column in row.values}:
        shown = ", ".join(list(row.values)[:MOST_SHOWN])
        raise row.error(f"these columns match no known source: {shown[:200]}. {advice}")
    missing = sorted(columns - row.values.keys())
    hints = "; ".join(f"'{column}' ({did_you_mean(column, row.values)})" for column in missing)
    raise row.error(f"these columns match no known source. The closest is '{name}', but it needs {hints}. {advice}")


def _nearest_shape(columns: Iterable[str]) -> tuple[str, frozenset[str]]:
    have = {column.lower() for column in columns}
    shapes = [(name, shape) for name, source in SOURCES.items() for shape in source.shapes]
    return max(shapes, key=lambda pair: len(pair[1] & have) / len(pair[1]))


__all__ = ["SOURCES", "Source", "SourceSettings", "detect"]
