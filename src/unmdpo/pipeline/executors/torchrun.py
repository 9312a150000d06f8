"""Runs a recipe inside a job that `torchrun` started, on one machine or on several that see the same store.

torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m unmdpo run RECIPE

All ranks share the stages that ask for as many ranks as there are. The first does the others while the rest wait.
"""

import os
import time
import warnings
from collections.abc import Sequence
from functools import partial

from unmdpo.engine.ranks import Ranks, alone, join, local_device
from unmdpo.errors import UnmdpoWarning, UserError
from unmdpo.pipeline.executors.making import make_here
from unmdpo.pipeline.executors.ranks import take_part
from unmdpo.pipeline.run import Run, ranks_of
from unmdpo.pipeline.view import View

POLL = 0.2  # seconds between looks at the store


def inside_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def join_torchrun(run: Run) -> Ranks:
    return join(local_device(), run.recipe.compute.rank_minutes)


def all_together(run: Run, missing: Sequence[str], view: View) -> None:
    """Runs the missing stages, one after another."""
    ranks = Ranks.current()
    view = view if ranks.first else View()
    if ranks.first and missing and all(ranks_of(run, run.stages[name]) == 1 for name in missing):
        warnings.warn(
            f"no stage is shared by the {ranks.world} processes of this job: set compute.ranks={ranks.world}",
            UnmdpoWarning,
            stacklevel=2,
        )
    for name in missing:
        stage, began = run.stages[name], time.monotonic()
        wanted = ranks_of(run, stage)
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
                make_here(run, stage, partial(view.progress, name))
        while run.find(stage) is None:  # not a barrier, which would give up; if the first rank fails, torchrun ends us
            time.sleep(POLL)
        view.finished(name, time.monotonic() - began)
