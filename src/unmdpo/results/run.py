"""A run and its results: policies, scales, answers, tables."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.data import Comparison
from unmdpo.engine.settings import ModelSource
from unmdpo.recipe import Recipe
from unmdpo.recipe.seeds import TrainingRun
from unmdpo.results.policy import Policy
from unmdpo.results.scale import FittedScale
from unmdpo.results.tables import Table, answer, doubts, judge_accuracy, judge_mark
from unmdpo.results.worlds import world_differences
from unmdpo.scale.check import Check
from unmdpo.stages.comparisons import COMPARISONS_STAGE
from unmdpo.stages.generation import GENERATION_STAGE
from unmdpo.stages.judge import JUDGE_STAGE
from unmdpo.stages.judgement import judgement_name, load_scores
from unmdpo.stages.measured import MEASURED_STAGE
from unmdpo.stages.opening import build, latest_record, read_record
from unmdpo.stages.panel import PANEL_STAGE
from unmdpo.stages.pilot import OOF_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.policy import POLICY_STAGE
from unmdpo.stages.scale import CHECK_STAGE, SCALE_STAGE
from unmdpo.stages.shared.files import (
    CHECK,
    COMPARISONS,
    EVIDENCE,
    GENERATIONS,
    METRICS,
    MODEL,
    PANEL,
    SCORES,
    SUMMARY,
    Evidence,
    Panel,
)
from unmdpo.stages.summary import SUMMARY_STAGE, compare_runs
from unmdpo.stats.evaluation import Outcome, Resamples
from unmdpo.store.store import Store


@dataclass(frozen=True, repr=False)
class Run(Pipeline):
    """A recipe's stages in a store, and what came out of them."""

    def __repr__(self) -> str:
        """What there is of it, and how the policies did."""
        lines = [f"Run {self.recipe.name}: {len(self.finished)} of {len(self.stages)} stages finished, {self.folder}"]
        return "\n".join(lines + (self.table().lines() if self.summarized else []))

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = html.escape(repr(self).partition("\n")[0])
        return f"<p>{head}</p>{self.table()._repr_html_() if self.summarized else ''}"

    @property
    def summarized(self) -> bool:
        return self.has(SUMMARY_STAGE)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Panel → its numbers; panels and judges in the recipe's order."""
        made, evaluation = SUMMARY.load(self.artifact(SUMMARY_STAGE.name)), self.recipe.evaluation
        assert evaluation is not None
        return {
            panel: made[panel] | {"judges": {name: made[panel]["judges"][name] for name in evaluation.all_judges}}
            for panel in evaluation.answered
        }

    def policy(self, name: str) -> Policy:
        """The policy's folder, for `from_pretrained`, which also answers: `generate(["…"])`. Of one training,
        `dpo@17`, if it has several."""
        self._one_training(name)
        folder = MODEL.load(self.artifact(POLICY_STAGE.stage_name(name)))
        adapter = self.stages[POLICY_STAGE.stage_name(name)].settings.training.adapter
        return Policy.at(folder, self.initial, adapter is not None and adapter.four_bit)

    @property
    def initial(self) -> ModelSource:
        return self.recipe.model

    def comparisons(self) -> Sequence[Comparison]:
        """The training comparisons."""
        return COMPARISONS.load(self.artifact(COMPARISONS_STAGE.name))

    def panel(self, name: str) -> Panel:
        return PANEL.load(self.artifact(PANEL_STAGE.stage_name(name)))

    def scale(self, name: str) -> FittedScale:
        """A fitted scale: `predict(prompts)` returns q for any prompts."""
        artifact, stage = self.artifact(SCALE_STAGE.stage_name(name)), self.stages[SCALE_STAGE.stage_name(name)]
        features = stage.inputs.get("features")
        model = None if features is None else features.settings.model
        comparisons, domains = self.inputs_of(stage)["comparisons"], stage.settings.estimator.domains
        return FittedScale(name, artifact, comparisons, model, domains)

    def check(self, scale: str) -> Check | None:
        """The check of a scale on unseen prompts, if it is finished."""
        return CHECK.load(self.artifact(CHECK_STAGE.stage_name(scale))) if self.has(CHECK_STAGE, scale) else None

    def evidence(self, scale: str) -> list[Evidence]:
        """The out-of-fold values that a scale was fitted to, one for each seed of the pilots; none without pilots."""
        stage = self.stages[SCALE_STAGE.stage_name(scale)]
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
    def judge_lines(self) -> list[str]:
        """The accuracy of the judges that were trained or measured in this run."""
        kinds = (JUDGE_STAGE, MEASURED_STAGE)
        made = [(name, found) for name, found in self.finished.items() if self.stages[name].kind in kinds]
        return [judge_accuracy(name, found.manifest["notes"]) for name, found in made]

    @property
    def held_out_accuracy(self) -> dict[str, float]:
        """Policy → the share of validation pairs that its rewards order as labelled, where that was measured."""
        stages = {name: POLICY_STAGE.stage_name(name) for name in self.recipe.trained}
        last = {
            name: METRICS.load(self.artifact(stage))[-1] for name, stage in stages.items() if stage in self.finished
        }
        key = "eval_rewards/accuracies"
        return {name: metrics[key] for name, metrics in last.items() if key in metrics}

    @cached_property
    def judge_marks(self) -> dict[str, str]:
        """What a reader should know about each judge whose accuracy does not speak for it."""
        marks = dict[str, str]()
        for name in [] if self.recipe.evaluation is None else self.recipe.evaluation.all_judges:
            stages = (kind.stage_name(*([name] if name else [])) for kind in (JUDGE_STAGE, MEASURED_STAGE))
            made = next((self.finished[stage] for stage in stages if stage in self.finished), None)
            marks[name] = "a judge that was not measured here" if made is None else judge_mark(made.manifest["notes"])
        return marks

    def doubts(self, panel: str) -> list[str]:
        """What makes a panel's numbers hard to believe."""
        evaluation = self.recipe.evaluation
        assert evaluation is not None
        names = [GENERATION_STAGE.stage_name(run.name, panel) for runs in self.recipe.runs.values() for run in runs]
        cut_off = [
            self.finished[name].manifest["notes"].get("unfinished", 0) for name in names if name in self.finished
        ]
        each = len(self.panel(panel)) * (evaluation.sampling.samples if evaluation.sampling else 1)
        return [*doubts(self.summary[panel], sum(cut_off), each * len(cut_off))]

    @property
    def world_differences(self) -> list[str]:
        """Where policies of one table were trained, answered or judged with other libraries, devices or precisions."""
        return world_differences(self)

    @property
    def answer(self) -> str | None:
        """The answer to the primary question, in a sentence or two."""
        if not self.summarized:
            return None
        asked = self.recipe.primary
        trainings = {name: None if runs[0].seed is None else len(runs) for name, runs in self.recipe.runs.items()}
        return answer(self.summary, asked, trainings, self.judge_marks[asked.judge or ""])

    def generations(self, policy: str, panel: str, judge: str | None = None) -> list[dict[str, Any]]:
        """A policy's answers on a panel, with a judge's scores; of one training, `dpo@17`, if it has several. The
        samples of a prompt stand one after another."""
        self._one_training(policy)
        answers = GENERATIONS.load(self.artifact(GENERATION_STAGE.stage_name(policy, panel)))
        scores = SCORES.load(self.artifact(judgement_name(policy, panel, self.main_judge if judge is None else judge)))
        asked = self.panel(panel)
        samples = range(len(answers) // len(asked))
        drawn = [(*each, sample) for each in zip(asked.prompts, asked.ids, strict=True) for sample in samples]
        return [
            {"prompt": prompt, "id": name, "sample": sample, "text": row["text"]}
            | {"score": score["score"], "finished": row["finished"]}
            for (prompt, name, sample), row, score in zip(drawn, answers, scores, strict=True)
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
            training.name: load_scores(self.artifact(judgement_name(training.name, panel, judge)), prompts)
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

    def _trainings(self, candidate: str) -> list[TrainingRun]:
        runs = self.recipe.runs
        if candidate in runs:
            return runs[candidate]
        single = {training.name: [training] for trainings in runs.values() for training in trainings}
        if candidate not in single:
            raise UserError(f"'{candidate}' is not a policy; {did_you_mean(candidate, [*runs, *single])}")
        return single[candidate]


def open_run(recipe: Recipe, store: Store, *, planning: bool = False, update: bool = False) -> Run:
    """A recipe's run with its files as they are now, finished or not. With `planning`, scales borrowed from other runs
    may be missing; with `update`, the Hub is asked again what names stand for."""
    return _as_run(build(recipe, store, planning=planning, update=update))


def read_run(store: Store, folder: Path) -> Run:
    """A run as its record says: what it was made from may be gone."""
    return _as_run(replace(read_record(store, folder), recorded=True))


def read_latest_run(recipe: Recipe, store: Store) -> Run:
    """The latest run of exactly this recipe."""
    folder = latest_record(recipe, store)
    if folder is None:
        raise UserError(f"{store.root} has no run of this recipe ('{recipe.name}'): start it with `unmdpo run`")
    return read_run(store, folder)


def _as_run(pipeline: Pipeline) -> Run:
    return Run(**{part.name: getattr(pipeline, part.name) for part in fields(pipeline)})
