"""Runs a stage over several ranks, and a whole recipe inside a job that `torchrun` started.

python -m unmdpo.execute.ranks STORE RUN STAGE TOKENS FILE
torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m unmdpo run RECIPE

Ranks of a stage run on this machine: they meet in a file, and talk over the loopback. The first one writes to the
store, and reports progress and errors line by line to the process that started it.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from unmdpo.core.errors import OutOfMemory, Stopped, UnmdpoWarning, UserError
from unmdpo.core.processes import end_with_input
from unmdpo.engine.ranks import MEETING, Ranks, alone, join, local_device, part
from unmdpo.execute.progress import View
from unmdpo.stages.opening import open_recorded
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.base import Stage

POLL = 0.2  # seconds between looks at the store, and at ranks
USER_ERROR, CRASH = 2, 1  # exit codes
FAREWELL_SECONDS = 5.0  # that ranks have to say why they fail, once one has ended
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
Report = Callable[[str], None]  # shows progress
# In the error of a rank that waits for one that is gone.
LEFT_ALONE = ("closed by peer", "Connection reset", "Timed out", "timed out", "DistBackendError", "Broken pipe")
# What a line is about.
PROGRESS, WARNING, ERROR, CRASHED = "unmdpo-progress: ", "unmdpo-warning: ", "unmdpo-error: ", "unmdpo-crash: "
MEMORY = "unmdpo-memory: "


def inside_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def join_torchrun(run: Pipeline) -> Ranks:
    return join(local_device(), run.recipe.compute.rank_minutes)


def all_together(run: Pipeline, missing: Sequence[str], view: View) -> None:
    """Runs the missing stages, one after another."""
    ranks = Ranks.current()
    view = view if ranks.first else View()
    if ranks.first and missing and all(run.ranks(run.stages[name]) == 1 for name in missing):
        warnings.warn(
            f"no stage is shared by the {ranks.world} processes of this job: set compute.ranks={ranks.world}",
            UnmdpoWarning,
            stacklevel=2,
        )
    for name in missing:
        stage, began = run.stages[name], time.monotonic()
        if ranks.share(run.find(stage) is not None if ranks.first else None):
            view.cached(name)  # its inputs were made again and came out the same
            continue
        wanted = run.ranks(stage)
        if wanted not in (1, ranks.world):
            raise UserError(
                f"{name} wants {wanted} ranks, but torchrun started {ranks.world}: compute.ranks and all numbers in "
                f"compute.ranks_of should be {ranks.world} or 1"
            )
        view.started(name)
        if wanted > 1:
            take_part(run, stage, partial(view.progress, name))
        elif ranks.first:
            with alone():
                run.make(stage, partial(view.progress, name))
        while run.find(stage) is None:  # not a barrier, which would give up; if the first rank fails, torchrun ends us
            time.sleep(POLL)
        view.finished(name, time.monotonic() - began)


def run_stage(run: Pipeline, stage: Stage, report: Report, devices: Sequence[str] = ()) -> None:
    """Runs one stage whose inputs are finished; over several ranks if the recipe asks and the stage can, each on one
    of the GPUs that are given, or of all."""
    if run.ranks(stage) > 1:
        launch(run, stage, report, devices)
    else:
        run.make(stage, report)


def launch(run: Pipeline, stage: Stage, report: Report, devices: Sequence[str] = ()) -> None:
    """Runs a stage on this machine, with as many processes as the recipe asks for. If one fails, all end."""
    count = run.ranks(stage)
    gpus = len(devices) or torch.cuda.device_count()
    if torch.cuda.is_available() and gpus < count:
        raise UserError(f"{stage.name} wants {count} ranks, but this machine has {gpus} GPUs")
    tokens = run.recipe.compute.token_budget or 0  # of a microbatch: smaller after a try that ran out of memory
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        errors = stack.enter_context((folder / "errors").open("w+", encoding="utf-8"))
        arguments = [str(run.store.root), run.folder.name, stage.name, str(tokens), str(folder / "meeting")]
        command = [sys.executable, "-m", "unmdpo.execute.ranks", *arguments]
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,  # ranks end with their input
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=errors,
                    text=True,
                    env=os.environ | _environment(rank, count, devices),
                )
            )
            for rank in range(count)
        ]
        try:
            _wait_for(ranks, report)
        except BaseException:
            for rank in ranks:
                rank.terminate()  # they write their checkpoint
            for rank in ranks:
                rank.wait()
            raise
        codes = [rank.returncode for rank in ranks]
        errors.seek(0)
        output = errors.read()
    if any(codes):
        raise _failure(output, stage, codes)


def _environment(rank: int, count: int, devices: Sequence[str]) -> dict[str, str]:
    threads = max(1, torch.get_num_threads() // count)
    described = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "OMP_NUM_THREADS": threads}
    on_loopback = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
    return {name: str(value) for name, value in described.items()} | on_loopback | visible


def _wait_for(ranks: Sequence["subprocess.Popen[str]"], report: Report) -> None:
    """Shows the first rank's progress until all have ended. Those that a lost rank leaves behind are killed: they
    would wait for it."""
    listening = threading.Thread(target=_listen, args=(ranks[0].stdout, report), daemon=True)
    listening.start()
    while any(rank.poll() is None for rank in ranks):
        if any(rank.returncode for rank in ranks):
            until = time.monotonic() + FAREWELL_SECONDS  # others may still say what went wrong
            while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
                time.sleep(POLL)
            for rank in ranks:
                rank.kill()
        time.sleep(POLL)
    listening.join()


def _listen(lines: IO[str], report: Callable[[str], None]) -> None:
    """Shows the first rank's progress and warnings until the ranks are gone."""
    for line in lines:
        if line.startswith(PROGRESS):
            report(line.removeprefix(PROGRESS).rstrip("\n"))
        elif line.startswith(WARNING):
            warnings.warn(json.loads(line.removeprefix(WARNING)), UnmdpoWarning, stacklevel=2)


