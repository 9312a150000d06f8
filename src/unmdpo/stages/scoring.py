"""Responses scored by any judge, and what follows from it: strengths for comparisons that have none."""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.core.files import write_text
from unmdpo.core.settings import Strict
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.data.load import load
from unmdpo.data.reading import RowsSettings
from unmdpo.data.sources.preference import strengths_come_later
from unmdpo.data.strength import StrengthRule
from unmdpo.data.table import ComparisonTable
from unmdpo.engine.inference.function_judge import checked
from unmdpo.engine.inference.judges import AnyJudge, JudgeSettings, TrainedJudge, kind_of
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question
from unmdpo.engine.inference.reward_model import RewardModel
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.tally import Report
from unmdpo.stages.judge import JUDGE_STAGE, trained_judge
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import COMPARISONS, MODEL
from unmdpo.store.journal import Journal
from unmdpo.store.keys import digest_of, identity_of
from unmdpo.store.pins import pinned_now

READ = "read"  # the stage with comparisons as they were read, before a judge gave them strengths
TRAINED = "trained"  # for validation comparisons: those of the training data, whose quantiles they share
CHUNK = 1024  # responses scored at a time; what is scored is kept
SCORED = "scored.jsonl"
NO_AGREEMENT = "the judge agrees with no label: is this the right judge, and are chosen and rejected right?"
NO_TURNS: Mapping[str, Prompt] = {}
SUREST = 0.99  # a judge of pairs that is surer counts as this sure, so that differences of scores are finite


class ScoringSettings(Strict):
    judge: AnyJudge
    seed: int | None  # for the order in which pairwise judges see responses


def scoring_inputs(graph: Graph, judge: JudgeSettings, name: str) -> dict[str, Stage[Any]]:
    """The judge's own stage, if it is trained here."""
    return {JUDGE_STAGE.name: trained_judge(graph, name, judge.train)} if isinstance(judge, TrainedJudge) else {}


def opened(job: Job[Any]) -> Any:
    """The judge of a job; if it was trained for this run, it reads conversations as it did then."""
    if JUDGE_STAGE.name in job.inputs:
        start: ModelSource = job.stage.inputs[JUDGE_STAGE.name].settings.model
        return RewardModel(start.at_path(str(job.load(MODEL, JUDGE_STAGE.name))))
    return kind_of(job.settings.judge).open(job.settings.judge)


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


class GradedSettings(ScoringSettings):
    rule: StrengthRule


def graded(graph: Graph, read: Stage[Any]) -> Stage[Any]:
    """The comparisons that were read, with strengths from the recipe's judge if it names one."""
    strength = graph.recipe.data.strength
    if strength.judge is None:
        return read
    settings = GradedSettings(judge=strength.judge, seed=graph.recipe.seed, rule=strength.rule)
    inputs = {READ: read, **scoring_inputs(graph, strength.judge, "data.strength")}
    return graph.stage(GRADED_STAGE, settings, inputs, "comparisons")


def grade(job: Job[GradedSettings]) -> Notes:
    """Scores both responses of every comparison. The label says which is better, and the judge by how much; where it
    prefers the other one, the comparison is left out."""
    rows, settings, judge = job.load(COMPARISONS, READ), job.settings, opened(job)
    assert settings.seed is not None
    journal = Journal(job.state / SCORED)
    gaps = margins(judge, questions_of(rows), journal, settings.seed, job.report, turns_of(rows))
    agreed = np.array(gaps) > 0
    if not agreed.any():
        raise UserError(NO_AGREEMENT)
    trained = job.inputs[TRAINED].manifest["notes"]["quantiles"] if TRAINED in job.inputs else {}
    quantiles = tuple(trained[""]) if "" in trained else None
    rule, kept = settings.rule, [gap for gap in gaps if gap > 0]
    levels = iter(rule.cut(kept, quantiles))
    found = ComparisonTable.of(
        [replace(row, strength=next(levels)) for row, same in zip(rows, agreed, strict=True) if same]
    )
    job.save(COMPARISONS, found)
    cuts = quantiles or rule.quantiles(kept)
    return {
        **job.inputs[READ].manifest["notes"],
        "comparisons": len(found),
        "prompts": len(set(found.prompt_hashes())),
        "disagreed": sum(gap < 0 for gap in gaps),
        "undecided": gaps.count(0.0),
        "thresholds": {} if rule.thresholds is None else {"": rule.thresholds},
        "quantiles": {} if cuts is None else {"": cuts},
        **spent_by(judge),
    }


