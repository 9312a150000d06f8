"""Runs one stage over several ranks: `torchrun` starts them, and the first one writes to the store.

torchrun … -m unmdpo.pipeline.executors.ranks RECIPE STORE STAGE

The first rank tells the process that started it, line by line, how far it is and what went wrong.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from unmdpo.engine.ranks import join, local_device, part
from unmdpo.errors import OutOfMemory, Stopped, UnmdpoWarning, UserError
from unmdpo.forks import end_with_input
from unmdpo.pipeline.executors.making import job_of, make_here, manifest_head
from unmdpo.pipeline.run import Run, open_run, ranks_of
from unmdpo.pipeline.stage import Stage
from unmdpo.pipeline.store import Store
from unmdpo.recipe import Recipe

USER_ERROR, CRASH = 2, 1  # exit codes
# In the error of a rank that waits for one that is gone.
LEFT_ALONE = ("closed by peer", "Connection reset", "Timed out", "timed out", "DistBackendError", "Broken pipe")
# What a line is about.
PROGRESS, WARNING, ERROR, CRASHED = "unmdpo-progress: ", "unmdpo-warning: ", "unmdpo-error: ", "unmdpo-crash: "
MEMORY = "unmdpo-memory: "


def make(run: Run, stage: Stage[Any], report: Callable[[str], None]) -> None:
    """Runs one stage whose inputs are finished; over several ranks if the recipe asks and the stage can."""
    if ranks_of(run, stage) > 1:
        launch(run, stage, report)
    else:
        make_here(run, stage, report)


def launch(run: Run, stage: Stage[Any], report: Callable[[str], None]) -> None:
    """Runs a stage on this machine, with as many processes as the recipe asks for."""
    count = ranks_of(run, stage)
    if torch.cuda.is_available() and torch.cuda.device_count() < count:
        raise UserError(f"{stage.name} wants {count} ranks, but this machine has {torch.cuda.device_count()} GPUs")
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w+", encoding="utf-8") as errors:
        recipe = Path(folder) / "recipe.json"
        recipe.write_text(run.recipe.model_dump_json(), "utf-8")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
            "-m", "unmdpo.pipeline.executors.ranks", str(recipe), str(run.store.root), stage.name,
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
        told = errors.read()
    if started.returncode:
        raise _failure(told, stage, count)


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


def take_part(run: Run, stage: Stage[Any], report: Callable[[str], None] | None = None) -> None:
    """Runs on each rank: the first creates the artifact, the others help with the work."""
    device, silent = local_device(), _silent
    ranks = join(device, run.recipe.compute.rank_minutes)
    inputs, called = run.inputs_of(stage), list[bool]()

    def work(folder: Path) -> Mapping[str, Any]:
        called.append(ranks.agree(True, device))
        return job_of(run, stage, folder, inputs, report or silent).do()

    if ranks.first:
        run.store.make(stage.place, manifest_head(run, stage, inputs), work)
        if not called:
            ranks.agree(False, device)  # another process made it: the others can stop
    elif ranks.agree(True, device):
        folder = run.store.work_folder(stage.place)
        job_of(run, stage, folder, inputs, silent).do()
    part(f"unmdpo/{stage.place}")


def _silent(text: str) -> None:
    """Ignores progress: the first rank reports it."""


def _tell(text: str) -> None:
    print(f"{PROGRESS}{text}", flush=True)


def _warn(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Passes our own warnings on, from the first rank; those of libraries are for developers."""
    if issubclass(category, UnmdpoWarning) and os.environ.get("RANK") == "0":
        print(f"{WARNING}{json.dumps(str(message))}", flush=True)


def main(recipe: str, root: str, name: str) -> None:
    warnings.showwarning = _warn  # type: ignore[assignment]
    end_with_input()
    run = open_run(Recipe.model_validate_json(Path(recipe).read_text("utf-8")), Store(Path(root)))
    try:
        take_part(run, run.stages[name], _tell)
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
