"""Judges that are trained here, as a stage of a run."""

import shutil
from dataclasses import asdict

from unmdpo.engine.inference.judges import JudgeTraining
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.training.loop import LOGS
from unmdpo.engine.training.metrics import sinks_of
from unmdpo.engine.training.reward import RewardSettings
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import MODEL
from unmdpo.stages.shared.judge_training import train_judge


def train(job: Job, *, training: JudgeTraining, model: ModelSource) -> Notes:
    """Trains the judge from a model, and measures it on prompts that it has not seen."""
    judge = train_judge(
        training,
        model,
        job.folder / MODEL.name,
        _settings(training),
        state=job.state,
        held_out=training.held_out,
        margins=training.margins,
        base=model.path,
        compute=job.compute,
        sinks=sinks_of(job.logging, job.stage.name),
        report=job.report,
    )
    for log in LOGS:
        shutil.copyfile(job.state / log, job.folder / log)
    notes = {"trained_on": judge.trained_on, "left_out": judge.left_out, "held_out": asdict(judge.held_out.every)}
    return notes | {"proof": judge.proof.notes}


def _settings(given: JudgeTraining) -> RewardSettings:
    return RewardSettings(given.epochs, given.batch, given.learning_rate, given.max_length, given.lora, given.seed)


JUDGE_STAGE = Kind("judge", train, uses_model=True, trains=True)
