"""Runs a stage over several ranks, and a whole recipe inside a job that `torchrun` started.

torchrun … -m unmdpo.execute.ranks STORE RUN STAGE TOKENS
torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m unmdpo run RECIPE

The first rank writes to the store, and reports progress and errors line by line to the process that started it.
"""

import json
import os
import subprocess
import sys
import tempfile
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
from unmdpo.engine.ranks import Ranks, alone, join, local_device, part
from unmdpo.execute.progress import View
from unmdpo.stages.pipeline import Pipeline, open_recorded
from unmdpo.stages.shared.base import Stage

POLL = 0.2  # seconds between looks at the store
USER_ERROR, CRASH = 2, 1  # exit codes
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


def run_stage(run: Pipeline, stage: Stage[Any], report: Callable[[str], None]) -> None:
    """Runs one stage whose inputs are finished; over several ranks if the recipe asks and the stage can."""
    if run.ranks(stage) > 1:
        launch(run, stage, report)
    else:
        run.make(stage, report)


def launch(run: Pipeline, stage: Stage[Any], report: Callable[[str], None]) -> None:
    """Runs a stage on this machine, with as many processes as the recipe asks for."""
    count = run.ranks(stage)
    if torch.cuda.is_available() and torch.cuda.device_count() < count:
        raise UserError(f"{stage.name} wants {count} ranks, but this machine has {torch.cuda.device_count()} GPUs")
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w+", encoding="utf-8") as errors:
        tokens = run.recipe.compute.token_budget or 0  # of a microbatch: smaller after a try that ran out of memory
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
            "-m", "unmdpo.execute.ranks", str(run.store.root), run.folder.name, stage.name, str(tokens),
        ]  # fmt: skip
        pipe = subprocess.PIPE  # ranks end with their input
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True) as started:
            try:
                assert started.stdout is not None
                _listen(started.stdout, report)
                started.wait()
            except BaseException:
                started.terminate()  # torchrun forwards it, and the ranks write their checkpoint
                started.wait()
                raise
        errors.seek(0)
        output = errors.read()
    if started.returncode:
        raise _failure(output, stage, count)


def _listen(lines: IO[str], report: Callable[[str], None]) -> None:
    """Shows the first rank's progress and warnings until the ranks are gone."""
    for line in lines:
        if line.startswith(PROGRESS):
            report(line.removeprefix(PROGRESS).rstrip("\n"))
        elif line.startswith(WARNING):
            warnings.warn(json.loads(line.removeprefix(WARNING)), UnmdpoWarning, stacklevel=2)


def _failure(errors: str, stage: Stage[Any], count: int) -> UserError:
    """The error a rank reported, the traceback of one that crashed, or, if none said anything, that one was lost."""
    lines = errors.splitlines()
    for sign, kind in ((MEMORY, OutOfMemory), (ERROR, UserError)):
        for line in lines:
            if line.startswith(sign):
                return kind(json.loads(line.removeprefix(sign)))
    crashes = [json.loads(line.removeprefix(CRASHED)) for line in lines if line.startswith(CRASHED)]
    crashes = [crash for crash in crashes if not any(sign in crash for sign in LEFT_ALONE)]
    if crashes:
        return UserError(f"one of {count} ranks failed:\n{crashes[0]}")
    ends = [line.strip() for line in lines if "exitcode" in line or "Timed out" in line]
    last = ends[-1] if ends else "torchrun gave no reason"
    return UserError(
        f"{stage.name}: one of {count} ranks was lost ({last[:200]}): killed, hung, or out of memory. "
        "Its last checkpoint is kept, and the same command continues from there"
    )


def take_part(run: Pipeline, stage: Stage[Any], report: Callable[[str], None] | None = None) -> None:
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


def main(root: str, run_name: str, name: str, tokens: str) -> None:
    warnings.showwarning = _warn  # type: ignore[assignment]
    end_with_input()
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
