"""A recipe's stages in a store: which are finished, which are wanted, and which artifacts belong together."""

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from transformers.utils.logging import disable_progress_bar

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import remove, write_json, write_text
from unmdpo.core.places import places_in
from unmdpo.engine.models import compute_dtype
from unmdpo.engine.ranks import device_name, local_device
from unmdpo.recipe import Recipe
from unmdpo.stages.shared.base import Job, Kind, Notes, Stage
from unmdpo.store.artifact import Artifact
from unmdpo.store.keys import digest_of
from unmdpo.store.pins import Contents, FileState, Pins, changed_place, file_states
from unmdpo.store.runs import RECIPE
from unmdpo.store.store import RECORD, Store, state_of, versions

SETTINGS = "recipe.json"  # in a run's folder: the recipe with every default


@dataclass(frozen=True, repr=False)
class Pipeline:
    store: Store
    recipe: Recipe
    stages: Mapping[str, Stage]  # by name, inputs first
    pins: Pins
    forced: Mapping[str, str] = field(default_factory=dict)  # stages that are made again → what marks the new result
    recorded: bool = False  # opened to be read: what it needs may be gone
    remarks: tuple[str, ...] = ()  # which commits names on the Hub stand for, where nobody asked the Hub
    name: str = ""  # of its folder, where that is not to be worked out

    @property
    def folder(self) -> Path:
        """Named by the recipe and by what lay in its places: two runs are one only if both are equal."""
        identity = digest_of([self.recipe.digest, self.pins.digests])
        return self.store.root / "runs" / (self.name or f"{self.recipe.name}-{identity[:12]}")

    def find(self, stage: Stage) -> Artifact | None:
        """The finished artifact of a stage: finished for the inputs that lie there now."""
        return self._find(stage, {})

    def _find(self, stage: Stage, known: dict[str, Artifact | None]) -> Artifact | None:
        if stage.place not in known:
            artifact = self.store.find(stage.place)
            known[stage.place] = artifact if artifact is not None and self._fits(stage, artifact, known) else None
        return known[stage.place]

    def _fits(self, stage: Stage, artifact: Artifact, known: dict[str, Artifact | None]) -> bool:
        """Whether an artifact was made from the inputs that lie there now. Those of a borrowed scale belong to another
        run."""
        if stage.name not in self.stages or not artifact.intact:
            return True  # whoever reads a damaged one says so
        if stage.name in self.forced and artifact.manifest.get("forced") != self.forced[stage.name]:
            return False
        for role, needed in stage.inputs.items():
            current = self._find(needed, known)
            if current is None and self.recorded and self.store.find(needed.place) is None:
                continue  # removed since; nothing speaks against the result
            if current is None or current.digest != artifact.manifest["inputs"].get(role, {}).get("digest"):
                return False
        return True

    def artifact(self, name: str) -> Artifact:
        if name not in self.stages:
            raise UserError(f"this run has no stage '{name}'; {did_you_mean(name, self.stages)}")
        artifact = self.find(self.stages[name])
        if artifact is None:
            replaced = self.store.find(self.stages[name].place) is not None
            why = "was made from other inputs than lie there now: `unmdpo run` makes it again"
            raise UserError(f"stage '{name}' {why if replaced else 'is not finished yet'}")
        return artifact

    @property
    def finished(self) -> dict[str, Artifact]:
        known: dict[str, Artifact | None] = {}
        artifacts = {name: self._find(stage, known) for name, stage in self.stages.items()}
        return {name: artifact for name, artifact in artifacts.items() if artifact is not None}

    def has(self, kind: Kind, *parts: str) -> bool:
        """Whether a stage of this kind is part of the run and finished."""
        stage = self.stages.get(kind.stage_name(*parts))
        return stage is not None and self.find(stage) is not None

    def inputs_of(self, stage: Stage) -> dict[str, Artifact]:
        """The finished artifacts that a stage needs."""
        artifacts: dict[str, Artifact] = {}
        for role, needed in stage.inputs.items():
            artifact = self.find(needed)
            if artifact is None:
                raise UserError(f"'{stage.name}' needs '{needed.name}', which is not finished")
            artifacts[role] = artifact
        return artifacts

    def record(self) -> None:
        """Writes down what the run is: its recipe, what its places and Hub names stood for, the code, the stages, and
        the question that it will answer first. Whoever works on it or reads it later takes all of this from here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / RECIPE, self.recipe.to_yaml())  # for people
        write_text(self.folder / SETTINGS, self.recipe.model_dump_json(indent=1))  # keeps the order
        stages = {
            name: {"place": stage.place, "inputs": {role: needed.place for role, needed in stage.inputs.items()}}
            for name, stage in self.stages.items()
        }
        record = {
            "recipe": self.recipe.digest,
            "primary": None if self.recipe.evaluation is None else self.recipe.primary.model_dump(),
            "inputs": self.pins.digests,
            "code": {stage.kind.name: stage.code for stage in self.stages.values()},
            "versions": versions(),
            "forced": dict(self.forced),
            "stages": stages,
        }
        with self.store.records():
            write_json(self.folder / RECORD, record)

    def matching(self, pattern: str) -> list[str]:
        """The stages with this name or kind, or matching a pattern such as `policy[*]`."""
        names = [
            name
            for name, stage in self.stages.items()
            if name == pattern or stage.kind.name == pattern or fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
        ]
        if not names:
            raise UserError(f"this recipe has no stage '{pattern}'; {did_you_mean(pattern, self.stages)}")
        return names

    def wanted(self, until: str | None = None, only: str | None = None) -> list[str]:
        """All stages; or those matching `until` and everything they need; or just those matching `only`. Several with
        commas."""
        if only is not None:
            chosen = {name for pattern in _several(only) for name in self.matching(pattern)}
            return [name for name in self.stages if name in chosen]
        if until is None:
            return [*self.stages]
        needed: set[str] = set()

        def visit(stage: Stage) -> None:
            if stage.name not in needed:
                needed.add(stage.name)
                for other in stage.inputs.values():
                    visit(other)

        for pattern in _several(until):
            for name in self.matching(pattern):
                visit(self.stages[name])
        return [name for name in self.stages if name in needed]

    def make(self, stage: Stage, report: Callable[[str], None]) -> Artifact:
        """Runs one stage in this process, unless it is finished; its inputs must be."""
        disable_progress_bar()  # type: ignore[no-untyped-call]  # stages report their own progress
        inputs = self.inputs_of(stage)

        def work(folder: Path) -> Notes:
            return self.job(stage, folder, inputs, report).do()

        return self.seal(stage, inputs, work)

    def seal(
        self, stage: Stage, inputs: Mapping[str, Artifact], work: Callable[[Path], Mapping[str, Any]]
    ) -> Artifact:
        """Has `work` make the stage's result, and keeps it only if code and files are what the run began with."""

        def checked(folder: Path) -> Mapping[str, Any]:
            contents = Contents(self.store)
            other = changed_place(stage.settings, contents)
            contents.save()
            if other is not None:
                raise UserError(f"{other} is not what it was when this run began: run the same command again")
            before = file_states(stage.settings)
            notes = work(folder)
            problem = self._changed_meanwhile(stage, before)
            if problem:
                remove(state_of(folder))
                raise UserError(f"{problem}, so the result of '{stage.name}' is not kept: run the same command again")
            return notes

        def is_current(artifact: Artifact) -> bool:
            return self._fits(stage, artifact, {})

        return self.store.make(stage.place, self.manifest(stage, inputs), checked, is_current)

    def _changed_meanwhile(self, stage: Stage, before: Mapping[Path, FileState]) -> str:
        """What was written to while the stage was at work; also if its content was put back, since nobody knows what
        was read meanwhile."""
        after = file_states(stage.settings)
        written = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        if written:
            return f"{written[0]} was written to meanwhile"
        if stage.kind.code != stage.code:
            return "the code of unmdpo is not what it was when this run began"
        return ""

    def job(self, stage: Stage, folder: Path, inputs: Mapping[str, Artifact], report: Callable[[str], None]) -> Job:
        return Job(stage, folder, inputs, self.recipe.compute, report, self.store.proofs, self.recipe.logging)

    def manifest(self, stage: Stage, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
        """The part of a manifest that is known before the work starts."""
        return {
            "kind": stage.kind.name,
            "name": stage.name,
            "code": stage.kind.code,
            "key": stage.key,
            "settings": stage.settings.model_dump(mode="json"),
            "device": device_name(),
            "precision": str(compute_dtype(local_device())).removeprefix("torch."),
            "content": {key: place.digest for key, place in places_in(stage.settings)},
            "ranks": self.ranks(stage),
            "inputs": {
                name: {"place": stage.inputs[name].place, "digest": artifact.digest}
                for name, artifact in inputs.items()
            },
        } | ({"forced": self.forced[stage.name]} if stage.name in self.forced else {})

    def with_microbatch(self, tokens: int | None) -> Self:
        """The same run with microbatches of this many tokens, if given."""
        if tokens is None:
            return self
        compute = self.recipe.compute.model_copy(update={"token_budget": tokens})
        recipe = self.recipe.model_copy(update={"compute": compute})
        return replace(self, recipe=recipe, name=self.folder.name)  # ranks open the record that is there

    def is_ready(self, name: str) -> bool:
        """Whether all inputs of a stage are finished."""
        return all(self.find(needed) is not None for needed in self.stages[name].inputs.values())

    def ranks(self, stage: Stage) -> int:
        """How many ranks share this stage."""
        compute, kind = self.recipe.compute, stage.kind
        if kind.ranked == "never":
            return 1
        return compute.ranks_of.get(kind.name, compute.ranks if kind.ranked == "by default" else 1)

    def nothing_finished(self) -> UserError:
        """Why there is nothing to look at."""
        return UserError(
            f"nothing of '{self.recipe.name}' is finished in {self.store.root}: start it with `unmdpo run`"
        )


def _several(patterns: str) -> list[str]:
    """Between commas, but for those in brackets."""
    return re.split(r",(?![^\[]*\])", patterns)
