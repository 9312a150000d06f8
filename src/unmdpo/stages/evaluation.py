"""Answers to panels, and their scores."""

from typing import Any

import numpy as np

from unmdpo.core.places import Place
from unmdpo.engine.inference.endpoints import Endpoint
from unmdpo.engine.inference.function_judge import checked
from unmdpo.engine.inference.judges import kind_of
from unmdpo.engine.inference.pairwise import PairwiseJudge, Question
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ModelSource
from unmdpo.stages.answers import GENERATION_STAGE, AnswerSettings, ServedSettings
from unmdpo.stages.data import panel, prompts_to_answer
from unmdpo.stages.policies import policy
from unmdpo.stages.scoring import ScoringSettings, chances, opened, scoring_cost, scoring_inputs, spent_by
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import GENERATIONS, PANEL, SCORES, Panel
from unmdpo.stats.evaluation import Judged
from unmdpo.store.artifact import Artifact, Line
from unmdpo.store.journal import Journal


def judgement_name(candidate: str, panel_name: str, judge: str) -> str:
    """A judge without a name is the only one."""
    return JUDGEMENT_STAGE.stage_name(candidate, panel_name, *([judge] if judge else []))


def judgement(graph: Graph, candidate: str, panel_name: str, judge_name: str) -> Stage[ScoringSettings]:
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
    inputs |= scoring_inputs(graph, settings_of_judge, judge_name)
    settings = ScoringSettings(judge=settings_of_judge, seed=graph.recipe.seed if kind.pairwise else None)
    return graph.stage(JUDGEMENT_STAGE, settings, inputs, judgement_name(candidate, panel_name, judge_name))


def generation(graph: Graph, candidate: str, panel_name: str) -> Stage[AnswerSettings]:
    evaluation, model = graph.recipe.evaluation, graph.recipe.model
    assert evaluation is not None
    given = evaluation.answers.get(candidate)
    if isinstance(given, ModelSource):
        model = given
    inputs: dict[str, Stage[Any]] = {"panel": panel(graph, panel_name)}
    answers = given if isinstance(given, Place) else None
    server = evaluation.generator if given is None or isinstance(given, ModelSource) else None
    if isinstance(given, Endpoint):
        server = given
    if candidate in graph.recipe.trained and candidate not in evaluation.answers:
        inputs["policy"] = policy(graph, candidate)
    settings = AnswerSettings(
        model=model,
        max_new_tokens=evaluation.max_new_tokens,
        answers=answers,
        sampling=None if answers is not None else evaluation.sampling,
    )
    if server is not None:
        named = server.naming(candidate) if isinstance(server, Endpoint) else server
        settings = ServedSettings(**dict(settings), server=named)
    return graph.stage(GENERATION_STAGE, settings, inputs, GENERATION_STAGE.stage_name(candidate, panel_name))


def score_answers(job: Job[ScoringSettings]) -> Notes:
    """Scores each response."""
    prompts, responses = job.load(PANEL, "panel"), job.load(GENERATIONS, "generation")
    kind = kind_of(job.settings.judge)
    judge = opened(job)
    if kind.pairwise:
        scores = _preferences(judge, job, prompts, responses)
    else:
        asked = [prompts.prompts[place] for place in _places(prompts, responses)]
        scores = checked(judge, asked, [row["text"] for row in responses])
    rows = [
        {"prompt_hash": row["prompt_hash"], "score": score, "characters": len(row["text"])}
        for row, score in zip(responses, scores, strict=True)
    ]
    if Ranks.current().first:
        job.save(SCORES, rows)
    return {"mean_score": float(np.mean(scores)), **spent_by(judge)}


def _preferences(
    judge: PairwiseJudge | TextJudge, job: Job[ScoringSettings], prompts: Panel, responses: list[Line]
) -> list[float]:
    """The probability that the judge prefers each response to the baseline's: to that of the same sample, if there
    are several."""
    against, seed = job.load(GENERATIONS, "baseline"), job.settings.seed
    ours, theirs = len(responses) // len(prompts), len(against) // len(prompts)
    pairs = [
        Question(prompts.prompts[place], prompts.hashes[place], row["text"], against[of_baseline]["text"])
        for number, (place, row) in enumerate(zip(_places(prompts, responses), responses, strict=True))
        for of_baseline in [place * theirs + number % ours % theirs]
    ]
    assert seed is not None
    return chances(judge, pairs, Journal(job.state / "answers.jsonl"), seed, job.report)


def _places(prompts: Panel, rows: list[Line]) -> list[int]:
    """The prompt of each row: every prompt has the same number of answers, one after another."""
    return [number * len(prompts) // len(rows) for number in range(len(rows))]


def load_scores(artifact: Artifact, prompts: Panel) -> Judged:
    rows = SCORES.load(artifact)
    if [row["prompt_hash"] for row in rows] != [prompts.hashes[place] for place in _places(prompts, rows)]:
        raise ValueError(f"{artifact.path}: the scores are not in the panel's order")
    columns = ([float(row[name]) for row in rows] for name in ("score", "characters"))
    return Judged(*(np.array(column, dtype=np.float64).reshape(1, len(prompts), -1) for column in columns))


def _judging_cost(estimates: Estimates, stage: Stage[ScoringSettings]) -> Cost:
    """The cost of a judge that runs on this machine; zero for others."""
    prompts = prompts_to_answer(estimates, stage.inputs["panel"])
    answering: AnswerSettings = stage.inputs["generation"].settings
    samples = 1 if answering.sampling is None else answering.sampling.samples
    return scoring_cost(estimates, stage, prompts * samples * (estimates.mean_prompt + answering.max_new_tokens))


JUDGEMENT_STAGE = Kind("judgement", score_answers, uses_model=True, ranked="on request", cost=_judging_cost)
