"""Sources whose rows each hold a few columns and one comparison: PKU-SafeRLHF and SHP."""

from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Texts, one_by_one, shape

STRENGTH = frozenset({"strength"})
WORST = 3  # PKU's severity of harm
SPLITS = ("_train", "_validation", "_test")  # at the end of SHP's domains


def _safe(row: Row, column: str, grade: int) -> Comparison:
    texts = Texts(row.prompt("prompt"), row.text("response_0"), row.text("response_1"))
    return texts.compare(row, grade if row.integer(column, 0, 1) == 1 else -grade)


def _severity_gap(row: Row) -> int:
    columns = [f"response_{side}_severity_level" for side in (0, 1)]
    if not all(column in row for column in columns):
        return 1
    first, second = (row.integer(column, 0, WORST) for column in columns)
    return max(1, abs(first - second))


SAFE_HELPFUL = Source(
    (shape("prompt", "response_0", "response_1", "better_response_id"),),
    one_by_one(lambda row: _safe(row, "better_response_id", 1)),
    "1 for all: helpfulness is not graded",
    labels="no strengths",
    also=("PKU-Alignment/PKU-SafeRLHF",),
)
SAFE_HARMLESS = Source(
    (shape("prompt", "response_0", "response_1", "safer_response_id"),),
    one_by_one(lambda row: _safe(row, "safer_response_id", _severity_gap(row))),
    "the difference of severity levels, at least 1",
    labels="severity levels",
    also=SAFE_HELPFUL.also,
)


def _shp(row: Row) -> Comparison:
    """The comment that `labels` names (1: A, 0: B) is better. Scores may be zero or negative on StackExchange: there,
    everything counts as at least one vote."""
    domain = row.optional_text("domain")
    for split in SPLITS:
        domain = domain.removesuffix(split)
    texts = Texts(row.prompt("history"), row.text("human_ref_A"), row.text("human_ref_B"), domain)
    label = 1 if row.integer("labels", 0, 1) == 0 else -1
    low, high = sorted((row.number("score_A"), row.number("score_B")))
    return texts.compare(row, label, margin=max(high, 1.0) / max(low, 1.0))


SHP = Source(  # its authors take a ratio of 2 for a clear preference; that 4 is a strong one is ours
    (shape("history", "human_ref_A", "human_ref_B", "labels"),),
    one_by_one(_shp),
    "the ratio of votes: below 2, below 4, from 4",
    uses=STRENGTH,
    thresholds=(2.0, 4.0),
    also=("stanfordnlp/SHP", "stanfordnlp/SHP-2"),
)
