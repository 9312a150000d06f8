"""Experiments that need a known truth: vary one knob, with several seeds, and measure.

Every point is an ordinary run of a smaller demo recipe, and all share one store: an interrupted sweep resumes, and
points shared by two experiments run only once.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as students_t

from unmdpo.errors import UserError, did_you_mean
from unmdpo.experiments.demo import WORLD, demo_recipe
from unmdpo.experiments.measures import (
    Measure,
    called_real,
    gain,
    held_out_gain,
    pilot_cost,
    recovery,
    recovery_beside,
    saturation,
    spread,
)
from unmdpo.lab.world import Knobs
from unmdpo.pipeline.executors import execute
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.store import Store
from unmdpo.stats.evaluation import Estimate

SMALL = replace(WORLD, prompts=800)
BUDGET = ("training.updates=50", "pilots.updates=50")


@dataclass(frozen=True)
class Point:
    """One setting of the knob."""

    label: str
    x: float | None = None  # its position on an axis, if the knob is a number
    knobs: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    question: str
    knob: str
    points: tuple[Point, ...]
    measures: Mapping[str, Mapping[str, Measure]]  # chart → series → measure
    overrides: tuple[str, ...]  # which scales and policies to train
    until: str | None = None


@dataclass(frozen=True)
class Result:
    """One measure at one point, for every seed."""

    point: Point
    chart: str
    series: str
    values: list[float]

    @property
    def estimate(self) -> Estimate:
        """Mean over seeds with Student's 95 % interval."""
        values = np.array(self.values)
        mean = float(values.mean())
        if len(values) < 2:
            return Estimate(mean, mean, mean)
        half = float(students_t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
        return Estimate(mean, mean - half, mean + half)


_ESTIMATORS = {"pooled": "pooled head (the paper's)", "ridge": "ridge", "auto": "auto"}
_COMPARED = (
    "scales={" + ", ".join(f"{name}: {{estimator: {name}}}" for name in _ESTIMATORS) + "}",
    "policies={dpo: {objective: dpo}}",
)
_SCALES = "scales={seq: {estimator: pooled}, ln: {estimator: pooled, length_normalized: true}}"
_DPO = "policies={dpo: {objective: dpo}}"
_CONTROLLED = (
    "scales={seq: {estimator: pooled}, one: {estimator: constant}}",
    "policies={dpo: {objective: dpo}, learned: {objective: unm-wr, scale: seq}, "
    "constant: {objective: unm-wr, scale: one}}",
)
_BESIDE = (
    "scales={seq: {estimator: pooled}, joint: {estimator: joint}, sigmoid: {estimator: sigmoid-joint}}",
    "policies={dpo: {objective: dpo}, frozen: {objective: unm-wr, scale: seq}, "
    "joint: {objective: unm-wr, scale: joint}, sigmoid: {objective: unm-wr, scale: sigmoid}}",
)


# The truth as a scale, under maps of which the paper's is the narrowest: how far apart two prompts' q may be
_TRUTHS = {"true q*, at most 2 ×": math.log(2) / 2, "4 ×": math.log(4) / 2, "10 ×": math.log(10) / 2}
_CEILING = (
    "scales={one: {estimator: constant}, "
    + ", ".join(
        f"t{place}: {{estimator: given, settings: {{path: {{truth}}, bound: {bound}}}}}"
        for place, bound in enumerate(_TRUTHS.values())
    )
    + "}",
    "policies={dpo: {objective: dpo}, constant: {objective: unm-wr, scale: one}, "
    + ", ".join(f"t{place}: {{objective: unm-wr, scale: t{place}}}" for place in range(len(_TRUTHS)))
    + "}",
)
_GAINS: Mapping[str, Mapping[str, Measure]] = {
    "ΔR over q ≡ 1": {label: gain(f"t{place}", "constant") for place, label in enumerate(_TRUTHS)},
    "ΔR over DPO": {"q ≡ 1": gain("constant", "dpo")},
}


def _numbers(knob: str, *values: float) -> tuple[Point, ...]:
    return tuple(Point(f"{value:g}", value, {knob: value}) for value in values)


EXPERIMENTS: dict[str, Experiment] = {
    "noise": Experiment(
        "As noise differs more between prompts, does q̂ find it, and does a learned scale pay?",
        "standard deviation of log q*",
        _numbers("noise_spread", 0.0, 0.4, 0.8, 1.2),
        {
            "Spearman of q̂ with q*": {"seq": recovery("seq")},
            "standard deviation of log q̂": {"seq": spread("seq")},
            "ΔR": {"learned scale over q ≡ 1": gain("learned", "constant"), "q ≡ 1 over DPO": gain("constant", "dpo")},
        },
        _CONTROLLED,
    ),
    "real": Experiment(
        "How often is a scale called real: where noise is the same for all prompts, and where it is not?",
        "standard deviation of log q*",
        _numbers("noise_spread", 0.0, 0.4, 0.8, 1.2),
        {
            "called real": {label: called_real(name) for name, label in _ESTIMATORS.items()},
            "held-out gain over q ≡ 1": {label: held_out_gain(name) for name, label in _ESTIMATORS.items()},
            "Spearman of q̂ with q*": {label: recovery(name) for name, label in _ESTIMATORS.items()},
        },
        _COMPARED,
        until="check",
    ),
    "length": Experiment(
        "As vague prompts' answers differ more in length, does length-normalized fitting find q* better?",
        "idle phrases added to a vague prompt's responses",
        _numbers("length_spread", 0.0, 1.0, 2.0, 4.0),
        {"Spearman of q̂ with q*": {"sequence-level": recovery("seq"), "length-normalized": recovery("ln")}},
        (_SCALES, _DPO),
        until="scale",
    ),
    "ceiling": Experiment(
        "If q* itself were known, what would a policy gain over q ≡ 1?",
        "standard deviation of log q*",
        _numbers("noise_spread", 0.4, 0.8, 1.2, 1.6),
        _GAINS,
        _CEILING,
    ),
    "ceiling-pairs": Experiment(
        "If q* itself were known, does it pay more with more comparisons of each prompt?",
        "comparisons per prompt",
        _numbers("pairs_per_prompt", 1, 2, 4, 8),
        _GAINS,
        _CEILING,
    ),
    "ceiling-strength": Experiment(
        "If q* itself were known, does it pay more where strengths say more?",
        "how closely strengths follow the annotators' utility",
        _numbers("informativeness", 0.0, 0.5, 1.0),
        _GAINS,
        _CEILING,
    ),
    "joint": Experiment(
        "Does a scale that learns beside the policy find q*, or run to its bounds?",
        "label noise, typical q*",
        _numbers("noise", 0.4, 0.8, 1.6),
        {
            "Spearman of q̂ with q*": {
                "frozen (pooled)": recovery("seq"),
                "joint": recovery_beside("joint"),
                "sigmoid-joint": recovery_beside("sigmoid"),
            },
            "mean |log₂ q̂| (1: all at the bounds)": {
                "joint": saturation("joint"),
                "sigmoid-joint": saturation("sigmoid"),
            },
            "ΔR over DPO": {name: gain(name, "dpo") for name in ("frozen", "joint", "sigmoid")},
        },
        _BESIDE,
    ),
    "pilots": Experiment(
        "How cheap may pilots be?",
        "pilots",
        (
            Point("5 folds, 50 updates"),
            Point("3 folds, 50 updates", overrides=("pilots.folds=3",)),
            Point("2 folds, 50 updates", overrides=("pilots.folds=2",)),
            Point("5 folds, 25 updates", overrides=("pilots.updates=25",)),
            Point("5 folds, 12 updates", overrides=("pilots.updates=12",)),
            Point("2 folds, 25 updates", overrides=("pilots.folds=2", "pilots.updates=25")),
            Point("5 folds, LoRA rank 8", overrides=("pilots.adapter={rank: 8}", "pilots.learning_rate=1e-3")),
        ),
        {"Spearman of q̂ with q*": {"seq": recovery("seq")}, "cost, DPO runs": {"seq": pilot_cost}},
        (_SCALES, _DPO),
    ),
}


def experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UserError(f"there is no experiment '{name}'; {did_you_mean(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def sweep(
    chosen: Experiment,
    folder: Path,
    seeds: Sequence[int],
    jobs: int,
    knobs: Knobs = SMALL,
    budget: Sequence[str] = BUDGET,
    report: Callable[[str], None] = print,
) -> Iterator[Result]:
    """Runs every point with every seed, and yields the measures point by point."""
    for point in chosen.points:
        runs = []
        for seed in seeds:
            report(f"{chosen.knob}: {point.label}, seed {seed}")
            turned = replace(knobs, **point.knobs, seed=seed)
            world = folder / "worlds" / _name_of(turned)
            overrides = [f"seed={seed}", *budget, *chosen.overrides, *point.overrides]
            recipe = demo_recipe(world, turned, overrides)
            runs.append(execute(open_run(recipe, Store(folder / "store")), until=chosen.until, jobs=jobs))
        for chart, series in chosen.measures.items():
            for name, measure in series.items():
                values = [measure(run) for run in runs]
                if np.isfinite(values).all():  # a rank correlation is undefined if q* is constant
                    yield Result(point, chart, name, values)


def _name_of(knobs: Knobs) -> str:
    """The name of a world's folder: equal knobs give equal worlds."""
    return hashlib.sha256(json.dumps(vars(knobs), sort_keys=True).encode()).hexdigest()[:12]
