"""Several processes as one: which rank does which microbatch, and how ranks agree.

Every rank knows the whole global batch and its packing, takes every n-th microbatch, and after a sum over the ranks
has the same numbers as the others. So batch statistics, adaptive objectives and scales trained with the
policy need no extra code for several ranks.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

MEETING = "UNMDPO_MEETING_FILE"  # the variable that names the file in which the ranks of one machine meet
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1

    @classmethod
    def current(cls) -> "Ranks":
        """This process among those that share the work; the only one inside `alone`."""
        if not _ALONE.get() and dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def turns(self, kinds: Iterable[Sequence[list[int]]]) -> Iterator[tuple[list[int], bool]]:
        """This rank's microbatches, one kind after another, and whether each counts. A rank with one fewer than the
        others repeats the last one without counting it, because sharded models need every rank in every pass."""
        for microbatches in kinds:
            for start in range(0, len(microbatches), self.world):
                own = start + self.rank
                yield (microbatches[own], True) if own < len(microbatches) else (microbatches[-1], False)

    def total(self, values: Tensor) -> Tensor:
        """Sums over the ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def agree(self, decision: bool, device: torch.device) -> bool:
        """The first rank's decision, on every rank."""
        if self.world == 1:
            return decision
        flag = torch.tensor(int(decision), device=device)
        dist.broadcast(flag, src=0)
        return bool(flag)

    def share(self, value: T) -> T:
        """The first rank's value, on every rank."""
        if self.world == 1:
            return value
        shared = [value]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.world == 1:
            return [value]
        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


def part(name: str) -> None:
    """Waits until every rank has come here, before they part. A barrier would not do: a rank that leaves it first may
    close a connection that another still reads from, which ends that one. `name` is used once."""
    world = Ranks.current().world
    if world > 1:
        store = dist.distributed_c10d._get_default_store()
        store.add(name, 1)
        while store.add(name, 0) < world:
            time.sleep(0.02)


_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While active, this process works as if there were no others."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def join(device: torch.device, minutes: float = 30.0) -> Ranks:
    """Joins the process group that the environment describes, if any: of `torchrun`, or of ranks that meet in a file.
    A rank that keeps the others waiting for more than `minutes` counts as lost."""
    if "WORLD_SIZE" not in os.environ or dist.is_initialized():
        return Ranks.current()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    meeting = os.environ.get(MEETING)
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting}" if meeting else "env://",
        timeout=timedelta(minutes=minutes),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    return Ranks.current()


def device_name() -> str:
    """The device's name, to record where something was computed."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def local_device() -> torch.device:
    """This rank's GPU, or the CPU if there are no GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
