"""What the lab can be asked: experiments that need a known truth. Each varies one knob and measures something."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.lab.measures import (
    Measure,
    called_better,
    gain,
    held_out_gain,
    pilot_cost,
    recovery,
    recovery_beside,
    saturation,
    spread,
    win_rate,
)
from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.scale.settings import BOUND


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
    knobs: Mapping[str, Any] = field(default_factory=dict)  # of all its worlds


_DPO = "policies={dpo: {objective: dpo}}"
_ESTIMATORS = {"pooled": "pooled head (the paper's)", "ridge": "ridge", "auto": "auto"}
_COMPARED = ("scales={" + ", ".join(f"{name}: {{estimator: {name}}}" for name in _ESTIMATORS) + "}", _DPO)
_SCALES = "scales={seq: {estimator: pooled}, ln: {estimator: pooled, length_normalized: true}}"
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
_TRUTHS = {"true q*, at most 2 ×": BOUND, "4 ×": math.log(4) / 2, "10 ×": math.log(10) / 2}
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
_BOTH = (
    _CEILING[0],
    "policies={dpo: {objective: dpo}, constant: {objective: unm-wr, scale: one}, "
    + ", ".join(
        f"{placement}{place}: {{objective: unm-{placement}, scale: t{place}}}"
        for placement in ("wr", "ao")
        for place in range(len(_TRUTHS))
    )
    + "}",
)
_GAINS: Mapping[str, Mapping[str, Measure]] = {
    "ΔR over q ≡ 1": {label: gain(f"t{place}", "constant") for place, label in enumerate(_TRUTHS)},
    "ΔR over DPO": {"q ≡ 1": gain("constant", "dpo")},
}


# Where labels are so noisy that noise, not the number of comparisons, limits what a policy learns
_NOISY = {"noise": 3.0, "noise_spread": 1.2}
_WIDE = f"bound: {math.log(4) / 2}"
_LEARNED = {
    "pooled": "pooled head (the paper's)",
    "pooled4": "pooled head, at most 4 ×",
    "auto": "auto",
    "auto4": "auto, at most 4 ×",
    "truth": "true q*, at most 2 ×",
    "truth4": "true q*, at most 4 ×",
}
_WORTH = (
    "scales={one: {estimator: constant}, pooled: {estimator: pooled}, auto: {estimator: auto}, "
    f"pooled4: {{estimator: pooled, settings: {{{_WIDE}}}}}, auto4: {{estimator: auto, settings: {{{_WIDE}}}}}, "
    f"truth: {{estimator: given, settings: {{path: {{truth}}, bound: {BOUND}}}}}, "
    f"truth4: {{estimator: given, settings: {{path: {{truth}}, {_WIDE}}}}}}}",
    "policies={dpo: {objective: dpo}, constant: {objective: unm-wr, scale: one}, "
    + ", ".join(f"{name}: {{objective: unm-wr, scale: {name}}}" for name in _LEARNED)
    + "}",
)


# Every way of fitting a scale to pilots before the policies, and the truth: name → label and estimator
_WAYS = {
    "pooled": ("pooled head (the paper's)", "estimator: pooled"),
    "cross": ("a head for each fold", "estimator: cross-fitted, fit: wr"),
    "sketch": ("ridge on the sketch", "estimator: ridge, settings: {features: sketch}"),
    "ridge": ("ridge on the embedding", "estimator: ridge"),
    "auto": ("auto", "estimator: auto"),
    "truth": ("true q*", f"estimator: given, settings: {{path: {{truth}}, bound: {BOUND}}}"),
}
_LEARNED_WAYS = {name: label for name, (label, _) in _WAYS.items() if name != "truth"}
_ALL_WAYS = (
    "scales={one: {estimator: constant}, " + ", ".join(f"{name}: {{{how}}}" for name, (_, how) in _WAYS.items()) + "}",
    "policies={dpo: {objective: dpo}, constant: {objective: unm-wr, scale: one}, "
    + ", ".join(f"{name}: {{objective: unm-wr, scale: {name}}}" for name in _WAYS)
    + "}",
)


def _numbers(knob: str, *values: float) -> tuple[Point, ...]:
    return tuple(Point(f"{value:g}", value, {knob: value}) for value in values)


def _ceiling(question: str, knob: str, points: tuple[Point, ...]) -> Experiment:
    """What the truth itself would gain, where noise matters."""
    return Experiment(question, knob, points, _GAINS, _CEILING, knobs=_NOISY)


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
    "better": Experiment(
        "How often is a scale called better: where noise is the same for all prompts, and where it is not?",
        "standard deviation of log q*",
        _numbers("noise_spread", 0.0, 0.4, 0.8, 1.2),
        {
            "called better": {label: called_better(name) for name, label in _ESTIMATORS.items()},
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
    "ceiling": _ceiling(
        "If q* itself were known, how noisy must comparisons be for it to pay?",
        "typical q*, in units of the reward",
        _numbers("noise", 0.4, 1.2, 3.0, 6.0),
    ),
    "ceiling-worlds": Experiment(
        "If q* itself were known, in which worlds would it pay, and with which placement of the margin?",
        "world",
        tuple(
            Point(
                f"{noisy}, {'one vote' if annotators == 1 else 'three votes'}, {prompts} prompts",
                knobs={"noise": noise, "noise_spread": 1.6, "annotators": annotators, "prompts": prompts},
            )
            for noisy, noise in (("less noisy", 1.2), ("noisy", 3.0))
            for annotators in (3, 1)
            for prompts in (800, 300)
        ),
        {
            "ΔR over q ≡ 1": {
                f"{placement.upper()}, {label}": gain(f"{placement}{place}", "constant")
                for placement in ("wr", "ao")
                for place, label in enumerate(_TRUTHS)
            },
            "ΔR over DPO": {"q ≡ 1": gain("constant", "dpo")},
        },
        _BOTH,
    ),
    "ceiling-spread": _ceiling(
        "If q* itself were known, how much must noise differ between prompts for it to pay?",
        "standard deviation of log q*",
        _numbers("noise_spread", 0.0, 0.4, 0.8, 1.2, 1.6),
    ),
    "ceiling-pairs": _ceiling(
        "If q* itself were known, does it pay more with more comparisons of each prompt?",
        "comparisons per prompt",
        _numbers("pairs_per_prompt", 1, 2, 4, 8),
    ),
    "ceiling-strength": _ceiling(
        "If q* itself were known, does it pay more where strengths say more?",
        "how closely strengths follow the annotators' utility",
        _numbers("informativeness", 0.0, 0.5, 1.0),
    ),
    "worth": Experiment(
        "Where noise matters, how much of what q* would gain does a learned scale reach?",
        "standard deviation of log q*",
        _numbers("noise_spread", 0.0, 0.8, 1.6),
        {
            "ΔR over q ≡ 1": {label: gain(name, "constant") for name, label in _LEARNED.items()},
            "Spearman of q̂ with q*": {
                label: recovery(name) for name, label in _LEARNED.items() if not name.startswith("truth")
            },
        },
        _WORTH,
        knobs=_NOISY,
    ),
    "expect": Experiment(
        "From what a scale gains on unseen prompts, what may a policy be expected to win?",
        "world",
        tuple(
            Point(
                f"typical q* {noise:g}, spread {spread:g}, {prompts} prompts",
                knobs={"noise": noise, "noise_spread": spread, "prompts": prompts},
            )
            for noise in (0.8, 1.6, 3.0)
            for spread in (0.0, 0.8, 1.6)
            for prompts in (300, 800)
        ),
        {
            "held-out gain over q ≡ 1": {"pooled": held_out_gain("seq")},
            "called better": {"pooled": called_better("seq")},
            "win rate against q ≡ 1": {"pooled": win_rate("learned", "constant")},
            "ΔR over q ≡ 1": {"pooled": gain("learned", "constant")},
        },
        _CONTROLLED,
    ),
    "estimators": Experiment(
        "Which way of fitting a scale finds q*, foresees unseen prompts, and helps policies?",
        "standard deviation of log q*",
        (
            *_numbers("noise_spread", 0.0, 0.8, 1.6),
            *(
                Point(f"{spread}, pilots of three seeds", None, {"noise_spread": spread}, ("pilots.seeds=[1, 2, 3]",))
                for spread in (0.8, 1.6)
            ),
        ),
        {
            "held-out gain over q ≡ 1": {label: held_out_gain(name) for name, label in _LEARNED_WAYS.items()},
            "Spearman of q̂ with q*": {label: recovery(name) for name, label in _LEARNED_WAYS.items()},
            "ΔR over q ≡ 1": {label: gain(name, "constant") for name, (label, _) in _WAYS.items()},
        },
        _ALL_WAYS,
        knobs=_NOISY,
    ),
    "joint": Experiment(
        "Does a scale trained with the policy find q*, or run to its bounds?",
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
            Point("2 folds, 20 updates", overrides=("pilots.folds=2", "pilots.updates=20")),
            Point("5 folds, LoRA rank 8", overrides=("pilots.adapter={rank: 8}", "pilots.learning_rate=1e-3")),
            *(
                Point(
                    f"{folds} folds, LoRA of the last layer",
                    overrides=(
                        f"pilots.folds={folds}",
                        "pilots.adapter={rank: 8, layers: 1}",
                        "pilots.learning_rate=1e-3",
                    ),
                )
                for folds in (5, 2)
            ),
        ),
        {
            "Spearman of q̂ with q*": {"seq": recovery("seq")},
            "held-out gain over q ≡ 1": {"seq": held_out_gain("seq")},
            "cost, DPO runs": {"seq": pilot_cost},
        },
        (_SCALES, _DPO),
    ),
}


def experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UserError(f"there is no experiment '{name}'; {did_you_mean(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]
