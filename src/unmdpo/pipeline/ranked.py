"""One stage over several ranks: `torchrun` starts them, the first one owns the store.

torchrun … -m unmdpo.pipeline.ranked RECIPE STORE STAGE
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
from unmdpo.pipeline.run import Run, describe, finished_inputs, open_run
from unmdpo.pipeline.stage import Job, Stage
from unmdpo.pipeline.store import Store
from unmdpo.recipe import Recipe

USER_ERROR = 2  # exit code


def launch(run: Run, stage: Stage) -> None:
    """Makes a stage with as many processes as the recipe asks for, on this machine."""
    count = run.recipe.compute.ranks
    if torch.cuda.is_available() and torch.cuda.device_count() < count:
        raise UserError(f"compute.ranks is {count}, and this machine has {torch.cuda.device_count()} GPUs")
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.json"
        recipe.write_text(run.recipe.model_dump_json(), "utf-8")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
            "-m", "unmdpo.pipeline.ranked", str(recipe), str(run.store.root), stage.name,
        ]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
            try:
                _, told = started.communicate()
            except BaseException:
                started.terminate()  # torchrun passes it on, and the ranks write their checkpoint
                started.communicate()
                raise
    if started.returncode:
        raise UserError(_what_happened(told, stage, count))


def _what_happened(told: str, stage: Stage, count: int) -> str:
    """A mistake that a rank told; else a rank that ended, or was waited for too long, without a word."""
    for line in told.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    ends = [line.strip() for line in told.splitlines() if "exitcode" in line or "Timed out" in line]
    last = ends[-1] if ends else "torchrun says nothing of it"
    return (
        f"{stage.name}: one of {count} ranks was lost ({last[:200]}): killed, hung, or out of memory. "
        "Its last checkpoint is kept, and the same command goes on from there"
    )


def take_part(run: Run, stage: Stage) -> None:
    """On one of the ranks: the first makes the artifact, the others lend a hand with the work."""
    device = local_device()
    ranks = join(device, run.recipe.compute.rank_minutes)
    inputs, called = finished_inputs(run, stage), list[bool]()

    def work(folder: Path) -> Mapping[str, Any]:
        called.append(ranks.agree(True, device))
        return Job(stage, folder, inputs, run.recipe.compute, _nothing).do()

    if ranks.first:
        run.store.make(stage.place, describe(run, stage, inputs), work)
        if not called:
            ranks.agree(False, device)  # somebody else made it: nobody is needed
    elif ranks.agree(True, device):
        folder = run.store.root / "work" / stage.key
        Job(stage, folder, inputs, run.recipe.compute, _nothing).do()


def _nothing(text: str) -> None:
    """Progress is the first process's affair, and it is in another process."""


def main(recipe: str, root: str, name: str) -> None:
    run = open_run(Recipe.model_validate_json(Path(recipe).read_text("utf-8")), Store(Path(root)))
    try:
        take_part(run, run.stages[name])
        dist.destroy_process_group()
    except Stopped as error:
        os._exit(128 + error.signal)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(USER_ERROR)  # other ranks may be waiting for this one


if __name__ == "__main__":
    main(*sys.argv[1:])
