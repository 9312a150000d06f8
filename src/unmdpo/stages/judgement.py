"""Scores of answers to a panel."""

import numpy as np

from unmdpo.engine.inference.function_judge import checked
from unmdpo.engine.inference.judges import AnyJudge, kind_of
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.engine.ranks import Ranks
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import GENERATIONS, PANEL, SCORES, Panel
from unmdpo.stages.shared.scoring import chances, is_judged_elsewhere, opened, spent_by
from unmdpo.stats.evaluation import Judged
from unmdpo.store.artifact import Artifact, Line
from unmdpo.store.journal import Journal


def judgement_name(candidate: str, panel_name: str, judge: str) -> str:
    """A judge without a name is the only one."""
    return JUDGEMENT_STAGE.stage_name(candidate, panel_name, *([judge] if judge else []))


def score_answers(job: Job, *, judge: AnyJudge, seed: int | None) -> Notes:
    """Scores each response; a judge of pairs says how probably it is better than the baseline's. `seed` is for the
    order in which it sees the two."""
    prompts = job.load(PANEL, "panel")
    responses = job.load(GENERATIONS, "generation")
    opened_judge = opened(job, judge)
    if kind_of(judge).pairwise:
        assert seed is not None
        scores = _preferences(opened_judge, job, prompts, responses, seed)
    else:
        asked = [prompts.prompts[index] for index in _prompt_indices(prompts, responses)]
        scores = checked(opened_judge, asked, [row["text"] for row in responses])
    rows = [
        {"prompt_hash": row["prompt_hash"], "score": score, "characters": len(row["text"])}
        for row, score in zip(responses, scores, strict=True)
    ]
    if Ranks.current().first:
        job.save(SCORES, rows)
    return {"mean_score": float(np.mean(scores)), **spent_by(opened_judge)}


def _preferences(
    judge: PairwiseJudge | TextJudge, job: Job, prompts: Panel, responses: list[Line], seed: int
) -> list[float]:
    """The probability that the judge prefers each response to the baseline's: to that of the same sample, if there
    are several."""
    baseline = job.load(GENERATIONS, "baseline")
    samples = len(responses) // len(prompts)
    baseline_samples = len(baseline) // len(prompts)
    questions: list[Question] = []
    for response_index, (prompt_index, row) in enumerate(
        zip(_prompt_indices(prompts, responses), responses, strict=True)
    ):
        opponent = baseline[prompt_index * baseline_samples + response_index % samples % baseline_samples]
        questions.append(
            Question(prompts.prompts[prompt_index], prompts.hashes[prompt_index], row["text"], opponent["text"])
        )
    return chances(judge, questions, Journal(job.state / "answers.jsonl"), seed, job.report)


def _prompt_indices(prompts: Panel, rows: list[Line]) -> list[int]:
    """The prompt of each row: every prompt has the same number of answers, one after another."""
    return [row_index * len(prompts) // len(rows) for row_index in range(len(rows))]


def load_scores(artifact: Artifact, prompts: Panel) -> Judged:
    rows = SCORES.load(artifact)
    if [row["prompt_hash"] for row in rows] != [prompts.hashes[index] for index in _prompt_indices(prompts, rows)]:
        raise ValueError(f"{artifact.path}: the scores are not in the panel's order")
    columns = ([float(row[name]) for row in rows] for name in ("score", "characters"))
    return Judged(*(np.array(column, dtype=np.float64).reshape(1, len(prompts), -1) for column in columns))


JUDGEMENT_STAGE = Kind(
    "judgement", score_answers, uses_model=True, runs_elsewhere=is_judged_elsewhere, ranked="on request"
)
