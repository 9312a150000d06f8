"""Estimates what a run will cost: tokens, FLOPs, memory and time of every stage."""

from dataclasses import dataclass, replace
from typing import Any

from unmdpo.engine.cost import PEAKS, USABLE, available, matrix_rate, narrow_rate, peak_rate
from unmdpo.engine.ranks import local_device
from unmdpo.errors import UserError
from unmdpo.pipeline.costs import H200_USEFUL, HELD_OUT, Cost, Estimates, Speed
from unmdpo.pipeline.run import Run, ranks_of
from unmdpo.pipeline.sizes import Sizes, sizes_of
from unmdpo.pipeline.stage import Stage
from unmdpo.pipeline.stages.passes import PASS_STAGE
from unmdpo.pipeline.stages.pilots import PILOT_STAGE

MEMORY = {"h200": 141e9, "h100": 80e9, "a100": 80e9}
MOST_GPUS = (1, 2, 4, 8, 16, 32, 64)  # to try for one model
CPU_SHARE = 0.1  # of the measured matrix rate
PILOTS = (PILOT_STAGE.name, PASS_STAGE.name)


@dataclass(frozen=True)
class StageCost:
    stage: str
    kind: str
    cached: bool
    cost: Cost


@dataclass(frozen=True)
class Plan:
    stages: list[StageCost]
    assumed: list[str]  # what had to be assumed

    def seconds(self, speed: Speed) -> float:
        """Time for the unfinished stages, run one after another."""
        return sum(stage.cost.seconds(speed) for stage in self.stages if not stage.cached)

    @property
    def pilot_share(self) -> float:
        """The share of all FLOPs spent on pilots and their scoring: the price of a learned scale."""
        pilots = sum(stage.cost.flops for stage in self.stages if stage.kind in PILOTS)
        return pilots / max(1.0, sum(stage.cost.flops for stage in self.stages))


def speed_of(device: str) -> Speed:
    """On a named GPU, or measured on `this` machine. A GPU whose name is known is not measured: it may be busy."""
    if device in MEMORY:
        return Speed(H200_USEFUL * PEAKS[device] / PEAKS["h200"])
    if device != "this":
        raise UserError(f"unknown device '{device}'; known: this, {', '.join(MEMORY)}")
    here = local_device()
    if here.type != "cuda":
        return Speed(CPU_SHARE * matrix_rate(here), CPU_SHARE * narrow_rate())
    share = H200_USEFUL / PEAKS["h200"]
    return Speed(share * (peak_rate(here) or matrix_rate(here)))


def plan(run: Run, device: str = "this", sizes: Sizes | None = None) -> Plan:
    return _planned(run, sizes or sizes_of(run), MEMORY.get(device) or available(local_device()))


@dataclass(frozen=True)
class Need:
    """What a run takes on GPUs of one kind."""

    device: str
    gpus: int | None  # that share one model; several policies can train in parallel. None: it does not fit on 64
    memory: float  # most bytes on each
    hours: float  # on one GPU, for all unfinished stages
    largest: str  # the stage that needs the most memory

    @property
    def name(self) -> str:
        return f"{self.device.upper()} ({MEMORY[self.device] / 1e9:.0f} GB)"


def needs(run: Run, sizes: Sizes | None = None) -> list[Need]:
    """For each kind of GPU: how many must share a model for it to fit, and how long the run takes."""
    sizes = sizes or sizes_of(run)
    return [_need(run, sizes, device) for device in MEMORY]


def _need(run: Run, sizes: Sizes, device: str) -> Need:
    for gpus in MOST_GPUS:
        planned = _planned(run, sizes, MEMORY[device], gpus)
        largest = max(planned.stages, key=lambda stage: stage.cost.memory)
        fits = largest.cost.memory <= USABLE * MEMORY[device]
        if fits:
            break
    hours = planned.seconds(speed_of(device)) / 3600
    return Need(device, gpus if fits else None, largest.cost.memory, hours, largest.stage)


def too_large(planned: Plan, device: str) -> list[StageCost]:
    """The unfinished stages that need more memory than the device has."""
    memory = MEMORY.get(device) or available(local_device())
    return [stage for stage in planned.stages if not stage.cached and stage.cost.memory > USABLE * memory]


def _planned(run: Run, sizes: Sizes, memory: float, gpus: int | None = None) -> Plan:
    """With as many ranks as the recipe says; or with `gpus` for each model that does not fit on one."""
    share = run.recipe.data.validation.fraction
    held_out = HELD_OUT if share is None else share / (1 - share)
    estimates = Estimates(sizes.lengths, sizes.prompts, memory, 1, run.recipe.compute, held_out)
    stages = []
    for name, stage in run.stages.items():
        cost = _cost(stage, replace(estimates, ranks=1 if gpus is not None else ranks_of(run, stage)))
        if gpus is not None and stage.kind.ranked != "never" and cost.memory > USABLE * memory:
            cost = _cost(stage, replace(estimates, ranks=gpus))
        stages.append(StageCost(name, stage.kind.name, run.find(stage) is not None, cost))
    return Plan(stages, sizes.assumed)


def _cost(stage: Stage[Any], estimates: Estimates) -> Cost:
    return Cost() if stage.kind.cost is None else stage.kind.cost(estimates, stage)
