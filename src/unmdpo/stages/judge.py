"""Judges that are trained here, as a stage of a run."""

import shutil
from dataclasses import asdict

from unmdpo.core.settings import Strict
from unmdpo.engine.inference.judges import JudgeTraining
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.training.loop import LOGS
from unmdpo.engine.training.metrics import sinks_of
from unmdpo.engine.training.reward import RewardSettings
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import MODEL
from unmdpo.stages.shared.judge_training import train_judge


class TrainedJudgeSettings(Strict):
    training: JudgeTraining
    model: ModelSource  # that it starts from


def trained_judge(graph: Graph, name: str, training: JudgeTraining) -> Stage[TrainedJudgeSettings]:
    """A judge without a name is the only one."""
    model = training.model or graph.recipe.model
    settings = TrainedJudgeSettings(training=training, model=model)
    stage_name = JUDGE_STAGE.stage_name(*([name] if name else []))
    return graph.stage(JUDGE_STAGE, settings, {}, stage_name)


def train(job: Job[TrainedJudgeSettings]) -> Notes:
    """Trains the judge, and measures it on prompts that it has not seen."""
    given = job.settings.training
    judge = train_judge(
        given,
        job.settings.model,
        job.folder / MODEL.name,
        _settings(given),
        state=job.state,
        held_out=given.held_out,
        margins=given.margins,
        base=job.settings.model.path,
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


def _training_cost(estimates: Estimates, stage: Stage[TrainedJudgeSettings]) -> Cost:
    return estimates.training_judge(stage.settings.model, stage.settings.training.lora)


JUDGE_STAGE = Kind("judge", train, uses_model=True, cost=_training_cost)
