"""Verifies a run: hashes every file again, and recomputes every statistic in a different way."""

from collections.abc import Iterator

from unmdpo.errors import UserError
from unmdpo.pipeline.recheck import Finding, recheck
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stages.summary import SUMMARY_STAGE


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
            yield from recheck(run)
        except (UserError, OSError, ValueError, LookupError, TypeError) as error:
            yield Finding("summary", "recomputed", f"cannot be recomputed: {error}")
