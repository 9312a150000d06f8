"""The GPUs of this machine, asked about without touching them here: a process that has touched one holds its memory,
and cannot be forked."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from unmdpo.forks import main_hidden


def gpu_names() -> list[str]:
    """As `CUDA_VISIBLE_DEVICES` names them; none without GPUs."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if not count else [str(i) for i in range(count)] if given is None else given.split(",")[:count]


class Memory(NamedTuple):
    free: float  # bytes
    total: float


def gpu_memory(context: multiprocessing.context.BaseContext) -> list[Memory] | None:
    """What each GPU has; nothing if a process of this context cannot use them."""
    asked, answer = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(answer,))  # type: ignore[attr-defined]
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


def _answer(asked: Connection) -> None:
    try:
        memory = [Memory(*map(float, torch.cuda.mem_get_info(place))) for place in range(torch.cuda.device_count())]
    except RuntimeError:  # CUDA's errors, and torch's in a fork of a process that has asked about GPUs
        memory = None
    asked.send(memory)
