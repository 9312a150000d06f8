"""Verifies a run: hashes every file again, and recomputes every reported number from the raw answers and scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.stages.judgement import JUDGEMENT_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.files import GENERATIONS, SCORES, SUMMARY
from unmdpo.stages.summary import SUMMARY_STAGE, summary_of


@dataclass(frozen=True)
class Finding:
    """The result of one check; `problem` is empty if it passed."""

    stage: str
    what: str
    problem: str = ""


def verify(run: Pipeline) -> Iterator[Finding]:
    """Yields the result of every check of every stage."""
    stored = {name: run.store.find(stage.place) for name, stage in run.stages.items()}
    finished = {name: artifact for name, artifact in stored.items() if artifact is not None}
    whole = True
    for name, stage in run.stages.items():
        if name not in finished:
            yield Finding(name, "finished", "not finished")
            continue
        artifact = finished[name]
        damaged = artifact.damage()
        whole = whole and not damaged
        yield Finding(name, "files", f"{artifact.path}: changed: {', '.join(damaged)}" if damaged else "")
        if not artifact.intact:
            continue
        same_key = artifact.manifest["key"] == stage.key
        yield Finding(name, "settings", "" if same_key else "made with other settings, inputs or code")
        for role, needed in stage.inputs.items():
            recorded = artifact.manifest["inputs"][role]["digest"]
            current = run.store.find(needed.place)
            same = current is not None and current.intact and current.digest == recorded
            yield Finding(name, f"input {role}", "" if same else f"not the '{role}' it was made from")
    if SUMMARY_STAGE.name in finished and whole:
        yield from _recomputed(run)
    elif SUMMARY_STAGE.name in finished:
        yield Finding(SUMMARY_STAGE.name, "recomputed", "not recomputed, because of the damaged files above")


def _recomputed(run: Pipeline) -> Iterator[Finding]:
    for name, artifact in run.finished.items():
        if run.stages[name].kind is JUDGEMENT_STAGE:
            answers = GENERATIONS.load(run.inputs_of(run.stages[name])["generation"])
            same = [len(row["text"]) for row in answers] == [row["characters"] for row in SCORES.load(artifact)]
            yield Finding(name, "lengths", "" if same else "do not match the responses")
    stage = run.stages[SUMMARY_STAGE.name]
    try:
        reported = dict(_numbers(SUMMARY.load(run.artifact(stage.name))))
        found = dict(_numbers(summary_of(run.job(stage, Path(), run.inputs_of(stage), lambda text: None))))
    except (UserError, ValueError, LookupError, TypeError) as error:
        yield Finding(stage.name, "recomputed", f"cannot be recomputed: {error}")
        return
    for key in {**reported, **found}:
        same = key in reported and key in found and _same(found[key], reported[key])
        yield Finding(stage.name, key, "" if same else f"reported {reported.get(key)}, recomputed {found.get(key)}")


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every number or name of a summary, with the path that leads to it."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(inner, f"{key} {name}".strip())
    else:
        yield key, value


def _same(found: Any, reported: Any) -> bool:
    if isinstance(found, float) and isinstance(reported, int | float):
        return bool(np.isclose(found, reported, rtol=1e-9, atol=1e-9))
    return bool(found == reported)
