"""A recipe's stages in a store: what is finished, its results, and which artifacts belong together."""

import fnmatch
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unmdpo.data import Comparison
from unmdpo.engine.settings import ModelSource
from unmdpo.errors import UserError, did_you_mean
from unmdpo.files import write_json, write_text
from unmdpo.pipeline.artifacts import (
    CHECK,
    COMPARISONS,
    EVIDENCE,
    GENERATIONS,
    MODEL,
    PANEL,
    SCORES,
    SUMMARY,
    Evidence,
    Panel,
)
from unmdpo.pipeline.borrowed import RECORD, borrowed_scale
from unmdpo.pipeline.fingerprint import Fingerprints
from unmdpo.pipeline.fitted import FittedScale
from unmdpo.pipeline.speaking import Policy
from unmdpo.pipeline.stage import CONVERTED, Kind, Stage
from unmdpo.pipeline.stages import build
from unmdpo.pipeline.stages.answers import GENERATION_STAGE
from unmdpo.pipeline.stages.checks import CHECK_STAGE
from unmdpo.pipeline.stages.data import COMPARISONS_STAGE, PANEL_STAGE
from unmdpo.pipeline.stages.evaluation import judged, judgement_name
from unmdpo.pipeline.stages.judges import JUDGE_STAGE
from unmdpo.pipeline.stages.pilots import OOF_STAGE
from unmdpo.pipeline.stages.policies import POLICY_STAGE
from unmdpo.pipeline.stages.scales import SCALE_STAGE
from unmdpo.pipeline.stages.summary import SUMMARY_STAGE, compare_runs
from unmdpo.pipeline.store import Artifact, Store
from unmdpo.pipeline.told import Table, worth_of_judge
from unmdpo.recipe import Recipe
from unmdpo.recipe.seeds import Trained
from unmdpo.scale.check import Check
from unmdpo.stats.evaluation import Outcome, Resamples

RECIPE = "recipe.yaml"


