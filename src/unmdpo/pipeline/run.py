"""Running a recipe: what is finished is used, the rest is made, and a record says what belongs together."""

import fnmatch
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers.utils.logging import disable_progress_bar

from unmdpo.engine.ranks import device_name
from unmdpo.errors import UserError
from unmdpo.nearest import did_you_mean
from unmdpo.pipeline.fingerprint import Fingerprints
from unmdpo.pipeline.graph import build
from unmdpo.pipeline.outside import check_outside
from unmdpo.pipeline.stage import Job, Kind, Stage
from unmdpo.pipeline.stages.evaluation import judged
from unmdpo.pipeline.store import Artifact, Store, write_json
from unmdpo.pipeline.tables import Panel, read_lines
from unmdpo.pipeline.view import View
from unmdpo.recipe import Recipe
from unmdpo.stats.evaluation import Outcome, Resamples, compare

if TYPE_CHECKING:
    from unmdpo.pipeline.fitted import FittedScale


@dataclass(frozen=True)
class Run:
    """A recipe's stages in a store."""

    store: Store
    recipe: Recipe
    stages: Mapping[str, Stage]

    @property
    def folder(self) -> Path:
        return self.store.root / "runs" / f"{self.recipe.name}-{self.recipe.digest[:12]}"

    def artifact(self, name: str) -> Artifact:
        if name not in self.stages:
            raise UserError(f"this run has no stage '{name}'; {did_you_mean(name, self.stages)}")
        found = self.store.find(self.stages[name].place)
        if found is None:
            raise UserError(f"stage '{name}' is not finished yet")
        return found

    @property
    def finished(self) -> dict[str, Artifact]:
        found = {name: self.store.find(stage.place) for name, stage in self.stages.items()}
        return {name: artifact for name, artifact in found.items() if artifact is not None}

    @cached_property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = self.artifact("summary").json("summary.json")
        return found

    def policy(self, name: str) -> Path:
        """A folder for `from_pretrained`."""
        return self.artifact(f"policy[{name}]").file("model")

    def scale(self, name: str) -> "FittedScale":
        """A fitted scale: `predict(prompts)` gives q of any prompts."""
        from unmdpo.pipeline.fitted import FittedScale  # noqa: PLC0415 - it builds on runs

        self.artifact(f"scale[{name}]")
        return FittedScale(self, name)

    def table(self) -> list[dict[str, Any]]:
        """One row for each panel, opponent and policy: the headline numbers with their intervals."""
        rows = []
        for panel, report in self.summary.items():
            for opponent, outcomes in report["against"].items():
                for policy, outcome in outcomes.items():
                    row = {"panel": panel, "against": opponent, "policy": policy}
                    for name in ("win_rate", "reward_difference", "length_ratio"):
                        row |= {name: outcome[name]["value"]}
                        row |= {f"{name}_{end}": outcome[name][end] for end in ("low", "high")}
                    rows.append(row)
        return rows

    def generations(self, policy: str, panel: str) -> list[dict[str, Any]]:
        """What a policy answered on a panel, with the judge's scores."""
        prompts = Panel.read(self.artifact(f"panel[{panel}]").file("panel.json")).prompts
        made = read_lines(self.artifact(f"generation[{policy},{panel}]").file("generations.jsonl"))
        scores = read_lines(self.artifact(f"judgement[{policy},{panel}]").file("scores.jsonl"))
        return [
            {"prompt": prompt, "text": row["text"], "score": score["score"], "finished": row["finished"]}
            for prompt, row, score in zip(prompts, made, scores, strict=True)
        ]

    def compare(self, candidate: str, opponent: str, panel: str) -> Outcome:
        """Any two policies directly, on the same prompts and resamples as the summary's."""
        prompts = Panel.read(self.artifact(f"panel[{panel}]").file("panel.json"))
        ours, theirs = (
            judged(self.artifact(f"judgement[{policy},{panel}]"), prompts) for policy in (candidate, opponent)
        )
        return compare(ours, theirs, Resamples.draw(len(prompts), self.recipe.seed))

    def record(self) -> None:
        """Which artifacts the run consists of, for people and for `verify`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "recipe.yaml").write_text(self.recipe.to_yaml(), "utf-8")
        stages = {
            name: {"place": stage.place, "inputs": {k: s.place for k, s in stage.inputs.items()}}
            for name, stage in self.stages.items()
        }
        write_json(self.folder / "run.json", {"recipe": self.recipe.digest, "stages": stages})


def open_run(recipe: Recipe, store: Store, *, planning: bool = False) -> Run:
    """The run of a recipe, whatever of it is finished; while `planning`, without what it borrows, too."""
    borrowed = {
        name: _borrowed(store, scale.run, name, planning)
        for name, scale in recipe.scales.items()
        if scale.run is not None
    }
    return Run(store, recipe, build(recipe, Fingerprints(store), borrowed))


def _borrowed(store: Store, run: str, scale: str, planning: bool) -> Stage:
    """A fitted scale of another run, as a stage that is already done."""
    names = re.compile(rf"{re.escape(run)}(-[0-9a-f]{{12}})?")
    folders = [
        path.parent for path in (store.root / "runs").glob("*/run.json") if names.fullmatch(path.parent.name)
    ]
    places = dict[str, str]()
    for folder in sorted(folders):
        stages = json.loads((folder / "run.json").read_text("utf-8"))["stages"]
        place = stages.get(f"scale[{scale}]", {}).get("place")
        if place is not None and store.find(place) is not None:
            places.setdefault(place, folder.name)
    if not places and planning:
        places["scale/of-another-run"] = run
    if not places:
        raise UserError(f"no finished run '{run}' in this store has a scale '{scale}'; run it first")
    if len(places) > 1:
        raise UserError(
            f"several runs '{run}' have a scale '{scale}'; name one: {', '.join(places.values())}"
        )
    (place,) = places
    return _Done(Kind("scale", 0, _nothing), f"{run}/scale[{scale}]", {"place": place})


class _Done(Stage):
    """A stage of another run: its place is known, its inputs are that run's affair."""

    @property
    def place(self) -> str:
        return str(self.settings["place"])


