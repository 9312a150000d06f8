"""Scored or ranked responses: several answers to a prompt, each with one or more scores.

A response's score is the mean of its scores; `PairRule` says which responses are compared, `StrengthRule` how strong a
score gap is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison, Origin
from unmdpo.data.identity import Prompt, prompt_hash
from unmdpo.data.rows import Row
from unmdpo.data.sources.annotated import marked_turns
from unmdpo.data.sources.base import Reader, Source, shape
from unmdpo.data.sources.pair_texts import asked
from unmdpo.data.sources.transcripts import turns_of
from unmdpo.data.strength import PairRule

BOTH = frozenset({"strength", "pairing"})
ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")  # HelpSteer's
OVERALL = ("overall_score", "fine-grained_score")  # UltraFeedback's


class Answer(NamedTuple):
    prompt: Prompt
    text: str
    score: float
    origin: Origin
    domain: str = ""
    language: str = ""


Answers = Callable[[Row], list[Answer]]


def anywhere(answers: Answers) -> Reader:
    """The responses to a prompt may be anywhere in the data, so all of them are held in memory."""

    def read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        prompts: dict[str, list[Answer]] = {}
        for found in bad.parse(rows, answers):
            for answer in found:
                prompts.setdefault(prompt_hash(answer.prompt), []).append(answer)
        for of_prompt in prompts.values():
            if len(of_prompt) == 1:
                bad.left_out["a prompt has fewer than two answers"] += 1
            yield from _compared(of_prompt, source.settings.pairing, bad)

    return read


def in_one_row(answers: Answers) -> Reader:
    """Every row holds all answers to a prompt, so that nothing needs to be kept."""

    def several(row: Row) -> list[Answer]:
        found = answers(row)
        if len(found) < 2:
            raise row.no_comparison("a prompt has fewer than two answers")
        return found

    def read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        for found in bad.parse(rows, several):
            yield from _compared(found, source.settings.pairing, bad)

    return read


def _compared(answers: Sequence[Answer], pairing: PairRule, bad: BadRows) -> Iterator[Comparison]:
    """The pairs that the rule selects, with their score gaps."""
    if left_out := pairing.left_out(len(answers)):
        bad.left_out[f"pairs beyond {pairing.most:,} of a prompt, drawn at random"] += left_out
    for better, worse, gap in pairing.select([answer.score for answer in answers]):
        good = answers[better]
        if good.text == answers[worse].text:
            bad.left_out["two answers to a prompt are the same text"] += 1
            continue
        yield Comparison(
            prompt=good.prompt,
            chosen=good.text,
            rejected=answers[worse].text,
            strength=0,
            source=good.origin,
            domain=good.domain,
            language=good.language,
            margin=gap,
        )


def _mean(row: Row, where: str, scores: object) -> float:
    several = scores if isinstance(scores, list) else [scores]
    if not several:
        raise row.error(f"'{where}' is empty: a response needs at least one score")
    return sum(row.as_number(where, score) for score in several) / len(several)


def _scored(row: Row) -> list[Answer]:
    prompt = (*row.tools(), *asked(row, "prompt"))
    about = (row.origin, row.optional_text("domain"), row.optional_text("language"))
    if "responses" not in row:
        score = row.number("score") if "score" in row else _mean(row, "scores", row.items("scores"))
        return [Answer(prompt, row.text("response"), score, *about)]
    texts, scores = row.items("responses"), row.items("scores")
    if len(texts) != len(scores):
        raise row.error(f"{len(texts)} responses but {len(scores)} scores")
    answers = []
    for i, (text, score) in enumerate(zip(texts, scores, strict=True)):
        if not isinstance(text, str):
            raise row.error(f"'responses[{i}]' should be text")
        row.encodable(f"responses[{i}]", text)
        answers.append(Answer(prompt, text, _mean(row, f"scores[{i}]", score), *about))
    return answers


SCORED = Source(  # a row per response (`prompt`, `response`, `score` or `scores`), or per prompt
    (
        shape("prompt", "response", "score"),
        shape("prompt", "response", "scores"),
        shape("prompt", "responses", "scores"),
    ),
    anywhere(_scored),
    "thresholds on score differences",
    uses=BOTH,
)


def _rated(row: Row) -> list[Answer]:
    """Compared by helpfulness, its authors' way to preferences; of several annotators' ratings, the mean."""
    score = _mean(row, "helpfulness", row.value("helpfulness"))
    return [Answer(marked_turns(row), row.text("response"), score, row.origin)]


HELPSTEER = Source(  # HelpSteer and HelpSteer2 with their ratings: a row per response, five attributes from 0 to 4
    (shape("prompt", "response", *ATTRIBUTES),),
    anywhere(_rated),
    "the difference in `helpfulness`: below 2, below 3, from 3",
    uses=BOTH,
    thresholds=(2.0, 3.0),
    also=("nvidia/HelpSteer",),
)


def _objects(row: Row, column: str) -> Iterator[Row]:
    """The objects in a list, as rows of their own."""
    for i, item in enumerate(row.items(column)):
        if not isinstance(item, Mapping):
            raise row.error(f"'{column}[{i}]' should be an object")
        yield Row(item, row.origin)


def _completions(row: Row) -> list[Answer]:
    prompt, domain = row.prompt("instruction"), row.optional_text("source")
    answers = []
    for one in _objects(row, "completions"):
        column = next((name for name in OVERALL if name in one), OVERALL[0])
        answers.append(Answer(prompt, one.text("response"), one.number(column), row.origin, domain))
    return answers


ULTRAFEEDBACK = Source(  # every pair of completions, by their overall scores (1–10), as its binarized forms take it
    (shape("instruction", "completions"),),
    in_one_row(_completions),
    "thresholds on differences of `overall_score`",
    uses=BOTH,
    also=("openbmb/UltraFeedback",),
)


def _ranked(row: Row) -> list[Answer]:
    if "answers" in row.values:
        prompt, column = turns_of(row, "prompt"), "answers"
    else:
        prompt, column = row.prompt("context"), "completions"
    return [Answer(prompt, _answer(one), -one.number("rank"), row.origin) for one in _objects(row, column)]


def _answer(item: Row) -> str:
    if "answer" in item.values:
        return item.text("answer")
    messages = item.conversation("completion")
    if len(messages) != 1:
        raise item.error(f"'completion' should be a single message, not {len(messages)}")
    return item.spoken(messages[0])


def _has_ranks(row: Row) -> bool:
    items = row.values.get("answers", row.values.get("completions"))
    return isinstance(items, list) and all(isinstance(item, Mapping) and "rank" in item for item in items)


RANKED = Source(  # Nectar's `answers`, and NeMo-RL's `completions` of a `context`; a smaller rank is better
    (shape("prompt", "answers"), shape("context", "completions")),
    in_one_row(_ranked),
    "the difference of ranks: 1, 2–3, 4 or more",  # with seven answers, about thirds of all pairs
    uses=BOTH,
    thresholds=(2.0, 4.0),
    accepts=_has_ranks,
    also=("berkeley-nest/Nectar",),
)
