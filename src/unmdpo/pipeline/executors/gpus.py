"""The GPUs of this machine, asked about without touching them here: a process that has touched one holds its memory,
and cannot be forked."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from unmdpo.errors import UserError


def gpu_names() -> list[str]:
    """As `CUDA_VISIBLE_DEVICES` names them; none without GPUs."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if not count else [str(i) for i in range(count)] if given is None else given.split(",")[:count]


class Memory(NamedTuple):
    free: float  # bytes
    total: float


def gpu_memory(context: multiprocessing.context.BaseContext) -> list[Memory]:
    """What each GPU has."""
    asked, answer = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(answer,))  # type: ignore[attr-defined]
    process.start()
    answer.close()
    try:
        return list(asked.recv())
    except EOFError as error:
        raise UserError("the GPUs do not answer; `nvidia-smi` may say why") from error
    finally:
        process.join()


def _answer(asked: Connection) -> None:
    asked.send([Memory(*map(float, torch.cuda.mem_get_info(place))) for place in range(torch.cuda.device_count())])
