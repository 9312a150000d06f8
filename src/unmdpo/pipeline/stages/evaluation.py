"""Responses to a panel, their scores, and the table that compares policies."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unmdpo.catalog import INITIAL
from unmdpo.engine.endpoint import Endpoint, PairwiseJudge, Question
from unmdpo.engine.generate import GenerationSettings, Generator
from unmdpo.engine.judge import Judge, RewardModel, checked, load_function
from unmdpo.engine.models import ModelSource, load_model, make_encoder
from unmdpo.engine.ranks import local_device
from unmdpo.pipeline.common import model_source
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.store import Artifact, write_json
from unmdpo.pipeline.tables import Panel, read_lines, write_lines
from unmdpo.pipeline.training import compute_dtype
from unmdpo.stats.evaluation import Judged, Outcome, Resamples, by_domain, compare, select


def generation(job: Job) -> Notes:
    """Greedy responses to every prompt of a panel; goes on after the last whole batch."""
    panel = Panel.read(job.inputs["panel"].file("panel.json"))
    source, device = model_source(job.settings["model"], job.inputs), local_device()
    weights = source
    if "policy" in job.inputs:
        weights = replace(source, path=str(job.inputs["policy"].file("model")), revision=None, gguf_file=None)
    model = load_model(weights, device=device, dtype=compute_dtype(device))
    path, budget = job.folder / "batches.jsonl", job.folder / "budget.json"
    settings = GenerationSettings(
        max_new_tokens=job.settings["max_new_tokens"],
        token_budget=json.loads(budget.read_text("utf-8")) if budget.exists() else None,
    )
    generator = Generator(model, make_encoder(source, max_length=2**31), settings)
    write_json(budget, generator.budget)  # free memory may differ next time, and batches with it
    done = [line["batch"] for line in read_lines(path)]
    write_lines(path, ({"batch": batch} for batch in done))
    answered = {made["prompt"] for batch in done for made in batch}
    with path.open("a", encoding="utf-8") as file:
        for batch in generator.generate(panel.prompts, answered):
            done.append([made.to_dict() for made in batch])
            file.write(json.dumps({"batch": done[-1]}, ensure_ascii=False) + "\n")
            file.flush()
    path.unlink()
    budget.unlink()
    ordered = sorted((made for batch in done for made in batch), key=lambda made: int(made["prompt"]))
    rows = [{"prompt_hash": panel.hashes[made["prompt"]]} | made for made in ordered]
    write_lines(job.folder / "generations.jsonl", rows)
    return {
        "tokens": sum(row["tokens"] for row in rows),
        "unfinished": sum(not row["finished"] for row in rows),
    }


def judgement(job: Job) -> Notes:
    """One score for each response."""
    panel = Panel.read(job.inputs["panel"].file("panel.json"))
    made = read_lines(job.inputs["generation"].file("generations.jsonl"))
    if job.settings["judge"]["endpoint"] is not None:
        scores = _preferences(job, panel, made)
    else:
        scores = checked(_judge(job.settings["judge"]), panel.prompts, [row["text"] for row in made])
    rows = [
        {"prompt_hash": row["prompt_hash"], "score": score, "characters": len(row["text"])}
        for row, score in zip(made, scores, strict=True)
    ]
    write_lines(job.folder / "scores.jsonl", rows)
    return {"mean_score": float(np.mean(scores))}


def _preferences(job: Job, panel: Panel, made: list[dict[str, Any]]) -> list[float]:
    """How likely an endpoint's judge prefers each response to the baseline's; goes on where it stopped,
    since every answer may cost money."""
    against = read_lines(job.inputs["baseline"].file("generations.jsonl"))
    given = job.settings["judge"]
    judge = PairwiseJudge(Endpoint(given["endpoint"], given["model"], given["key"], job.settings["seed"]))
    path = job.folder / "answers.jsonl"
    known = {row["prompt_hash"]: float(row["score"]) for row in read_lines(path)}
    write_lines(path, ({"prompt_hash": name, "score": score} for name, score in known.items()))
    pairs = [
        Question(prompt, name, ours["text"], theirs["text"])
        for prompt, name, ours, theirs in zip(panel.prompts, panel.hashes, made, against, strict=True)
    ]
    known |= {pair.prompt_hash: 0.5 for pair in pairs if pair.candidate == pair.baseline}
    questions = [pair for pair in pairs if pair.prompt_hash not in known]
    with path.open("a", encoding="utf-8") as file, contextlib.closing(judge.answers(questions)) as answers:
        for place, score in answers:
            name = questions[place].prompt_hash
            known[name] = score
            file.write(json.dumps({"prompt_hash": name, "score": score}) + "\n")
            file.flush()
            job.report(f"{len(known)}/{len(made)} judged")
    path.unlink()
    return [known[row["prompt_hash"]] for row in made]


def _judge(settings: dict[str, Any]) -> Judge:
    if settings["function"] is not None:
        return load_function(settings["function"])
    source = ModelSource(settings["path"], settings["revision"])
    return RewardModel(source, local_device())


def judged(artifact: Artifact, panel: Panel) -> Judged:
    rows = read_lines(artifact.file("scores.jsonl"))
    if [row["prompt_hash"] for row in rows] != panel.hashes:
        raise ValueError(f"{artifact.path}: scores are not in the panel's order")
    columns = ([float(row[name]) for row in rows] for name in ("score", "characters"))
    return Judged(*(np.array(column, dtype=np.float64) for column in columns))


def summary(job: Job) -> Notes:
    """Every policy against the baseline on every panel, and against the initial model if it was judged."""
    report = {
        name: summarize_panel(
            Panel.read(job.inputs[f"panel[{name}]"].file("panel.json")),
            {policy: job.inputs[f"judgement[{policy},{name}]"] for policy in job.settings["policies"]},
            job.settings.get("opponents") or [job.settings["baseline"], INITIAL],
            job.settings["seed"],
        )
        for name in job.settings["panels"]
    }
    write_json(job.folder / "summary.json", report)
    return {"panels": list(report)}


def summarize_panel(
    panel: Panel, scores: dict[str, Artifact], opponents: Sequence[str], seed: int
) -> dict[str, Any]:
    """The first opponent is the baseline, of which selection and domains speak."""
    baseline = opponents[0]
    found = {policy: judged(artifact, panel) for policy, artifact in scores.items()}
    resamples = Resamples.draw(len(panel), seed)
    against = {}
    for opponent in [name for name in opponents if name in found]:
        outcomes = {
            policy: compare(found[policy], found[opponent], resamples)
            for policy in found
            if policy not in (opponent, INITIAL)
        }
        against[opponent] = {policy: outcome.to_dict() for policy, outcome in outcomes.items()}
        if opponent == baseline:
            selected = select(outcomes)
            domains = _domains(found, baseline, panel.domains, seed)
    return {
        "prompts": len(panel),
        "baseline": baseline,
        "against": against,
        "selected": selected,
        "by_domain": domains,
        "mean_score": {policy: float(values.scores.mean()) for policy, values in found.items()},
    }


def _domains(
    found: dict[str, Judged], baseline: str, domains: Sequence[str], seed: int
) -> dict[str, dict[str, Any]]:
    def described(outcomes: dict[str, Outcome]) -> dict[str, Any]:
        return {domain: outcome.to_dict() for domain, outcome in outcomes.items()}

    return {
        policy: described(by_domain(values, found[baseline], domains, seed))
        for policy, values in found.items()
        if policy not in (baseline, INITIAL)
    }
