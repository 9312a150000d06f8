"""Sources whose rows each hold a few columns and one comparison, or one good answer for every bad one."""

from collections.abc import Iterable, Iterator, Mapping

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.annotated import pandalm_texts
from unmdpo.data.sources.base import Source, Texts, one_by_one, question, shape

STRENGTH = frozenset({"strength"})
TIE, MIDDLE = 0, 1.5  # of AlpacaEval's preferences
VERDICTS = {"1": -1, "2": 1, "tie": 0}  # PandaLM's
WORST = 3  # PKU's severity of harm
SPLITS = ("_train", "_validation", "_test")  # at the end of SHP's domains
GOOD_AND_BAD = ("chosen", "rejected")


def _alpaca_eval(row: Row) -> Comparison:
    if row.value("preference") is None:
        raise row.no_comparison("the judge gave no verdict")
    preference = row.number("preference")
    if preference != TIE and not 1 <= preference <= 2:
        raise row.error(f"'preference' should be from 1 to 2, or 0 for a tie, not {preference:g}")
    label = 0.0 if preference == TIE else 2 * (preference - MIDDLE)
    prompt = question(row, "instruction", row.text("instruction"), row.optional_text("input"))
    texts = Texts(prompt, row.text("output_1"), row.text("output_2"), row.optional_text("dataset"))
    return texts.compare(row, label, margin=abs(label))


ALPACA_EVAL = Source(
    (shape("instruction", "output_1", "output_2", "preference"),),
    one_by_one(_alpaca_eval),
    "thresholds on the distance of `preference` from 1.5, doubled: 0–1",
    uses=STRENGTH,
    also=("tatsu-lab/alpaca_eval", "tatsu-lab/alpaca_farm"),
)


def _edit(row: Row) -> Comparison:
    good, worse = ("good_edited_response", "bad_edited_response")
    if good not in row.values:
        good, worse = ("edited_response", "original_response")
    about = (row.optional_text("domain"), row.optional_text("language"))
    return Texts(row.prompt("context"), row.text(good), row.text(worse), *about).compare(row, -1)


HELPSTEER3_EDITS = Source(  # configurations `edit_quality` (a good and a bad edit) and `edit` (an edit and its start)
    (
        shape("context", "good_edited_response", "bad_edited_response"),
        shape("context", "edited_response", "original_response"),
    ),
    one_by_one(_edit),
    "1 for all: edits are not graded",
    labels="no strengths",
)


def _pandalm_verdict(row: Row) -> Comparison:
    inputs, outputs = row.value("inputs"), row.value("outputs")
    if not isinstance(inputs, Mapping) or not isinstance(outputs, Mapping):
        raise row.error("'inputs' and 'outputs' should be objects")
    verdict = str(outputs.get("evaluation_result")).strip().lower()
    if verdict not in VERDICTS:
        raise row.error(f"'outputs.evaluation_result' should be 1, 2 or Tie, not {verdict[:40]}")
    return pandalm_texts(Row(inputs, row.origin)).compare(row, VERDICTS[verdict])


PANDALM_TRAINING = Source(
    (shape("inputs", "outputs"),),
    one_by_one(_pandalm_verdict),
    "1 for all: verdicts are not graded",
    labels="no strengths",
)


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


def _webgpt(row: Row) -> Comparison:
    """`score_0` (−1…1, the opposite of `score_1`) is how much better the first answer is."""
    asked, domain = row.value("question"), ""
    if isinstance(asked, Mapping):
        domain = Row(asked, row.origin).optional_text("dataset")
        asked = asked.get("full_text")
    if not isinstance(asked, str):
        raise row.error("'question' should be text, or an object with 'full_text'")
    prompt = question(row, "question", row.encodable("question", asked))
    score = row.number("score_0")
    if abs(score) > 1:
        raise row.error(f"'score_0' should be from -1 to 1, not {score:g}")
    return Texts(prompt, row.text("answer_0"), row.text("answer_1"), domain).compare(row, -score, margin=abs(score))


WEBGPT = Source(
    (shape("question", "answer_0", "answer_1", "score_0"),),
    one_by_one(_webgpt),
    "|`score_0`|: below 0.5, below 1, 1",
    uses=STRENGTH,
    thresholds=(0.5, 1.0),
    also=("openai/webgpt_comparisons",),
)


def _lists_of_texts(row: Row) -> bool:
    lists = [row.values.get(column) for column in GOOD_AND_BAD]
    return all(isinstance(items, list) and items and all(isinstance(one, str) for one in items) for items in lists)


def _every_good_beats_every_bad(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
    def pairs(row: Row) -> list[Comparison]:
        prompt, domain = row.prompt("prompt"), row.optional_text("subset")
        good, worse = ([_text(row, column, item) for item in row.items(column)] for column in GOOD_AND_BAD)
        if not good or not worse:
            raise row.no_comparison("there is no good or no bad answer")
        return [Texts(prompt, a, b, domain).compare(row, -1) for a in good for b in worse if a != b]

    for found in bad.parse(rows, pairs):
        yield from found


def _text(row: Row, column: str, item: object) -> str:
    if not isinstance(item, str):
        raise row.error(f"'{column}' should be a list of texts")
    return row.encodable(column, item)


LISTS = Source(
    (shape("prompt", *GOOD_AND_BAD),),
    _every_good_beats_every_bad,
    "1 for all: answers are good or bad",
    labels="no strengths",
    accepts=_lists_of_texts,
    also=("allenai/reward-bench-2", "THU-KEG/RM-Bench"),
)
