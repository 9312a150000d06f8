"""Scores of answers."""

import contextlib
from typing import Any

import numpy as np

from unmdpo.core.settings import Strict
from unmdpo.engine.inference.function_judge import checked
from unmdpo.engine.inference.judges import AnyJudge, TrainedJudge, kind_of
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question
from unmdpo.engine.inference.reward_model import RewardModel
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.engine.ranks import Ranks
from unmdpo.stages.answers import generation
from unmdpo.stages.data import panel
from unmdpo.stages.judge import JUDGE_STAGE, trained_judge
from unmdpo.stages.shared.base import Files, Graph, Job, Kind, Notes, PinnedModel, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import GENERATIONS, MODEL, PANEL, SCORES, Panel
from unmdpo.stats.evaluation import Judged
from unmdpo.store.artifact import Artifact, Line
from unmdpo.store.journal import Journal


class JudgementSettings(Strict):
    judge: AnyJudge
    files: Files
    seed: int | None  # for the order in which pairwise judges see responses


def judgement_name(candidate: str, panel_name: str, judge: str) -> str:
    """A judge without a name is the only one."""
    return JUDGEMENT_STAGE.stage_name(candidate, panel_name, *([judge] if judge else []))


def judgement(graph: Graph, candidate: str, panel_name: str, judge_name: str) -> Stage[JudgementSettings]:
    """`candidate` is one training of a policy."""
    evaluation = graph.recipe.evaluation
    assert evaluation is not None
    settings_of_judge = evaluation.all_judges[judge_name]
    kind = kind_of(settings_of_judge)
    inputs: dict[str, Stage[Any]] = {
        "panel": panel(graph, panel_name),
        "generation": generation(graph, candidate, panel_name),
    }
    if kind.pairwise:
        inputs["baseline"] = generation(graph, graph.recipe.baseline_of(candidate), panel_name)
    if isinstance(settings_of_judge, TrainedJudge):
        inputs[JUDGE_STAGE.name] = trained_judge(graph, judge_name, settings_of_judge.train)
    settings = JudgementSettings(
        judge=settings_of_judge,
        files=graph.files([] if kind.files is None else kind.files(settings_of_judge)),
        seed=graph.recipe.seed if kind.pairwise else None,
    )
    return graph.stage(JUDGEMENT_STAGE, settings, inputs, judgement_name(candidate, panel_name, judge_name))


def judge(job: Job[JudgementSettings]) -> Notes:
    """Scores each response."""
    prompts, responses = job.load(PANEL, "panel"), job.load(GENERATIONS, "generation")
    kind = kind_of(job.settings.judge)
    opened = _opened(job)
    if kind.pairwise:
        scores = _preferences(opened, job, prompts, responses)
    else:
        scores = checked(opened, prompts.prompts, [row["text"] for row in responses])
    rows = [
        {"prompt_hash": row["prompt_hash"], "score": score, "characters": len(row["text"])}
        for row, score in zip(responses, scores, strict=True)
    ]
    if Ranks.current().first:
        job.save(SCORES, rows)
    spent = {"spent": dict(opened.spent)} if isinstance(opened, TextJudge) else {}
    return {"mean_score": float(np.mean(scores)), **spent}


def _opened(job: Job[JudgementSettings]) -> Any:
    """The judge; if it was trained for this run, it reads conversations as it did then."""
    if JUDGE_STAGE.name in job.inputs:
        start: PinnedModel = job.stage.inputs[JUDGE_STAGE.name].settings.model
        return RewardModel(start.at_path(str(job.load(MODEL, JUDGE_STAGE.name))))
    return kind_of(job.settings.judge).open(job.settings.judge)


def _preferences(
    judge: PairwiseJudge | TextJudge, job: Job[JudgementSettings], prompts: Panel, responses: list[Line]
) -> list[float]:
    """The probability that the judge prefers each response to the baseline's. Resumes where it stopped, since every
    answer may cost money."""
    against, journal = job.load(GENERATIONS, "baseline"), Journal(job.state / "answers.jsonl")
    known: dict[str, float] = dict(journal.values)
    pairs = [
        Question(prompt, name, ours["text"], theirs["text"])
        for prompt, name, ours, theirs in zip(prompts.prompts, prompts.hashes, responses, against, strict=True)
    ]
    known |= {pair.prompt_hash: 0.5 for pair in pairs if pair.candidate == pair.baseline}
    questions, seed = [pair for pair in pairs if pair.prompt_hash not in known], job.settings.seed
    assert seed is not None
    if isinstance(judge, TextJudge):
        judge.expected = 2 * len(pairs)
    with contextlib.closing(judge.answers(questions, seed)) as answers:
        for place, score in answers:
            name = questions[place].prompt_hash
            known[name] = score
            journal.add((name, score))
            job.report(f"{len(known)}/{len(responses)} judged")
    return [known[row["prompt_hash"]] for row in responses]


def load_scores(artifact: Artifact, prompts: Panel) -> Judged:
    rows = SCORES.load(artifact)
    if [row["prompt_hash"] for row in rows] != prompts.hashes:
        raise ValueError(f"{artifact.path}: the scores are not in the panel's order")
    columns = ([float(row[name]) for row in rows] for name in ("score", "characters"))
    return Judged(*(np.array(column, dtype=np.float64) for column in columns))


def _judging_cost(estimates: Estimates, stage: Stage[JudgementSettings]) -> Cost:
    """The cost of a judge that runs on this machine; zero for others."""
    judge, prompts = stage.settings.judge, estimates.panel(stage.inputs["panel"].settings.size)
    written = stage.inputs["generation"].settings.max_new_tokens
    trained, model = stage.inputs.get(JUDGE_STAGE.name), kind_of(judge).model
    if trained is not None:
        read = trained.settings.model
    elif model is not None:
        read = model(judge)
    else:
        return Cost()
    return estimates.reading(read, prompts * (estimates.mean_prompt + written))


JUDGEMENT_STAGE = Kind("judgement", judge, uses_model=True, ranked="on request", cost=_judging_cost)
