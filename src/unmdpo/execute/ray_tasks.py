"""What runs on the nodes of a Ray cluster: one stage, or one stage over several ranks as a Ray Train job.

Tasks say where they are and how far they have come to an actor beside the driver, which never makes them wait."""

import os
import socket
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from unmdpo.core.errors import OutOfMemory, UserError
from unmdpo.engine.ranks import Ranks, device_name
from unmdpo.execute.driver import Attempt, Message, Outcome, outcome_of, with_part
from unmdpo.execute.ranks import take_part
from unmdpo.stages.opening import open_recorded
from unmdpo.stages.pipeline import Pipeline

FULL_GPU = "out of memory: "  # how a rank's problem begins that more room would solve
RETRIES = 2  # of a stage whose worker died; errors raised by the stage are not retried
REPORT_SECONDS = 1.0  # between two reports of a task


class Task(NamedTuple):
    """What a node needs to know."""

    run: str  # the name of its folder in the store
    root: str
    stage: str
    here: str  # the folder that paths in the recipe are relative to
    how: Attempt
    on_gpus: bool


class Ear:
    """The actor that tasks talk to."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def hear(self, message: Message) -> None:
        self._messages.append(message)

    def take(self) -> list[Message]:
        """What has arrived, in that order."""
        messages, self._messages = self._messages, []
        return messages


class Reporter:
    """Tells the driver's actor what a stage does, at most once a second, and waits for no answer."""

    def __init__(self, ear: Any, stage: str) -> None:
        self.ear = ear
        self.stage = stage
        self.reported_at = 0.0
        self.ear.hear.remote(Message("started", stage, f"{socket.gethostname()}, {device_name()}"))

    def __call__(self, text: str) -> None:
        if time.monotonic() - self.reported_at >= REPORT_SECONDS:
            self.reported_at = time.monotonic()
            self.ear.hear.remote(Message("progress", self.stage, text))


def work(task: Task, ear: Any) -> Outcome:
    """Runs a stage on some node. One that another run works on is given back, with its place on the GPU."""
    try:
        run = _opened(task)
    except UserError as error:
        return Outcome(str(error))
    stage = run.stages[task.stage]
    if run.store.is_taken(stage.place):
        return Outcome(taken=True)
    return outcome_of(run, stage, task.how, Reporter(ear, task.stage))


def work_together(task: Task, ear: Any) -> Outcome:
    """Runs a stage as a Ray Train job with the recipe's number of ranks."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415 - an extra
    from ray.train.torch import TorchConfig, TorchTrainer  # noqa: PLC0415

    began = time.monotonic()
    try:
        run = _opened(task)
    except UserError as error:
        return Outcome(str(error))
    compute = run.recipe.compute
    wanted = compute.ray
    with tempfile.TemporaryDirectory(dir=run.store.root, prefix=".ray-") as records:
        problem = Path(records) / "problem"
        trainer = TorchTrainer(
            _rank,
            train_loop_config={"task": tuple(task), "problem": str(problem), "ear": ear},
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if task.on_gpus else "gloo", timeout_s=round(60 * compute.rank_minutes)
            ),
            scaling_config=ScalingConfig(  # type: ignore[call-arg] # it takes labels since 2.50

                num_workers=run.ranks(run.stages[task.stage]), use_gpu=task.on_gpus,
                resources_per_worker={"CPU": wanted.cpus, "GPU": int(task.on_gpus)},
                accelerator_type=wanted.gpu_type, label_selector=wanted.labels or None,
            ),
            run_config=RunConfig(name="job", storage_path=records, failure_config=FailureConfig(max_failures=RETRIES)),
        )  # fmt: skip
        try:
            trainer.fit()
        except Exception:
            text = problem.read_text("utf-8") if problem.exists() else traceback.format_exc()
            return Outcome(text.removeprefix(FULL_GPU), text.startswith(FULL_GPU))
    return Outcome(seconds=time.monotonic() - began)


def _rank(config: dict[str, Any]) -> None:
    """Runs on each rank, in the process group that Ray Train created, and from a folder of Ray Train's own."""
    task = Task(*config["task"])
    problem = Path(config["problem"])
    if problem.exists():
        raise RuntimeError("an earlier attempt failed with a user error; reattempt would not help")
    run = _opened(task)
    run = with_part(run, run.stages[task.stage], task.how)
    report = Reporter(config["ear"], task.stage) if Ranks.current().first else lambda text: None
    try:
        take_part(run, run.stages[task.stage], report)
    except UserError as error:
        full = FULL_GPU if isinstance(error, OutOfMemory) else ""
        problem.write_text(f"{full}{error}", "utf-8")
        raise


def _opened(task: Task) -> Pipeline:
    """Paths in a recipe are relative to the folder that the run was started in, if this node has it."""
    if Path(task.here).is_dir():
        os.chdir(task.here)
    if not (Path(task.root) / "runs" / task.run).is_dir():
        raise UserError(
            f"{task.root}: the store is not seen under this path by {socket.gethostname()}. It must lie on a file "
            "system that all nodes share, such as NFS or Lustre; object storage is not one"
        )
    return open_recorded(Path(task.root), task.run)