def _nothing(job: Job) -> dict[str, Any]:
    raise UserError(f"{job.stage.name} belongs to another run and is missing")


def execute(
    run: Run,
    *,
    until: str | None = None,
    only: str | None = None,
    force: Sequence[str] = (),
    jobs: int = 1,
    executor: Literal["local", "ray"] = "local",
    view: View | None = None,
) -> Run:
    """Makes what is not there yet; finished stages are never redone.

    One job works in this process, several in processes of their own; Ray's are where Ray puts them.
    """
    view = view or View()
    wanted = wanted_stages(run, until, only)
    check_outside(run.recipe, judging=any(run.stages[name].kind.name == "judgement" for name in wanted))
    for pattern in force:
        for name in _with_dependents(run, _matching(run, pattern)):
            run.store.remove(run.stages[name].place)
    run.store.prepare()
    run.record()
    for name in wanted:
        if run.store.find(run.stages[name].place) is not None:
            view.cached(name)
    if executor == "ray":
        from unmdpo.pipeline.cluster import work_on_ray  # noqa: PLC0415 - it builds on runs

        work_on_ray(run, wanted, view)
        return run
    if jobs > 1:
        from unmdpo.pipeline.workers import work_through  # noqa: PLC0415 - it builds on runs

        work_through(run, wanted, jobs, view)
        return run
    for name in wanted:
        if run.store.find(run.stages[name].place) is None:
            began = time.monotonic()
            view.started(name)
            make(run, run.stages[name], partial(view.progress, name))
            view.finished(name, time.monotonic() - began)
    return run


def make(run: Run, stage: Stage, report: Callable[[str], None]) -> Artifact:
    """One stage, its inputs being there; over several ranks if the recipe asks and the stage can."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # stages have a line of their own
    inputs = finished_inputs(run, stage)
    if run.recipe.compute.ranks > 1 and stage.kind.ranked:
        from unmdpo.pipeline.ranked import launch  # noqa: PLC0415 - it builds on runs

        launch(run, stage)
        return Artifact(run.store.root / "artifacts" / stage.place)

    def work(folder: Path) -> Mapping[str, Any]:
        return Job(stage, folder, inputs, run.recipe.compute, report).do()

    return run.store.make(stage.place, describe(run, stage, inputs), work)


def finished_inputs(run: Run, stage: Stage) -> dict[str, Artifact]:
    inputs = {}
    for name, needed in stage.inputs.items():
        found = run.store.find(needed.place)
        if found is None:
            raise UserError(f"'{stage.name}' needs '{needed.name}', which is not finished")
        inputs[name] = found
    return inputs


def describe(run: Run, stage: Stage, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
    """What a manifest says of a stage before any work."""
    places = {name: needed.place for name, needed in stage.inputs.items()}
    return {
        "kind": stage.kind.name,
        "name": stage.name,
        "version": stage.kind.version,
        "key": stage.key,
        "settings": dict(stage.settings),
        "device": device_name(),
        "ranks": run.recipe.compute.ranks if stage.kind.ranked else 1,
        "inputs": {name: {"place": places[name], "digest": a.digest} for name, a in inputs.items()},
    }


def ready_stages(run: Run, waiting: Sequence[str], failures: Mapping[str, str]) -> list[str]:
    """Which of the waiting stages have all their inputs."""

    def there(name: str) -> bool:
        return all(run.store.find(needed.place) is not None for needed in run.stages[name].inputs.values())

    return [name for name in waiting if name not in failures and there(name)]


def tell_failures(failures: Mapping[str, str], waiting: Sequence[str]) -> None:
    """Raises what went wrong, if anything did, and says what was not begun because of it."""
    if waiting and not failures:
        raise UserError(f"the inputs of {', '.join(waiting[:4])} are not finished; run without --only")
    if failures:
        lines = [f"{name}: {problem}" for name, problem in failures.items()]
        left = f"\nnot started, because they need what failed: {', '.join(waiting)}" if waiting else ""
        raise UserError("\n".join(lines) + left)


def wanted_stages(run: Run, until: str | None, only: str | None) -> list[str]:
    """All stages, those that `until` needs and itself, or those that match `only` alone."""
    if only is not None:
        return _matching(run, only)
    if until is None:
        return [*run.stages]
    needed: set[str] = set()

    def visit(stage: Stage) -> None:
        if stage.name not in needed:
            needed.add(stage.name)
            for other in stage.inputs.values():
                visit(other)

    for name in _matching(run, until):
        visit(run.stages[name])
    return [name for name in run.stages if name in needed]


def _with_dependents(run: Run, names: Sequence[str]) -> list[str]:
    """These stages and everything that was made from them."""
    found = set(names)
    for name, stage in run.stages.items():  # inputs come first
        if any(needed.name in found for needed in stage.inputs.values()):
            found.add(name)
    return [name for name in run.stages if name in found]


def _matching(run: Run, pattern: str) -> list[str]:
    """Stages of this name or kind; `policy[*]` and the like match too."""
    found = [
        name
        for name, stage in run.stages.items()
        if name == pattern
        or stage.kind.name == pattern
        or fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
    ]
    if not found:
        raise UserError(f"this recipe has no stage '{pattern}'; {did_you_mean(pattern, run.stages)}")
    return found
