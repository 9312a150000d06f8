"""Verifies a run: hashes every file again, and recomputes every statistic in a different way."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmdpo.errors import UserError
from unmdpo.pipeline.artifacts import GENERATIONS, PANEL, SCORES, SUMMARY, Line, Panel
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stages.answers import GENERATION_STAGE
from unmdpo.pipeline.stages.data import PANEL_STAGE
from unmdpo.pipeline.stages.evaluation import JUDGEMENT_STAGE, SUMMARY_STAGE
from unmdpo.stats.evaluation import LONGEST, RESAMPLES, TIE


@dataclass(frozen=True)
class Finding:
    """The result of one check; `problem` is empty if it passed."""

    stage: str
    what: str
    problem: str = ""


def verify(run: Run) -> Iterator[Finding]:
    """Yields the result of every check of every stage."""
    finished = run.finished
    for name in run.stages:
        if name not in finished:
            yield Finding(name, "finished", "not finished")
            continue
        artifact, stage = finished[name], run.stages[name]
        damaged = artifact.damage()
        yield Finding(name, "files", f"{artifact.path}: changed: {', '.join(damaged)}" if damaged else "")
        if not artifact.intact:
            continue
        yield Finding(
            name,
            "settings",
            "" if artifact.manifest["key"] == stage.key else "made with other settings, inputs or code",
        )
        for role, needed in stage.inputs.items():
            seen = artifact.manifest["inputs"][role]["digest"]
            current = run.find(needed)
            same = current is not None and current.intact and current.digest == seen
            yield Finding(name, f"input {role}", "" if same else f"not the '{role}' it was made from")
    if SUMMARY_STAGE.name in finished:
        try:
            yield from _recomputed(run)
        except (UserError, ValueError, LookupError, TypeError) as error:
            yield Finding("summary", "recomputed", f"cannot be recomputed: {error}")


def _recomputed(run: Run) -> Iterator[Finding]:
    """Recomputes the summary's numbers from the raw scores, in a different way than the summary did."""
    summary = SUMMARY.peek(run.artifact(SUMMARY_STAGE.name))
    for panel_name, reported in summary.items():
        panel = PANEL.peek(run.artifact(PANEL_STAGE.called(panel_name)))
        raw = {policy: _raw(run, policy, panel_name) for policy in reported["mean_score"]}
        for policy, rows in raw.items():
            ordered = [row["prompt_hash"] for row in rows] == panel.hashes
            texts = _texts(run, policy, panel_name)
            lengths = [len(text) for text in texts] == [row["characters"] for row in rows]
            what = f"{policy} on {panel_name}"
            yield Finding("summary", f"{what}: prompt order", "" if ordered else "not in the panel's order")
            yield Finding("summary", f"{what}: lengths", "" if lengths else "do not match the responses")
            mean = float(np.mean([row["score"] for row in rows]))
            close = np.isclose(mean, reported["mean_score"][policy], rtol=1e-9, atol=1e-9)
            yield Finding("summary", f"{what}: mean score", "" if close else "differs from the reported value")
        yield from _outcomes(run.recipe.seed, panel, panel_name, raw, reported)


def _outcomes(
    seed: int, panel: Panel, name: str, raw: dict[str, list[Line]], reported: dict[str, Any]
) -> Iterator[Finding]:
    """Checks every comparison on a panel, overall and by domain, and which policy the paper's rule selects."""
    baseline = reported["baseline"]
    for opponent, candidates in reported["against"].items():
        for policy, outcome in candidates.items():
            what = f"{policy} against {opponent} on {name}"
            yield _checked(what, raw[policy], raw[opponent], outcome, seed)
    for policy, domains in reported["by_domain"].items():
        for domain, outcome in domains.items():
            rows = [place for place, other in enumerate(panel.domains) if other == domain]
            ours, theirs = ([raw[one][place] for place in rows] for one in (policy, baseline))
            yield _checked(f"{policy} in {domain} on {name}", ours, theirs, outcome, seed)
    eligible = {
        policy: outcome["reward_difference"]["value"]
        for policy, outcome in reported["against"][baseline].items()
        if outcome["reward_difference"]["value"] > 0 and outcome["length_ratio"]["value"] <= LONGEST
    }
    best = max(eligible, key=lambda policy: eligible[policy], default=None)
    yield Finding("summary", f"selection on {name}", "" if best == reported["selected"] else f"should be {best}")


def _checked(what: str, ours: list[Line], theirs: list[Line], outcome: Any, seed: int) -> Finding:
    drawn = np.random.default_rng(seed).integers(0, len(ours), size=(RESAMPLES, len(ours)))
    expected = _statistics(ours, theirs, drawn)
    wrong = [name for name in expected if not np.allclose(expected[name], _flat(outcome[name]), rtol=1e-9, atol=1e-9)]
    return Finding("summary", what, f"differs from the reported value: {', '.join(wrong)}" if wrong else "")


def _raw(run: Run, policy: str, panel: str) -> list[Line]:
    return SCORES.peek(run.artifact(JUDGEMENT_STAGE.called(policy, panel)))


def _texts(run: Run, policy: str, panel: str) -> list[str]:
    return [row["text"] for row in GENERATIONS.peek(run.artifact(GENERATION_STAGE.called(policy, panel)))]


def _flat(reported: Any) -> list[float]:
    return [reported[name] for name in ("value", "low", "high")] if isinstance(reported, dict) else [reported]


def _statistics(candidate: list[Line], baseline: list[Line], drawn: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """Looks up and averages the rows of each resample, while the summary counts how often each row was drawn."""
    differences = np.array([a["score"] - b["score"] for a, b in zip(candidate, baseline, strict=True)])
    points = np.array([100.0 if d > TIE else 50.0 if d >= -TIE else 0.0 for d in differences])
    ours, theirs = (np.array([float(row["characters"]) for row in rows]) for rows in (candidate, baseline))

    def estimate(values: Any, whole: float) -> list[float]:
        return [float(whole), *np.percentile(values, [2.5, 97.5])]

    def length(rows: Any) -> Any:
        return np.maximum(rows.mean(axis=-1), 1.0)

    return {
        "wins": [float((points == 100).sum())],
        "ties": [float((points == 50).sum())],
        "losses": [float((points == 0).sum())],
        "win_rate": estimate(points[drawn].mean(axis=1), points.mean()),
        "reward_difference": estimate(differences[drawn].mean(axis=1), differences.mean()),
        "length_ratio": estimate(length(ours[drawn]) / length(theirs[drawn]), length(ours) / length(theirs)),
    }