def turns_of(rows: Sequence[Comparison]) -> dict[str, Prompt]:
    """Of the responses that are more than one text, by the text that they are read as."""
    both = [(row.chosen, row.chosen_turns) for row in rows] + [(row.rejected, row.rejected_turns) for row in rows]
    return {text: turns for text, turns in both if turns}


def questions_of(rows: Sequence[Comparison]) -> list[Question]:
    return [Question(row.prompt, row.prompt_hash, row.chosen, row.rejected) for row in rows]


class Scored(NamedTuple):
    """What became of a file's comparisons."""

    written: int
    disagreed: int
    undecided: int  # equal scores
    left_out: dict[str, int]
    spent: Notes


def score_file(
    wanted: RowsSettings, judge: JudgeSettings, out: Path, *, swap: bool, seed: int, report: Report
) -> Scored:
    """Writes a file's comparisons with a judge's margins. The label says which response is better; where the judge
    prefers the other one, the comparison is left out, or the two are swapped. What is not finished goes on from a
    hidden file beside the result, for exactly these comparisons and this judge."""
    with strengths_come_later():
        data = load(wanted)
    asked = kind_of(judge).open(judge)
    rows = [*data.rows]
    compared = [(row.prompt_hash, row.chosen, row.rejected) for row in rows]
    described = [identity_of(pinned_now(judge)), seed, compared]
    digest = digest_of(described)[:16]
    begun = out.with_name(f".{out.name}.{digest}")
    gaps = margins(asked, questions_of(rows), Journal(begun), seed, report, turns_of(rows))
    if not swap and not any(gap > 0 for gap in gaps):
        raise UserError(NO_AGREEMENT)
    lines = [
        json.dumps((_swapped(row) if gap < 0 else row).to_row() | {"margin": abs(gap)}, ensure_ascii=False)
        for row, gap in zip(rows, gaps, strict=True)
        if gap > 0 or (gap < 0 and swap)
    ]
    write_text(out, "".join(f"{line}\n" for line in lines))
    begun.unlink()
    lost = {"bad": len(data.skipped), "ties": len(data.ties)}
    return Scored(len(lines), sum(gap < 0 for gap in gaps), gaps.count(0.0), lost, spent_by(asked))


def _swapped(row: Comparison) -> Comparison:
    return replace(
        row,
        chosen=row.rejected,
        rejected=row.chosen,
        chosen_turns=row.rejected_turns,
        rejected_turns=row.chosen_turns,
        votes=tuple(-vote for vote in row.votes),
    )


def scoring_cost(estimates: Estimates, stage: Stage[Any], tokens: float) -> Cost:
    """Of a judge on this machine that reads so many tokens; zero for others."""
    trained, model = stage.inputs.get(JUDGE_STAGE.name), kind_of(stage.settings.judge).model
    if trained is None and model is None:
        return Cost()
    read = trained.settings.model if trained is not None else model(stage.settings.judge)  # type: ignore[misc]
    return estimates.reading(read, tokens)


def _cost(estimates: Estimates, stage: Stage[GradedSettings]) -> Cost:
    return scoring_cost(estimates, stage, float(estimates.lengths.sum()))


GRADED_STAGE = Kind("graded", grade, uses_model=True, cost=_cost)
