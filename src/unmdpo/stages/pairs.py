"""The next round's data: a policy's own answers, scored by a judge and paired."""

from collections.abc import Sequence
from dataclasses import replace

from unmdpo.core.errors import UserError
from unmdpo.data import Comparison, PairRule
from unmdpo.data.comparison import Origin
from unmdpo.data.strength import StrengthRule
from unmdpo.data.table import ComparisonTable
from unmdpo.engine.inference.judges import AnyJudge
from unmdpo.engine.inference.pairwise import Question
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import COMPARISONS, GENERATIONS, PANEL
from unmdpo.stages.shared.scoring import SCORED, is_judged_elsewhere, margins, opened, spent_by
from unmdpo.store.artifact import Line
from unmdpo.store.journal import Journal

BEST_WORST = "best-worst"


def pair_answers(job: Job, *, judge: AnyJudge, seed: int, select: str, rule: StrengthRule) -> Notes:
    """Scores all answers and compares those of each prompt."""
    prompts = job.load(PANEL, "panel")
    opened_judge = opened(job, judge)
    answers = _distinct(job.load(GENERATIONS, "generation"), len(prompts))
    questions = [
        Question(prompts.prompts[index], prompts.hashes[index], text, texts[0])
        for index, texts in answers.items()
        for text in texts
    ]
    scores = iter(margins(opened_judge, questions, Journal(job.state / SCORED), seed, job.report))
    rows: list[Comparison] = []
    for index, texts in answers.items():
        scores_of_prompt = [next(scores) for _ in texts]
        for better, worse, gap in _selected(scores_of_prompt, select):
            row = Comparison(prompts.prompts[index], texts[better], texts[worse], 0, Origin(job.stage.name, index + 1))
            rows.append(replace(row, domain=prompts.domains[index], margin=gap))
    untied = [row for row in rows if row.margin]
    if not untied:
        raise UserError(f"no two answers to any of {len(prompts)} prompts have different scores")
    table = ComparisonTable.of(rule.graded(untied))
    job.save(COMPARISONS, table)
    counts = {"comparisons": len(table), "prompts": len(set(table.prompt_hashes())), "ties": len(rows) - len(untied)}
    return {**counts, "same_answers": len(prompts) - len(answers), **spent_by(opened_judge)}


def _distinct(answers: list[Line], prompts: int) -> dict[int, list[str]]:
    """The different answers, empty ones left out, to each prompt that has more than one. All prompts were answered
    equally often, in order."""
    each = len(answers) // prompts
    texts = {
        place: list(dict.fromkeys(row["text"] for row in answers[place * each : (place + 1) * each]))
        for place in range(prompts)
    }
    said = {place: [text for text in some if text.strip()] for place, some in texts.items()}
    return {place: some for place, some in said.items() if len(some) > 1}


def _selected(scores: Sequence[float], which: str) -> list[tuple[int, int, float]]:
    """(better, worse, difference) of some answers to one prompt."""
    if which != BEST_WORST:
        return list(PairRule(pairs=which).select(scores))  # type: ignore[arg-type]
    best, worst = (extreme(range(len(scores)), key=lambda place: scores[place]) for extreme in (max, min))
    return [(best, worst, scores[best] - scores[worst])]


PAIRS_STAGE = Kind("pairs", pair_answers, uses_model=True, runs_elsewhere=is_judged_elsewhere)
