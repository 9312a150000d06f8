"""What an experiment measures in a finished run."""

import math
from collections.abc import Callable

import numpy as np

from unmdpo.data.identity import Prompt
from unmdpo.lab.demo import check_scale, truth_of
from unmdpo.results.run import Run
from unmdpo.scale.check import Check
from unmdpo.stages.pilot import PILOT_STAGE
from unmdpo.stages.policy import POLICY_STAGE
from unmdpo.stages.shared.base import Kind
from unmdpo.stages.shared.files import POLICY_SCALE
from unmdpo.stages.shared.units import PromptIndex
from unmdpo.stats.evaluation import Estimate, rank_correlation

Measure = Callable[[Run], float]


def recovery(scale: str) -> Measure:
    """Spearman correlation of a frozen scale with the truth: 0 for q ≡ 1, which ranks nothing, and NaN if the truth
    does not vary."""

    def measure(run: Run) -> float:
        found = check_scale(run, scale)
        varies = len({round(row.true, 9) for row in found.by_domain.values()}) > 1
        return 0.0 if found.overall is None and varies else _value(found.overall)

    return measure


def recovery_beside(policy: str) -> Measure:
    """The same for a scale that learned beside a policy."""

    def measure(run: Run) -> float:
        truth = truth_of(run.recipe)
        assert truth is not None  # every point is a world of the lab
        prompts, q = _learned_beside(run, policy)
        return _value(rank_correlation(q, [truth(prompt) for prompt in prompts]))

    return measure


def _value(correlation: Estimate | None) -> float:
    return math.nan if correlation is None else correlation.value


def saturation(policy: str) -> Measure:
    """How far prompts moved from q = 1 toward the bounds 1/2 and 2: mean |log q| / log 2."""
    return lambda run: float(np.mean(np.abs(np.log2(_learned_beside(run, policy)[1]))))


def spread(scale: str) -> Measure:
    """Standard deviation of log q̂, which is positive even if q* is the same for all prompts."""
    return lambda run: float(np.std(np.log(run.scale(scale).known()["q"].to_pylist())))


def gain(candidate: str, opponent: str) -> Measure:
    """ΔR of one policy over another, measured by the gold reward."""
    return lambda run: run.compare(candidate, opponent, "held-out").reward_difference.value


def win_rate(candidate: str, opponent: str) -> Measure:
    """Of one policy against another, in percent, by the gold reward."""
    return lambda run: run.compare(candidate, opponent, "held-out").win_rate.value


def called_better(scale: str) -> Measure:
    """1 if the check of a scale calls it better than q ≡ 1, 0 if not: the mean over seeds is how often it does."""
    return lambda run: float(_checked(run, scale).better)


def held_out_gain(scale: str) -> Measure:
    """How much smaller a scale's loss on unseen prompts is than that of q ≡ 1."""
    return lambda run: _checked(run, scale).gain.value


def _checked(run: Run, scale: str) -> Check:
    found = run.check(scale)
    assert found is not None  # the experiment asks for it
    return found


def pilot_cost(run: Run) -> float:
    """FLOPs of all pilots, as a multiple of training one policy."""

    def flops(kind: Kind) -> list[float]:
        names = [name for name, stage in run.stages.items() if stage.kind is kind]
        return [run.artifact(name).manifest["notes"]["flops"] for name in names]

    return sum(flops(PILOT_STAGE)) / flops(POLICY_STAGE)[0]


def _learned_beside(run: Run, policy: str) -> tuple[list[Prompt], list[float]]:
    rows = run.comparisons()
    return PromptIndex.of(rows).prompts(rows), POLICY_SCALE.load(
        run.artifact(POLICY_STAGE.stage_name(policy))
    ).q_.tolist()
