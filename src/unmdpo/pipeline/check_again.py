"""Checks a scale of a finished run once more, with prompts' features exchanged at random."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from unmdpo.errors import UserError, did_you_mean
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stage import Job
from unmdpo.pipeline.stages.checks import CHECK_STAGE, checked
from unmdpo.scale.check import Check


def check_again(run: Run, name: str, exchanges: int, report: Callable[[str], None]) -> Check:
    stage = run.stages.get(CHECK_STAGE.called(name))
    if stage is None and name not in run.recipe.scales:
        raise UserError(f"there is no scale '{name}'; {did_you_mean(name, run.recipe.scales)}")
    if stage is None:
        raise UserError(
            f"scale '{name}' cannot be checked: it is not fitted to pilots of this run, so nothing can be held out"
        )
    with TemporaryDirectory() as folder:
        job = Job(stage, Path(folder), run.inputs_of(stage), run.recipe.compute, report)
        return checked(job, exchanges)
