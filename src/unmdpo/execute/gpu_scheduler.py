"""Which stages fit beside each other on the GPUs of this machine.

A GPU takes another stage as long as the memory estimates allow it and less than one and a half times its arithmetic is
in use: while one stage loads, compiles or writes, another computes.
"""

import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch

from unmdpo.core.code import Code, call_with
from unmdpo.core.processes import main_hidden
from unmdpo.engine.cost import USABLE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.base import Stage
from unmdpo.stages.shared.estimates import DECODING_SHARE, Cost, Estimates

FULL = 1.5  # shares of a GPU's arithmetic that stages may take together
CONTEXT = 1.5e9  # bytes that a process takes before it does anything
KEPT = 1.12  # what PyTorch holds on to, relative to what is in use: three stages of 40 GiB did not fit in 139
ANSWER = Code("unmdpo.execute.gpu_scheduler:answer")
SMALLER = (1, 2, 4)  # what a stage's microbatch is divided by, one try after another


@dataclass(frozen=True)
class Need:
    memory: float = 0.0  # bytes on each device
    share: float = 0.0  # of its arithmetic, when it runs alone
    devices: int = 1
    tokens: int | None = None  # in a microbatch, if that can be made smaller

    @property
    def free(self) -> bool:
        """It needs nothing of the devices, so it fits beside anything, even one that wants to be alone."""
        return not self.memory and not self.share


def need_of(run: Pipeline, stage: Stage[Any], memory: float) -> Need:
    """On devices with this much memory. What cannot be estimated is taken to fill them."""
    ranks = run.ranks(stage)
    if stage.kind.cost is None:
        return Need(devices=ranks)
    try:
        estimates = Estimates(np.zeros((0, 3), dtype=np.int32), 0, memory, ranks, run.recipe.compute)
        cost = stage.kind.cost(estimates, stage)
    except Exception:  # whatever an unusual configuration makes of it; the stage itself will tell
        return Need(memory, 1.0, ranks)
    if cost == Cost():
        return Need(devices=ranks)
    # tokens that are written one by one mostly wait, for memory and for the kernels of others
    share = DECODING_SHARE * cost.share if cost.decoding else cost.share
    return Need(KEPT * cost.memory + CONTEXT, share, ranks, cost.microbatch)


def fraction(need: Need, memory: float) -> float:
    """The part of a GPU with this much memory that a stage should get, in hundredths."""
    wanted = max(need.memory / (USABLE * memory), need.share / FULL)
    return min(1.0, math.ceil(100 * wanted) / 100)


@dataclass(frozen=True)
class Attempt:
    """How a stage is tried: at first beside others, then alone, then with smaller microbatches."""

    alone: bool = False
    part: int = 0  # index in SMALLER

    def next(self, need: Need) -> "Attempt | None":
        """After running out of memory; None if nothing is left to try."""
        if not self.alone:
            return Attempt(alone=True)
        more = need.tokens is not None and self.part + 1 < len(SMALLER)
        return Attempt(alone=True, part=self.part + 1) if more else None

    @property
    def why(self) -> str:
        return f"out of GPU memory; retrying {'with smaller microbatches' if self.part else 'alone'}"

    def tokens(self, need: Need) -> int | None:
        """Tokens in a microbatch, if other than usual."""
        return need.tokens // SMALLER[self.part] if self.part and need.tokens is not None else None


@dataclass
class _Device:
    usable: float  # bytes
    stages: dict[str, tuple[Need, bool]] = field(default_factory=dict)  # and whether it wants to be alone

    @property
    def load(self) -> float:
        return sum(need.share for need, _ in self.stages.values())

    def takes(self, need: Need, alone: bool) -> bool:
        others = [stage for stage in self.stages.values() if not stage[0].free]
        if need.free or not others:
            return True  # an empty device is the best there is, and the estimate may be too high
        if alone or any(other for _, other in others):
            return False
        taken = sum(other.memory for other, _ in self.stages.values())
        return taken + need.memory <= self.usable and (need.share == 0 or self.load < FULL)


class GpuScheduler:
    """The devices of this machine and the stages on them."""

    def __init__(self, usable: Sequence[float]) -> None:
        self._devices = [_Device(memory) for memory in usable]

    def take(self, name: str, need: Need, *, alone: bool = False) -> tuple[int, ...] | None:
        """The devices with room for a stage, the least busy first, from now on taken; None if there are not enough."""
        fitting = [place for place, device in enumerate(self._devices) if device.takes(need, alone)]
        chosen = tuple(sorted(sorted(fitting, key=lambda place: self._devices[place].load)[: need.devices]))
        if len(chosen) < min(need.devices, len(self._devices)):
            return None
        for place in chosen:
            self._devices[place].stages[name] = (need, alone)
        return chosen

    def release(self, name: str) -> None:
        for device in self._devices:
            device.stages.pop(name, None)


def gpu_names() -> list[str]:
    """As `CUDA_VISIBLE_DEVICES` names them; none without GPUs."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if not count else [str(i) for i in range(count)] if given is None else given.split(",")[:count]


class Memory(NamedTuple):
    free: float  # bytes
    total: float


def gpu_memory(context: multiprocessing.context.BaseContext, environment: Mapping[str, str]) -> list[Memory] | None:
    """What each GPU has; nothing if a process of this context, with these variables, cannot use them."""
    asked, answer = context.Pipe(duplex=False)
    process = context.Process(target=call_with, args=(environment, ANSWER, (answer,)))  # type: ignore[attr-defined]
    with main_hidden():
        process.start()
    answer.close()
    try:
        said: list[Memory] | None = asked.recv()
    except EOFError:  # it died
        return None
    else:
        return said
    finally:
        process.join()


def answer(asked: Connection) -> None:
    try:
        memory = [Memory(*map(float, torch.cuda.mem_get_info(place))) for place in range(torch.cuda.device_count())]
    except RuntimeError:  # CUDA's errors, and torch's in a fork of a process that has asked about GPUs
        memory = None
    asked.send(memory)
