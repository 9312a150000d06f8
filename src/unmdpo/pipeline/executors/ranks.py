"""Runs one stage over several ranks: `torchrun` starts them, and the first one writes to the store.

torchrun … -m unmdpo.pipeline.executors.ranks RECIPE STORE STAGE
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from unmdpo.engine.ranks import join, local_device
from unmdpo.errors import Stopped, UserError
from unmdpo.pipeline.executors.making import manifest_head
from unmdpo.pipeline.run import Run, open_run
from unmdpo.pipeline.stage import Job, Stage
from unmdpo.pipeline.store import Store
from unmdpo.recipe import Recipe

USER_ERROR = 2  # exit code


def launch(run: Run, stage: Stage[Any]) -> None:
    """Runs a stage on this machine, with as many processes as the recipe asks for."""
    count = run.recipe.compute.ranks
    if torch.cuda.is_available() and torch.cuda.device_count() < count:
        raise UserError(f"compute.ranks is {count}, but this machine has {torch.cuda.device_count()} GPUs")
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.json"
        recipe.write_text(run.recipe.model_dump_json(), "utf-8")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
            "-m", "unmdpo.pipeline.executors.ranks", str(recipe), str(run.store.root), stage.name,
        ]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
            try:
                _, errors = started.communicate()
            except BaseException:
                started.terminate()  # torchrun forwards it, and the ranks write their checkpoint
                started.communicate()
                raise
    if started.returncode:
        raise UserError(_failure_message(errors, stage, count))


def _failure_message(errors: str, stage: Stage[Any], count: int) -> str:
    """The error a rank reported, or a message that a rank died or hung without reporting one."""
    for line in errors.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    ends = [line.strip() for line in errors.splitlines() if "exitcode" in line or "Timed out" in line]
    last = ends[-1] if ends else "torchrun gave no reason"
    return (
        f"{stage.name}: one of {count} ranks was lost ({last[:200]}): killed, hung, or out of memory. "
        "Its last checkpoint is kept, and the same command continues from there"
    )


def take_part(run: Run, stage: Stage[Any]) -> None:
    """Runs on each rank: the first creates the artifact, the others help with the work."""
    device = local_device()
    ranks = join(device, run.recipe.compute.rank_minutes)
    inputs, called = run.inputs_of(stage), list[bool]()

    def work(folder: Path) -> Mapping[str, Any]:
        called.append(ranks.agree(True, device))
        return Job(stage, folder, inputs, run.recipe.compute, _silent, run.store.proofs).do()

    if ranks.first:
        run.store.make(stage.place, manifest_head(run, stage, inputs), work)
        if not called:
            ranks.agree(False, device)  # another process made it: the others can stop
    elif ranks.agree(True, device):
        folder = run.store.work_folder(stage.place)
        Job(stage, folder, inputs, run.recipe.compute, _silent, run.store.proofs).do()


def _silent(text: str) -> None:
    """Ignores progress: the process that started the ranks shows it."""


def main(recipe: str, root: str, name: str) -> None:
    run = open_run(Recipe.model_validate_json(Path(recipe).read_text("utf-8")), Store(Path(root)))
    try:
        take_part(run, run.stages[name])
        dist.destroy_process_group()
    except Stopped as error:
        os._exit(128 + error.signal)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(USER_ERROR)  # not sys.exit: other ranks may be waiting for this one


if __name__ == "__main__":
    main(*sys.argv[1:])
