"""Judges that a recipe trains for itself: reward models, kept in the store with what they are worth."""

from dataclasses import asdict

from unmdpo.catalog.judges import JudgeTraining
from unmdpo.data.load import DataRef, Reading
from unmdpo.engine.inference.judges import start_of_judge
from unmdpo.engine.training.reward import RewardSettings
from unmdpo.pipeline.artifacts import MODEL
from unmdpo.pipeline.costs import Cost, Estimates
from unmdpo.pipeline.graph import Files, Graph
from unmdpo.pipeline.judge import train_judge
from unmdpo.pipeline.stage import Job, Kind, Notes, PinnedModel, Stage
from unmdpo.pipeline.stages.convert import converted_model
from unmdpo.settings import Strict


class TrainedJudgeSettings(Strict):
    training: JudgeTraining
    model: PinnedModel  # that it starts from
    files: Files


def trained_judge(graph: Graph, name: str, training: JudgeTraining) -> Stage[TrainedJudgeSettings]:
    """A judge without a name is the only one."""
    model = start_of_judge(training) or graph.recipe.model
    settings = TrainedJudgeSettings(
        training=training, model=graph.pinned(model), files=graph.data_files([training.path])
    )
    stage_name = JUDGE_STAGE.called(*([name] if name else []))
    return graph.stage(JUDGE_STAGE, settings, converted_model(graph, model), stage_name)


def places(training: JudgeTraining) -> tuple[DataRef, Reading]:
    """What to read, and how."""
    ref = DataRef.named(training.path, training.split, training.revision, training.config)
    return ref, Reading(training.source, columns=training.columns)


def train(job: Job[TrainedJudgeSettings]) -> Notes:
    """Trains the judge, and measures it on prompts that it has not seen."""
    given = job.settings.training
    judge = train_judge(
        *places(given),
        job.source(job.settings.model),
        job.folder / MODEL.name,
        RewardSettings(given.epochs, given.batch, given.learning_rate, given.max_length, given.lora, given.seed),
        held_out=given.held_out,
        margins=given.margins,
        base=job.settings.model.path,
        report=job.report,
    )
    return {"trained_on": judge.trained_on, "left_out": judge.left_out, "held_out": asdict(judge.held_out)}


def _training_cost(estimates: Estimates, stage: Stage[TrainedJudgeSettings]) -> Cost:
    """Only what it takes to hold it: how many pairs it learns from is known when they are read."""
    return estimates.holding(stage.settings.model, stage.settings.training.lora)


JUDGE_STAGE = Kind("judge", train, uses_model=True, cost=_training_cost)