@dataclass(frozen=True, repr=False)
class Run:
    store: Store
    recipe: Recipe
    stages: Mapping[str, Stage[Any]]

    def __repr__(self) -> str:
        """What there is of it, and how the policies did."""
        lines = [f"Run {self.recipe.name}: {len(self.finished)} of {len(self.stages)} stages finished, {self.folder}"]
        return "\n".join(lines + (self.table().lines() if self.summarized else []))

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = html.escape(repr(self).partition("\n")[0])
        return f"<p>{head}</p>{self.table()._repr_html_() if self.summarized else ''}"

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
            raise UserError(f"stage '{name}' is not finished yet")
        return finished

    @property
    def finished(self) -> dict[str, Artifact]:
        artifacts = {name: self.find(stage) for name, stage in self.stages.items()}
        return {name: artifact for name, artifact in artifacts.items() if artifact is not None}

    def has(self, kind: Kind[Any], *parts: str) -> bool:
        """Whether a stage of this kind is part of the run and finished."""
        stage = self.stages.get(kind.called(*parts))
        return stage is not None and self.find(stage) is not None

    @property
    def summarized(self) -> bool:
        return self.has(SUMMARY_STAGE)

    def inputs_of(self, stage: Stage[Any]) -> dict[str, Artifact]:
        """The finished artifacts that a stage needs."""
        artifacts = {name: self.find(needed) for name, needed in stage.inputs.items()}
        for name, artifact in artifacts.items():
            if artifact is None:
                raise UserError(f"'{stage.name}' needs '{stage.inputs[name].name}', which is not finished")
        return {name: artifact for name, artifact in artifacts.items() if artifact is not None}

    @cached_property
    def summary(self) -> dict[str, Any]:
        return SUMMARY.load(self.artifact(SUMMARY_STAGE.name))

    def policy(self, name: str) -> Policy:
        """The policy's folder, for `from_pretrained`, which also answers: `generate(["…"])`. Of one training,
        `dpo@17`, if it has several."""
        self._one_training(name)
        folder = MODEL.load(self.artifact(POLICY_STAGE.called(name)))
        adapter = self.stages[POLICY_STAGE.called(name)].settings.training.adapter
        return Policy.at(folder, self.initial, adapter is not None and adapter.four_bit)

    @property
    def initial(self) -> ModelSource:
        """The initial model: its converted copy, if there is one."""
        stage, model = self.stages.get(CONVERTED), self.recipe.model
        finished = None if stage is None else self.find(stage)
        return model if finished is None else model.located(str(MODEL.load(finished)))

    def comparisons(self) -> Sequence[Comparison]:
        """The training comparisons."""
        return COMPARISONS.load(self.artifact(COMPARISONS_STAGE.name))

    def panel(self, name: str) -> Panel:
        return PANEL.load(self.artifact(PANEL_STAGE.called(name)))

    def scale(self, name: str) -> FittedScale:
        """A fitted scale: `predict(prompts)` returns q for any prompts."""
        artifact, stage = self.artifact(SCALE_STAGE.called(name)), self.stages[SCALE_STAGE.called(name)]
        features, model = stage.inputs.get("features"), None
        if features is not None:
            inputs = self.inputs_of(features)
            model = features.settings.model
            if CONVERTED in inputs:
                model = model.located(str(MODEL.load(inputs[CONVERTED])))
        comparisons, domains = self.inputs_of(stage)["comparisons"], stage.settings.estimator.domains
        return FittedScale(name, artifact, comparisons, model, domains)

    def check(self, scale: str) -> Check | None:
        """Whether a scale is real, if that has been checked."""
        return CHECK.load(self.artifact(CHECK_STAGE.called(scale))) if self.has(CHECK_STAGE, scale) else None

    def evidence(self, scale: str) -> list[Evidence]:
        """The out-of-fold values that a scale was fitted to, one for each seed of the pilots; none without pilots."""
        stage = self.stages[SCALE_STAGE.called(scale)]
        found = [self.find(needed) for needed in stage.inputs.values() if needed.kind is OOF_STAGE]
        return [EVIDENCE.load(artifact) for artifact in found if artifact is not None]

    def table(self) -> Table:
        """One row per panel, judge, opponent and policy: the main numbers with their intervals, over all seeds; and,
        where there are several, one row for each `seed`. `table().pandas()` is a data frame."""
        return Table.of(self.summary)

    @property
    def main_judge(self) -> str:
        """The judge that selects."""
        assert self.recipe.evaluation is not None
        return next(iter(self.recipe.evaluation.all_judges))

    @property
    def judges_told(self) -> list[str]:
        """What the judges are worth that were trained for this run."""
        made = [(name, found) for name, found in self.finished.items() if self.stages[name].kind is JUDGE_STAGE]
        return [worth_of_judge(name, found.manifest["notes"]) for name, found in made]

    def generations(self, policy: str, panel: str, judge: str | None = None) -> list[dict[str, Any]]:
        """A policy's answers on a panel, with a judge's scores; of one training, `dpo@17`, if it has several."""
        self._one_training(policy)
        answers = GENERATIONS.load(self.artifact(GENERATION_STAGE.called(policy, panel)))
        scores = SCORES.load(self.artifact(judgement_name(policy, panel, self.main_judge if judge is None else judge)))
        return [
            {"prompt": prompt, "text": row["text"], "score": score["score"], "finished": row["finished"]}
            for prompt, row, score in zip(self.panel(panel).prompts, answers, scores, strict=True)
        ]

    def compare(self, candidate: str, opponent: str, panel: str, judge: str | None = None) -> Outcome:
        """Compares any two policies directly, on the same prompts and resamples as the summary: over all their seeds,
        or one training, such as `dpo@17`."""
        return self.compare_all(candidate, opponent, panel, judge)[0]

    def compare_all(
        self, candidate: str, opponent: str, panel: str, judge: str | None = None
    ) -> tuple[Outcome, dict[str, Any]]:
        """The same with each seed and the win rate at equal length."""
        judge = self.main_judge if judge is None else judge
        prompts, sides = self.panel(panel), (self._trainings(candidate), self._trainings(opponent))
        known = {
            training.name: judged(self.artifact(judgement_name(training.name, panel, judge)), prompts)
            for side in sides
            for training in side
        }
        try:
            return compare_runs(known, *sides, Resamples.draw(len(prompts), self.recipe.seed))
        except ValueError as error:
            raise UserError(f"{candidate} and {opponent}: {error}") from error

    def _one_training(self, candidate: str) -> None:
        names = [training.name for training in self.recipe.runs.get(candidate, [])]
        if len(names) > 1:
            raise UserError(f"'{candidate}' was trained with several seeds; name one: {', '.join(names)}")

    def _trainings(self, candidate: str) -> list[Trained]:
        runs = self.recipe.runs
        if candidate in runs:
            return runs[candidate]
        single = {training.name: [training] for trainings in runs.values() for training in trainings}
        if candidate not in single:
            raise UserError(f"'{candidate}' is not a policy; {did_you_mean(candidate, [*runs, *single])}")
        return single[candidate]

    @property
    def superseded(self) -> bool:
        """Whether the last run of this recipe here had finished stages that are to be made again."""
        try:
            stages = json.loads((self.folder / RECORD).read_text("utf-8"))["stages"]
            former = {name: str(stages[name]["place"]) for name in self.stages if name in stages}
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return any(
            place != self.stages[name].place and self.store.find(place) is not None for name, place in former.items()
        )

    def record(self) -> None:
        """Writes down which artifacts belong to the run, for people and for `verify`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / RECIPE, self.recipe.to_yaml())
        stages = {
            name: {"place": stage.place, "inputs": {k: s.place for k, s in stage.inputs.items()}}
            for name, stage in self.stages.items()
        }
        with self.store.records():
            write_json(self.folder / RECORD, {"recipe": self.recipe.digest, "stages": stages})

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


def _several(patterns: str) -> list[str]:
    """Between commas, but for those in brackets."""
    return re.split(r",(?![^\[]*\])", patterns)


def ranks_of(run: Run, stage: Stage[Any]) -> int:
    """How many ranks share this stage."""
    compute, kind = run.recipe.compute, stage.kind
    if kind.ranked == "never":
        return 1
    return compute.ranks_of.get(kind.name, compute.ranks if kind.ranked == "by default" else 1)


def open_run(recipe: Recipe, store: Store, *, planning: bool = False, rehash: bool = False) -> Run:
    """Opens a recipe's run, finished or not. With `planning`, scales borrowed from other runs may be missing; with
    `rehash`, all its input files are read again."""
    borrowed = {
        name: borrowed_scale(store, scale.run, name, planning)
        for name, scale in recipe.scales.items()
        if scale.run is not None
    }
    fingerprints = Fingerprints(store, anew=rehash)
    stages = build(recipe, fingerprints, borrowed)
    fingerprints.save()
    return Run(store, recipe, stages)
