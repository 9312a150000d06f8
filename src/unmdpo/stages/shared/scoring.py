"""Responses scored by any judge."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.function_judge import checked
from unmdpo.engine.inference.judges import JudgeSettings, kind_of
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question
from unmdpo.engine.inference.reward_model import RewardModel
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.tally import Report
from unmdpo.stages.shared.base import Job, Notes, Stage
from unmdpo.stages.shared.files import MODEL
from unmdpo.store.journal import Journal

TRAINED_JUDGE = "judge"  # the input of stages whose judge is trained in the same run
CHUNK = 1024  # responses scored at a time; what is scored is kept
SCORED = "scored.jsonl"
NO_TURNS: Mapping[str, Prompt] = {}
SUREST = 0.99  # a judge of pairs that is surer counts as this sure, so that differences of scores are finite


def opened(job: Job, judge: JudgeSettings) -> Any:
    """A judge; if it was trained for this run, it reads conversations as it did then."""
    if TRAINED_JUDGE not in job.inputs:
        return kind_of(judge).open(judge)
    start: ModelSource = job.stage.inputs[TRAINED_JUDGE].settings.model
    return RewardModel(start.at_path(str(job.load(MODEL, TRAINED_JUDGE))))


def is_judged_elsewhere(stage: Stage) -> bool:
    """By a function of the user, or on a server."""
    return TRAINED_JUDGE not in stage.inputs and kind_of(stage.settings.judge).model is None


def margins(
    judge: Any,
    questions: Sequence[Question],
    journal: Journal,
    seed: int,
    report: Report,
    turns: Mapping[str, Prompt] = NO_TURNS,
) -> list[float]:
    """How much better each candidate is than its baseline: the difference of their scores, or the log-odds that a
    judge of pairs prefers it. Goes on from the journal, since every answer may cost money. A reward model reads the
    `turns` of a response that has several, others its text."""
    said = turns if isinstance(judge, RewardModel) else NO_TURNS
    if isinstance(judge, PairwiseJudge | TextJudge):
        found = chances(judge, questions, journal, seed, report)
        sure = [min(SUREST, max(1 - SUREST, chance)) for chance in found]
        return [math.log(chance / (1 - chance)) for chance in sure]
    both = [(one.prompt, text) for one in questions for text in (one.candidate, one.baseline)]
    responses = list(dict.fromkeys(both))
    scores = [float(score) for part in journal.values for score in part][: len(responses)]
    while len(scores) < len(responses):
        some = responses[len(scores) : len(scores) + CHUNK]
        found = checked(judge, [prompt for prompt, _ in some], [said.get(text, text) for _, text in some])
        journal.add(found)
        scores += found
        report(f"{len(scores):,}/{len(responses):,} responses scored")
    known = dict(zip(responses, scores, strict=True))
    return [known[one.prompt, one.candidate] - known[one.prompt, one.baseline] for one in questions]


def chances(
    judge: PairwiseJudge | TextJudge, questions: Sequence[Question], journal: Journal, seed: int, report: Report
) -> list[float]:
    """The probability that a judge of pairs prefers each candidate. Goes on from the journal."""
    known = {int(place): float(chance) for place, chance in journal.values}
    known |= {place: 0.5 for place, one in enumerate(questions) if one.candidate == one.baseline}
    left = [place for place in range(len(questions)) if place not in known]
    if isinstance(judge, TextJudge):
        judge.expected = 2 * len(questions)
    with contextlib.closing(judge.answers([questions[place] for place in left], seed)) as answers:
        for number, chance in answers:
            known[left[number]] = chance
            journal.add((left[number], chance))
            report(f"{len(known)}/{len(questions)} judged")
    return [known[place] for place in range(len(questions))]


def spent_by(judge: Any) -> Notes:
    return {"spent": dict(judge.spent)} if isinstance(judge, TextJudge) else {}


def turns_of(rows: Sequence[Comparison]) -> dict[str, Prompt]:
    """Of the responses that are more than one text, by the text that they are read as."""
    both = [(row.chosen, row.chosen_turns) for row in rows] + [(row.rejected, row.rejected_turns) for row in rows]
    return {text: turns for text, turns in both if turns}


def questions_of(rows: Sequence[Comparison]) -> list[Question]:
    return [Question(row.prompt, row.prompt_hash, row.chosen, row.rejected) for row in rows]
