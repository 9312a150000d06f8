"""What all executors share: how to run one stage, and how to report failures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from unmdpo.engine.ranks import device_name
from unmdpo.errors import UserError
from unmdpo.pipeline.code import code_of
from unmdpo.pipeline.run import Run, ranks_of
from unmdpo.pipeline.stage import Job, Stage
from unmdpo.pipeline.store import Artifact


def with_microbatch(run: Run, tokens: int | None) -> Run:
    """The same run with microbatches of this many tokens, if given."""
    if tokens is None:
        return run
    compute = run.recipe.compute.model_copy(update={"token_budget": tokens})
    return replace(run, recipe=run.recipe.model_copy(update={"compute": compute}))


def make_here(run: Run, stage: Stage[Any], report: Callable[[str], None]) -> Artifact:
    """Runs one stage in this process; its inputs must be finished."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # stages report their own progress
    inputs = run.inputs_of(stage)

    def work(folder: Path) -> Mapping[str, Any]:
        return job_of(run, stage, folder, inputs, report).do()

    return run.store.make(stage.place, manifest_head(run, stage, inputs), work)


def job_of(
    run: Run, stage: Stage[Any], folder: Path, inputs: Mapping[str, Artifact], report: Callable[[str], None]
) -> Job[Any]:
    return Job(stage, folder, inputs, run.recipe.compute, report, run.store.proofs, run.recipe.logging)


def manifest_head(run: Run, stage: Stage[Any], inputs: Mapping[str, Artifact]) -> dict[str, Any]:
    """The part of a manifest that is known before the work starts."""
    places = {name: needed.place for name, needed in stage.inputs.items()}
    return {
        "kind": stage.kind.name,
        "name": stage.name,
        "version": stage.kind.version,
        "code": code_of(stage.kind),
        "key": stage.key,
        "settings": stage.settings.model_dump(mode="json"),
        "device": device_name(),
        "ranks": ranks_of(run, stage),
        "inputs": {name: {"place": places[name], "digest": a.digest} for name, a in inputs.items()},
    }


def ready_stages(run: Run, waiting: Sequence[str], failures: Mapping[str, str]) -> list[str]:
    """The waiting stages whose inputs are all finished."""

    def complete(name: str) -> bool:
        return all(run.find(needed) is not None for needed in run.stages[name].inputs.values())

    return [name for name in waiting if name not in failures and complete(name)]


def raise_failures(failures: Mapping[str, str], waiting: Sequence[str]) -> None:
    """Raises an error if any stage failed, and says what was not started because of it."""
    if waiting and not failures:
        raise UserError(f"the inputs of {', '.join(waiting[:4])} are not finished; run without --only")
    if failures:
        lines = [f"{name}: {problem}" for name, problem in failures.items()]
        left = f"\nnot started, because they need what failed: {', '.join(waiting)}" if waiting else ""
        raise UserError("\n".join(lines) + left)
