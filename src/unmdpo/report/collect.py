"""The facts for a report, collected from a run's artifacts: plain values, nothing drawn yet."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmdpo.data.identity import Prompt
from unmdpo.data.table import prompt_of
from unmdpo.execute.row_counts import RowCounts, count_rows
from unmdpo.results.run import Run
from unmdpo.scale.check import verdict
from unmdpo.scale.table import ESTIMATORS
from unmdpo.stages.judgement import judgement_name
from unmdpo.stages.policy import POLICY_STAGE
from unmdpo.stages.scale import SCALE_STAGE, residuals
from unmdpo.stages.shared.files import METRICS, POLICY_SCALE, Evidence
from unmdpo.stats.evaluation import Estimate, rank_correlation

Truth = Callable[[Prompt], float]  # q* of a prompt, in a world that knows it
CURVES = ("loss", "rewards/accuracies", "eval_loss", "eval_rewards/accuracies", "rewards/margins", "logps/chosen")


@dataclass(frozen=True)
class ScaleFacts:
    """A fitted scale, one entry per prompt, most certain first."""

    name: str
    texts: list[str]
    domains: list[str]
    q: list[float]
    true: list[float] | None
    residual: list[float]  # mean of c − B over a prompt's comparisons; empty if no pilots were used
    strength: list[float]  # mean over a prompt's comparisons
    verdict: str = ""  # what its check found, in words; empty if it was not checked

    @property
    def agreement(self) -> Estimate | None:
        """How well q̂ ranks q*."""
        return None if self.true is None else rank_correlation(self.q, self.true)


@dataclass(frozen=True)
class StageTime:
    stage: str
    kind: str
    seconds: float
    tokens: float
    flops: float
    device: str


@dataclass(frozen=True)
class PanelFacts:
    """One panel's prompts, and every policy's answers to them."""

    name: str
    prompts: list[str]
    domains: list[str]
    judges: list[str]
    answers: dict[str, list[dict[str, Any]]]  # training → text, finished and scores by judge of each first sample


@dataclass(frozen=True)
class Facts:
    run: Run
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    scales: list[ScaleFacts] = field(default_factory=list)
    joint_scales: dict[str, list[float]] = field(default_factory=dict)  # policy → q of the scale that it learned with
    costs: list[StageTime] = field(default_factory=list)
    panels: list[PanelFacts] = field(default_factory=list)
    data: RowCounts | None = None  # None if nothing was read yet

    @property
    def summary(self) -> dict[str, Any]:
        return self.run.summary if self.run.summarized else {}

    @property
    def pilot_share(self) -> float:
        total = sum(cost.seconds for cost in self.costs)
        return sum(cost.seconds for cost in self.costs if cost.kind == "pilot") / total if total else 0.0


def collect(run: Run, truth: Truth | None = None) -> Facts:
    finished = run.finished
    return Facts(
        run,
        curves=_curves(run),
        scales=[
            _scale(run, name, truth)
            for name, recipe in run.recipe.scales.items()
            if run.has(SCALE_STAGE, name) and recipe.unit == "prompt"
        ],
        joint_scales=dict(_joint_scales(run)),
        costs=[_cost(name, artifact.manifest) for name, artifact in finished.items()],
        panels=list(_panels(run)),
        data=count_rows(run),
    )


def _curves(run: Run) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Metric → training of a policy → its values over updates."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {metric: {} for metric in CURVES}
    for policy in run.recipe.trained:
        if not run.has(POLICY_STAGE, policy):
            continue
        rows = METRICS.load(run.artifact(POLICY_STAGE.stage_name(policy)))
        for metric in CURVES:
            line = [(float(row["update"]), float(row[metric])) for row in rows if metric in row]
            if line:
                curves[metric][policy] = line
    return {metric: lines for metric, lines in curves.items() if lines}


def _scale(run: Run, name: str, truth: Truth | None) -> ScaleFacts:
    table = run.scale(name).known()
    prompts = [prompt_of(text) for text in table["prompt"].to_pylist()]
    rows = run.comparisons()
    places = {prompt_hash: place for place, prompt_hash in enumerate(table["prompt_hash"].to_pylist())}
    of_row = np.array([places[row.prompt_hash] for row in rows])
    strength = np.array([float(row.strength) for row in rows])
    residual: list[float] = []
    seeds = run.evidence(name)
    if seeds:
        values = residuals(rows, Evidence.mean(seeds), run.stages[SCALE_STAGE.stage_name(name)])
        residual = _means(of_row, values.numpy(), len(places))
    return ScaleFacts(
        name,
        texts=[as_text(prompt) for prompt in prompts],
        domains=table["domain"].to_pylist(),
        q=table["q"].to_pylist(),
        true=None if truth is None else [truth(prompt) for prompt in prompts],
        residual=residual,
        strength=_means(of_row, strength, len(places)),
        verdict="" if (found := run.check(name)) is None else verdict(found),
    )


def _joint_scales(run: Run) -> Iterator[tuple[str, list[float]]]:
    learning = {name for name, scale in run.recipe.scales.items() if ESTIMATORS[scale.estimator].joint}
    for policy, trained in run.recipe.trained.items():
        if trained.scale in learning and run.has(POLICY_STAGE, policy):
            yield policy, POLICY_SCALE.load(run.artifact(POLICY_STAGE.stage_name(policy))).q_.tolist()


def _means(of_row: np.ndarray, values: np.ndarray, count: int) -> list[float]:
    """(count,) mean of the rows' finite values for each prompt; NaN if there are none."""
    good = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        means: list[float] = (
            np.bincount(of_row[good], values[good], minlength=count) / np.bincount(of_row[good], minlength=count)
        ).tolist()
    return means


def _cost(name: str, manifest: dict[str, Any]) -> StageTime:
    notes = manifest["notes"]
    return StageTime(
        name,
        manifest["kind"],
        float(manifest["seconds"]),
        float(notes.get("tokens", 0)),
        float(notes.get("flops", 0)),
        str(manifest["device"]),
    )


def _panels(run: Run) -> Iterator[PanelFacts]:
    """The panels that have judged answers."""
    evaluation = run.recipe.evaluation
    for name in [] if evaluation is None else evaluation.answered:
        trainings = [training.name for runs in run.recipe.runs.values() for training in runs]
        policies = [policy for policy in trainings if _judged(run, policy, name, run.main_judge)]
        if policies and evaluation is not None:
            panel = run.panel(name)
            judges = [
                judge
                for judge in evaluation.all_judges
                if all(_judged(run, policy, name, judge) for policy in policies)
            ]
            answers = {policy: _answers(run, policy, name, judges) for policy in policies}
            yield PanelFacts(name, [as_text(prompt) for prompt in panel.prompts], panel.domains, judges, answers)


def _judged(run: Run, training: str, panel: str, judge: str) -> bool:
    stage = run.stages.get(judgement_name(training, panel, judge))
    return stage is not None and run.find(stage) is not None


def _answers(run: Run, policy: str, panel: str, judges: list[str]) -> list[dict[str, Any]]:
    rows = [[row for row in run.generations(policy, panel, judge) if row["sample"] == 0] for judge in judges]
    return [
        {"text": same[0]["text"], "finished": same[0]["finished"], "scores": [row["score"] for row in same]}
        for same in zip(*rows, strict=True)
    ]


def as_text(prompt: Prompt) -> str:
    """A single message as it is; a longer conversation with its roles."""
    if len(prompt) == 1:
        return prompt[0].content
    return "\n\n".join(f"{message.role}: {message.text}" for message in prompt)
