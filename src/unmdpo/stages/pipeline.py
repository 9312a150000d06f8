"""A recipe's stages in a store: which are finished, which are wanted, and which artifacts belong together."""

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from transformers.utils.logging import disable_progress_bar

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import read_small_json, remove, write_json, write_text
from unmdpo.engine.ranks import device_name
from unmdpo.recipe import Recipe
from unmdpo.stages.borrowed import borrowed_scale
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.table import KINDS
from unmdpo.store.artifact import Artifact
from unmdpo.store.fingerprints import Fingerprints, written_to
from unmdpo.store.store import RECORD, Store, state_of

RECIPE = "recipe.yaml"


@dataclass(frozen=True, repr=False)
class Pipeline:
    store: Store
    recipe: Recipe
    stages: Mapping[str, Stage[Any]]  # by name, inputs first

    @property
    def folder(self) -> Path:
        return self.store.root / "runs" / f"{self.recipe.name}-{self.recipe.digest[:12]}"

    def find(self, stage: Stage[Any]) -> Artifact | None:
        return self.store.find(stage.place)

    def artifact(self, name: str) -> Artifact:
        if name not in self.stages:
            raise UserError(f"this run has no stage '{name}'; {did_you_mean(name, self.stages)}")
        finished = self.find(self.stages[name])
        if finished is None:
            other = " with these files and this version of unmdpo: `unmdpo run` makes it again"
            raise UserError(f"stage '{name}' is not finished{other if self.superseded else f' yet{self.others}'}")
        return finished

    @property
    def finished(self) -> dict[str, Artifact]:
        artifacts = {name: self.find(stage) for name, stage in self.stages.items()}
        return {name: artifact for name, artifact in artifacts.items() if artifact is not None}

    def has(self, kind: Kind[Any], *parts: str) -> bool:
        """Whether a stage of this kind is part of the run and finished."""
        stage = self.stages.get(kind.stage_name(*parts))
        return stage is not None and self.find(stage) is not None

    def inputs_of(self, stage: Stage[Any]) -> dict[str, Artifact]:
        """The finished artifacts that a stage needs."""
        artifacts = {name: self.find(needed) for name, needed in stage.inputs.items()}
        for name, artifact in artifacts.items():
            if artifact is None:
                raise UserError(f"'{stage.name}' needs '{stage.inputs[name].name}', which is not finished")
        return {name: artifact for name, artifact in artifacts.items() if artifact is not None}

    @property
    def superseded(self) -> bool:
        """Whether the last run of this recipe here had finished stages that are to be made again."""
        try:
            stages = read_small_json(self.folder / RECORD)["stages"]
            former = {name: str(stages[name]["place"]) for name in self.stages if name in stages}
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return any(
            place != self.stages[name].place and self.store.find(place) is not None for name, place in former.items()
        )

    @property
    def others(self) -> str:
        """The latest other run of that name, for those who forgot the settings that they gave on the command line."""
        records = (self.store.root / "runs").glob(f"{self.recipe.name}-*/{RECORD}")
        runs = {record.stat().st_mtime: record.parent for record in records if record.parent != self.folder}
        return f"; another run of this name, with other settings, is {runs[max(runs)]}" if runs else ""

    def record(self) -> None:
        """Writes down which artifacts belong to the run, for people and for `verify`, and the question that it will
        answer first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / RECIPE, self.recipe.to_yaml())
        stages = {
            name: {"place": stage.place, "inputs": {k: s.place for k, s in stage.inputs.items()}}
            for name, stage in self.stages.items()
        }
        primary = None if self.recipe.evaluation is None else self.recipe.primary.model_dump()
        with self.store.records():
            write_json(self.folder / RECORD, {"recipe": self.recipe.digest, "primary": primary, "stages": stages})

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

        def visit(stage: Stage[Any]) -> None:
            if stage.name not in needed:
                needed.add(stage.name)
                for other in stage.inputs.values():
                    visit(other)

        for pattern in _several(until):
            for name in self.matching(pattern):
                visit(self.stages[name])
        return [name for name in self.stages if name in needed]

    def with_dependents(self, names: Sequence[str]) -> list[str]:
        """These stages and everything that depends on them."""
        affected = set(names)
        for name, stage in self.stages.items():  # inputs come first
            if any(needed.name in affected for needed in stage.inputs.values()):
                affected.add(name)
        return [name for name in self.stages if name in affected]

    def make(self, stage: Stage[Any], report: Callable[[str], None]) -> Artifact:
        """Runs one stage in this process, unless it is finished; its inputs must be."""
        disable_progress_bar()  # type: ignore[no-untyped-call]  # stages report their own progress
        inputs = self.inputs_of(stage)

        def work(folder: Path) -> Notes:
            notes = self.job(stage, folder, inputs, report).do()
            written = written_to(stage.settings.model_dump(mode="json"))
            if written is not None:
                remove(state_of(folder))
                raise UserError(
                    f"{written} was written to since this run read it for '{stage.name}', whose result is therefore "
                    "not kept: run the same command again"
                )
            return notes

        return self.store.make(stage.place, self.manifest(stage, inputs), work)

    def job(
        self, stage: Stage[Any], folder: Path, inputs: Mapping[str, Artifact], report: Callable[[str], None]
    ) -> Job[Any]:
        return Job(stage, folder, inputs, self.recipe.compute, report, self.store.proofs, self.recipe.logging)

    def manifest(self, stage: Stage[Any], inputs: Mapping[str, Artifact]) -> dict[str, Any]:
        """The part of a manifest that is known before the work starts."""
        return {
            "kind": stage.kind.name,
            "name": stage.name,
            "code": stage.kind.code,
            "key": stage.key,
            "settings": stage.settings.model_dump(mode="json"),
            "device": device_name(),
            "ranks": self.ranks(stage),
            "inputs": {
                name: {"place": stage.inputs[name].place, "digest": artifact.digest}
                for name, artifact in inputs.items()
            },
        }

    def with_microbatch(self, tokens: int | None) -> Self:
        """The same run with microbatches of this many tokens, if given."""
        if tokens is None:
            return self
        compute = self.recipe.compute.model_copy(update={"token_budget": tokens})
        return replace(self, recipe=self.recipe.model_copy(update={"compute": compute}))

    def is_ready(self, name: str) -> bool:
        """Whether all inputs of a stage are finished."""
        return all(self.find(needed) is not None for needed in self.stages[name].inputs.values())

    def ranks(self, stage: Stage[Any]) -> int:
        """How many ranks share this stage."""
        compute, kind = self.recipe.compute, stage.kind
        if kind.ranked == "never":
            return 1
        return compute.ranks_of.get(kind.name, compute.ranks if kind.ranked == "by default" else 1)

    def nothing_finished(self) -> UserError:
        """Why there is nothing to look at."""
        start = f"nothing of '{self.recipe.name}' is finished in {self.store.root}"
        if any((self.store.root / "runs").glob(f"{self.recipe.name}-*/{RECORD}")):
            return UserError(
                f"{start} with this recipe, these files and this version of unmdpo. A run of that name was made with "
                "others, such as version 0.1 or 0.2: `unmdpo run` makes it again, or use that version to look at it"
            )
        return UserError(f"{start}: start it with `unmdpo run`")


def built(recipe: Recipe, store: Store, *, planning: bool = False, rehash: bool = False) -> dict[str, Stage[Any]]:
    """Every stage of a recipe by its name, inputs first. With `planning`, scales borrowed from other runs may be
    missing; with `rehash`, all input files are read again."""
    borrowed = {
        name: borrowed_scale(recipe, store, name, planning)
        for name, scale in recipe.scales.items()
        if scale.run is not None
    }
    graph = Graph(recipe, Fingerprints(store, anew=rehash), borrowed)
    for kind in KINDS.values():
        if kind.wanted is not None:
            kind.wanted(graph)
    graph.fingerprints.save()
    return graph.stages


def open_pipeline(recipe: Recipe, store: Store) -> Pipeline:
    return Pipeline(store, recipe, built(recipe, store))


def _several(patterns: str) -> list[str]:
    """Between commas, but for those in brackets."""
    return re.split(r",(?![^\[]*\])", patterns)
