"""Responses to a panel, their scores, and the summary that compares policies."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from unmdpo.catalog.judges import AnyJudge, kind_of
from unmdpo.catalog.objectives import INITIAL
from unmdpo.data.panels import read_answers
from unmdpo.engine.adapters import attach, is_adapter
from unmdpo.engine.inference.endpoint import PairwiseJudge, Question
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.inference.judges import checked
from unmdpo.engine.models import load_in_four_bits
from unmdpo.engine.pairs.encode import Encoder
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.sharding import open_to_read
from unmdpo.errors import UserError
from unmdpo.files import read_lines, write_json, write_lines
from unmdpo.pipeline.artifacts import GENERATIONS, MODEL, PANEL, SCORES, SUMMARY, Line, Panel
from unmdpo.pipeline.costs import Cost, Estimates
from unmdpo.pipeline.graph import Files, Graph
from unmdpo.pipeline.stage import Job, Kind, Notes, PinnedModel, Stage
from unmdpo.pipeline.stages.convert import converted_model
from unmdpo.pipeline.stages.data import PANEL_STAGE, panel
from unmdpo.pipeline.stages.policies import policy
from unmdpo.pipeline.store import Artifact
from unmdpo.settings import Strict
from unmdpo.stats.evaluation import Judged, Outcome, Resamples, by_domain, compare, select


class AnswerSettings(Strict):
    model: PinnedModel
    max_new_tokens: int
    answers: str | None  # a file with answers that were made elsewhere
    files: Files


class JudgementSettings(Strict):
    judge: AnyJudge
    files: Files
    seed: int | None  # for the order in which pairwise judges see responses


class SummarySettings(Strict):
    policies: list[str]
    panels: list[str]
    opponents: list[str]  # the first is the baseline
    seed: int


def summary(graph: Graph) -> None:
    evaluation = graph.recipe.evaluation
    if evaluation is None:
        return
    policies = [*graph.recipe.candidates, *([INITIAL] if evaluation.initial else [])]
    inputs: dict[str, Stage[Any]] = {}
    for name in evaluation.answered:
        drawn = panel(graph, name)
        inputs[drawn.name] = drawn
        for candidate in policies:
            judged = judgement(graph, candidate, name)
            inputs[judged.name] = judged
    settings = SummarySettings(
        policies=policies, panels=evaluation.answered, opponents=evaluation.all_opponents, seed=graph.recipe.seed
    )
    graph.stage(SUMMARY_STAGE, settings, inputs)


def generation(graph: Graph, candidate: str, panel_name: str) -> Stage[AnswerSettings]:
    evaluation, model = graph.recipe.evaluation, graph.recipe.model
    assert evaluation is not None
    inputs: dict[str, Stage[Any]] = {"panel": panel(graph, panel_name), **converted_model(graph, model)}
    answers = evaluation.answers.get(candidate)
    if candidate != INITIAL and answers is None:
        inputs["policy"] = policy(graph, candidate)
    settings = AnswerSettings(
        model=graph.pinned(model),
        max_new_tokens=evaluation.max_new_tokens,
        answers=answers,
        files=graph.files([answers]),
    )
    return graph.stage(GENERATION_STAGE, settings, inputs, GENERATION_STAGE.called(candidate, panel_name))


def judgement(graph: Graph, candidate: str, panel_name: str) -> Stage[JudgementSettings]:
    evaluation = graph.recipe.evaluation
    assert evaluation is not None
    kind = kind_of(evaluation.judge)
    inputs: dict[str, Stage[Any]] = {
        "panel": panel(graph, panel_name),
        "generation": generation(graph, candidate, panel_name),
    }
    if kind.pairwise:
        inputs["baseline"] = generation(graph, evaluation.baseline, panel_name)
    settings = JudgementSettings(
        judge=evaluation.judge,
        files=graph.files([] if kind.files is None else kind.files(evaluation.judge)),
        seed=graph.recipe.seed if kind.pairwise else None,
    )
    return graph.stage(JUDGEMENT_STAGE, settings, inputs, JUDGEMENT_STAGE.called(candidate, panel_name))


def answer(job: Job[AnswerSettings]) -> Notes:
    """Writes greedy responses to every prompt of a panel; resumes after the last complete batch."""
    if job.settings.answers is not None:
        return _bring_in(job, Path(job.settings.answers))
    prompts, source, ranks = job.load(PANEL, "panel"), job.source(job.settings.model), Ranks.current()
    path, budget = job.folder / "batches.jsonl", job.folder / "budget.json"
    known = json.loads(budget.read_text("utf-8")) if ranks.first and budget.exists() else None
    settings = GenerationSettings(max_new_tokens=job.settings.max_new_tokens, token_budget=ranks.share(known))
    generator = Generator(_policy(job, source), Encoder.of(source), settings)
    done: list[list[Line]] = ranks.share([line["batch"] for line in read_lines(path)] if ranks.first else [])
    if ranks.first:
        write_json(budget, generator.budget)  # free memory, and so the batches, may differ next time
        write_lines(path, ({"batch": batch} for batch in done))
    answered = {response["prompt"] for batch in done for response in batch}
    for batch in generator.generate(prompts.prompts, answered):
        done.append([response.to_dict() for response in batch])
        if ranks.first:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"batch": done[-1]}, ensure_ascii=False) + "\n")
        job.report(f"{sum(map(len, done))}/{len(prompts)} answered")
    ordered = sorted((response for batch in done for response in batch), key=lambda response: int(response["prompt"]))
    rows = [{"prompt_hash": prompts.hashes[response["prompt"]]} | response for response in ordered]
    if ranks.first:
        path.unlink()
        budget.unlink()
        job.save(GENERATIONS, rows)
    return {"tokens": sum(row["tokens"] for row in rows), "unfinished": sum(not row["finished"] for row in rows)}


def _policy(job: Job[AnswerSettings], source: ModelSource) -> PreTrainedModel:
    """The policy to answer with: the initial model, another one in its place, or an adapter beside it."""
    if "policy" not in job.inputs:
        return open_to_read(source, lambda model: model)
    folder = job.load(MODEL, "policy")
    adapter = job.stage.inputs["policy"].settings.training.adapter
    if is_adapter(folder) and adapter.four_bit and Ranks.current().world == 1:
        return attach(load_in_four_bits(source, device=local_device()), folder)
    if is_adapter(folder):
        return open_to_read(source, lambda model: model, adapter=folder)
    return open_to_read(source.located(str(folder)), lambda model: model)


def _bring_in(job: Job[AnswerSettings], path: Path) -> Notes:
    """Takes answers that were made elsewhere, one for every prompt of the panel."""
    prompts, answers = job.load(PANEL, "panel"), read_answers(path.expanduser())
    missing = [place for place, name in enumerate(prompts.hashes) if name not in answers]
    if missing:
        raise UserError(
            f"{path}: no answer to {len(missing)} of {len(prompts)} prompts of the panel, for example to "
            f"{prompts.prompts[missing[0]][-1].content[:80]!r}"
        )
    tokenizer = Encoder.of(job.source(job.settings.model)).tokenizer
    rows = [
        {
            "prompt_hash": name,
            "prompt": place,
            "text": answers[name],
            "tokens": len(tokenizer(answers[name], add_special_tokens=False)["input_ids"]),
            "finished": True,
        }
        for place, name in enumerate(prompts.hashes)
    ]
    if Ranks.current().first:
        job.save(GENERATIONS, rows)
    return {"tokens": sum(row["tokens"] for row in rows), "unfinished": 0, "answers": str(path)}


def judge(job: Job[JudgementSettings]) -> Notes:
    """Scores each response."""
    prompts, responses = job.load(PANEL, "panel"), job.load(GENERATIONS, "generation")
    kind = kind_of(job.settings.judge)
    opened = kind.open(job.settings.judge)
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
    return {"mean_score": float(np.mean(scores))}


def _preferences(
    judge: PairwiseJudge, job: Job[JudgementSettings], prompts: Panel, responses: list[Line]
) -> list[float]:
    """The probability that the judge prefers each response to the baseline's. Resumes where it stopped, since every
    answer may cost money."""
    against, path = job.load(GENERATIONS, "baseline"), job.folder / "answers.jsonl"
    known = {row["prompt_hash"]: float(row["score"]) for row in read_lines(path)}
    write_lines(path, ({"prompt_hash": name, "score": score} for name, score in known.items()))
    pairs = [
        Question(prompt, name, ours["text"], theirs["text"])
        for prompt, name, ours, theirs in zip(prompts.prompts, prompts.hashes, responses, against, strict=True)
    ]
    known |= {pair.prompt_hash: 0.5 for pair in pairs if pair.candidate == pair.baseline}
    questions, seed = [pair for pair in pairs if pair.prompt_hash not in known], job.settings.seed
    assert seed is not None
    with path.open("a", encoding="utf-8") as file, contextlib.closing(judge.answers(questions, seed)) as answers:
        for place, score in answers:
            name = questions[place].prompt_hash
            known[name] = score
            file.write(json.dumps({"prompt_hash": name, "score": score}) + "\n")
            file.flush()
            job.report(f"{len(known)}/{len(responses)} judged")
    path.unlink()
    return [known[row["prompt_hash"]] for row in responses]


def judged(artifact: Artifact, prompts: Panel) -> Judged:
    rows = SCORES.load(artifact)
    if [row["prompt_hash"] for row in rows] != prompts.hashes:
        raise ValueError(f"{artifact.path}: the scores are not in the panel's order")
    columns = ([float(row[name]) for row in rows] for name in ("score", "characters"))
    return Judged(*(np.array(column, dtype=np.float64) for column in columns))


def summarize(job: Job[SummarySettings]) -> Notes:
    """Compares every policy with the baseline, and with any other opponents, on every panel."""
    s = job.settings
    report = {
        name: summarize_panel(
            job.load(PANEL, PANEL_STAGE.called(name)),
            {policy: job.inputs[JUDGEMENT_STAGE.called(policy, name)] for policy in s.policies},
            s.opponents,
            s.seed,
        )
        for name in s.panels
    }
    job.save(SUMMARY, report)
    return {"panels": list(report)}


def summarize_panel(
    prompts: Panel, scores: Mapping[str, Artifact], opponents: Sequence[str], seed: int
) -> dict[str, Any]:
    """Compares policies on one panel. The first opponent is the baseline, used for selection and domains."""
    baseline = opponents[0]
    known = {policy: judged(artifact, prompts) for policy, artifact in scores.items()}
    resamples = Resamples.draw(len(prompts), seed)
    against = {
        opponent: {
            policy: compare(values, known[opponent], resamples)
            for policy, values in known.items()
            if policy not in (opponent, INITIAL)
        }
        for opponent in opponents
    }
    return {
        "prompts": len(prompts),
        "baseline": baseline,
        "against": {opponent: _as_dicts(outcomes) for opponent, outcomes in against.items()},
        "selected": select(against[baseline]),
        "by_domain": {
            policy: _as_dicts(by_domain(values, known[baseline], prompts.domains, seed))
            for policy, values in known.items()
            if policy not in (baseline, INITIAL)
        },
        "mean_score": {policy: float(values.scores.mean()) for policy, values in known.items()},
    }


def _as_dicts(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    return {name: outcome.to_dict() for name, outcome in outcomes.items()}


def _answering_cost(estimates: Estimates, stage: Stage[AnswerSettings]) -> Cost:
    if stage.settings.answers is not None:
        return Cost()
    prompts: int = stage.inputs["panel"].settings.size
    return estimates.writing(stage.settings.model, float(prompts * stage.settings.max_new_tokens))


def _judging_cost(estimates: Estimates, stage: Stage[JudgementSettings]) -> Cost:
    """The cost of a judge that runs on this machine; zero for others."""
    judge, prompts = stage.settings.judge, stage.inputs["panel"].settings.size
    written = stage.inputs["generation"].settings.max_new_tokens
    model = kind_of(judge).model
    if model is None:
        return Cost()
    return estimates.reading(model(judge), prompts * (estimates.mean_prompt + written))


GENERATION_STAGE = Kind("generation", answer, uses_model=True, ranked="on request", cost=_answering_cost)
JUDGEMENT_STAGE = Kind("judgement", judge, uses_model=True, ranked="on request", cost=_judging_cost)
SUMMARY_STAGE = Kind("summary", summarize, wanted=summary)