def _failure(errors: str, stage: Stage, codes: Sequence[int]) -> UserError:
    """The error a rank reported, the traceback of one that crashed, or, if none said anything, that one was lost."""
    lines = errors.splitlines()
    for sign, kind in ((MEMORY, OutOfMemory), (ERROR, UserError)):
        for line in lines:
            if line.startswith(sign):
                return kind(json.loads(line.removeprefix(sign)))
    crashes = [json.loads(line.removeprefix(CRASHED)) for line in lines if line.startswith(CRASHED)]
    crashes = [crash for crash in crashes if not any(sign in crash for sign in LEFT_ALONE)]
    if crashes:
        return UserError(f"one of {len(codes)} ranks failed:\n{crashes[0]}")
    ends = ", ".join(f"rank {rank} ended with code {code}" for rank, code in enumerate(codes) if code)
    return UserError(
        f"{stage.name}: one of {len(codes)} ranks was lost ({ends}): killed, hung, or out of memory. "
        "Its last checkpoint is kept, and the same command continues from there"
    )


def take_part(run: Pipeline, stage: Stage, report: Report | None = None) -> None:
    """Runs on each rank: the first creates the artifact, the others help with the work."""
    device, silent = local_device(), _silent
    ranks = join(device, run.recipe.compute.rank_minutes)
    inputs, called = run.inputs_of(stage), list[bool]()

    def work(folder: Path) -> Mapping[str, Any]:
        called.append(ranks.agree(True, device))
        return run.job(stage, folder, inputs, report or silent).do()

    if ranks.first:
        run.seal(stage, inputs, work)
        if not called:
            ranks.agree(False, device)  # another process made it: the others can stop
    elif ranks.agree(True, device):
        folder = run.store.work_folder(stage.place)
        run.job(stage, folder, inputs, silent).do()
    part(f"unmdpo/{stage.place}")


def _silent(text: str) -> None:
    """Ignores progress: the first rank reports it."""


def _print_progress(text: str) -> None:
    print(f"{PROGRESS}{text}", flush=True)


def _warn(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Passes our own warnings on, from the first rank; those of libraries are for developers."""
    if issubclass(category, UnmdpoWarning) and os.environ.get("RANK") == "0":
        print(f"{WARNING}{json.dumps(str(message))}", flush=True)


def main(root: str, run_name: str, name: str, tokens: str, meeting: str) -> None:
    warnings.showwarning = _warn  # type: ignore[assignment]
    end_with_input()
    os.environ[MEETING] = meeting
    run = open_recorded(Path(root), run_name).with_microbatch(int(tokens) or None)
    try:
        take_part(run, run.stages[name], _print_progress)
        dist.barrier()  # a rank that leaves early may take the others' connections with it
        dist.destroy_process_group()
    except Stopped as error:
        os._exit(128 + error.signal)
    except OutOfMemory as error:
        _end(MEMORY, str(error), USER_ERROR)
    except UserError as error:
        _end(ERROR, str(error), USER_ERROR)
    except Exception:
        _end(CRASHED, traceback.format_exc(), CRASH)


def _end(kind: str, text: str, code: int) -> None:
    """Says why, in one line, and ends at once: other ranks may be waiting for this one."""
    print(f"{kind}{json.dumps(text)}", file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
