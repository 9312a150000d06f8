"""A whole training run in a folder: resume, train, validate, log, checkpoint.

folder/metrics.jsonl      what training did: the same bytes whether or not it was interrupted
folder/throughput.log   how fast it went
folder/checkpoints/       the last few, including the final one, each with both logs up to it; or in a folder apart
"""

import contextlib
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from unmdpo.core.errors import Stopped
from unmdpo.engine.cost import forward_flops, training_passes
from unmdpo.engine.pairs.score import score
from unmdpo.engine.rates import peak_rate
from unmdpo.engine.training.checkpoint import load_checkpoint, newest_intact, save_checkpoint
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.metrics import JsonLines, Sink, batch_metrics
from unmdpo.engine.training.trainer import Trainer
from unmdpo.objectives import AdaptiveObjective
from unmdpo.scale import Units

LOGS = METRICS, THROUGHPUT = "metrics.jsonl", "throughput.log"
EVAL_LOSS = "eval_loss"


@dataclass(frozen=True)
class LoopSettings:
    checkpoint_updates: int | None = None  # save after this many updates
    keep: int = 2
    worth_minutes: float = 0.0  # after the last update, save only what took longer than this to train
    validate_updates: int | None = None  # validation always follows the last update
    patience: int | None = None  # validations in a row without a smaller loss


def train(
    trainer: Trainer,
    folder: Path,
    settings: LoopSettings | None = None,
    *,
    saved: Path | None = None,
    validation: "Validation | None" = None,
    sinks: Sequence[Sink] = (),
) -> Path | None:
    """Trains to the end of the budget, or of patience, from the last checkpoint if any; returns the newest one."""
    settings, saved = settings or LoopSettings(), saved or folder / "checkpoints"
    newest = trainer.ranks.share(newest_intact(saved) if trainer.ranks.first else None)
    if newest is not None:
        load_checkpoint(trainer, newest)
    log, timer = Log(trainer, folder, sinks, newest), Timer(trainer.compute.checkpoint_minutes)
    patience = Patience.after(settings.patience, newest)
    with StopRequests() as stop, contextlib.closing(log):
        while trainer.update < trainer.updates and not patience.lost(trainer):
            started = time.perf_counter()
            metrics = trainer.step()
            seconds = time.perf_counter() - started
            last = trainer.update == trainer.updates
            if validation is not None and (last or _due(trainer.update, settings.validate_updates)):
                metrics |= validation(trainer)
                patience.note(metrics)
                last |= patience.lost(trainer)
            log.write(metrics, seconds)
            timely = trainer.ranks.agree(timer.rings(), trainer.device)
            timely |= last and trainer.ranks.agree(timer.minutes >= settings.worth_minutes, trainer.device)
            stopping = trainer.ranks.agree(stop.asked is not None, trainer.device)
            if timely or stopping or _due(trainer.update, settings.checkpoint_updates):
                newest = save_checkpoint(trainer, saved, keep=settings.keep, logs=[folder / name for name in LOGS])
                timer = Timer(trainer.compute.checkpoint_minutes)
            if stopping:
                raise Stopped(stop.asked or signal.SIGTERM)
    return newest


@dataclass(frozen=True)
class Patience:
    """Ends training when the validation loss has not become smaller for too long."""

    most: int | None
    losses: list[float]

    @classmethod
    def after(cls, most: int | None, resumed: Path | None) -> "Patience":
        lines = [] if resumed is None else (resumed / METRICS).read_text("utf-8").splitlines()
        patience = cls(most, [])
        for line in lines:
            patience.note(json.loads(line))
        return patience

    def note(self, metrics: Mapping[str, float]) -> None:
        if EVAL_LOSS in metrics:
            self.losses.append(metrics[EVAL_LOSS])

    def lost(self, trainer: Trainer) -> bool:
        """The first rank decides: others may round otherwise."""
        return self.most is not None and trainer.ranks.agree(self.worn_out, trainer.device)

    @property
    def worn_out(self) -> bool:
        if self.most is None or len(self.losses) <= self.most:
            return False
        return min(self.losses[-self.most :]) >= min(self.losses[: -self.most])


@dataclass(frozen=True)
class Validation:
    """Evaluates held-out pairs without changing anything.

    A scale trained with the policy predicts q for new prompts from their features, so it needs `units`.
    """

    data: TrainingData
    units: Units | None = None

    @torch.no_grad()
    def __call__(self, trainer: Trainer) -> dict[str, float]:
        """The objective's loss and the batch metrics, averaged over the valid pairs, named `eval_…`."""
        logs = score(trainer.scorer, self.data.pairs, trainer.budget)
        slots, rule = self.data.valid(range(len(self.data))), trainer.rule
        if not slots:
            return {}
        scales, losses = self._scales(trainer), []
        for start in range(0, len(slots), trainer.settings.batch):
            part = slots[start : start + trainer.settings.batch]
            pairs = self.data.logps(part, logs[part], None if scales is None else scales[part])
            adapted = []
            if isinstance(rule, AdaptiveObjective):
                state = trainer.adaptive_state
                settings = trainer.objective.settings
                adapted = [rule.adapt(pairs.log_ratio, state, train=False, **settings)[0]]
            losses.append(trainer.losses(part, pairs, *adapted, data=self.data))
        pairs = self.data.logps(slots, logs[slots], None if scales is None else scales[slots])
        metrics = {"loss": float(torch.cat(losses).mean()), **batch_metrics(pairs, rule, trainer.resolved)}
        return {f"eval_{name}": value for name, value in metrics.items()}

    def _scales(self, trainer: Trainer) -> Tensor | None:
        if trainer.scale is None or self.units is None:
            return self.data.scale
        return trainer.scale.predict(self.units)[self.data.units(range(len(self.data)))]


def _due(update: int, every: int | None) -> bool:
    return every is not None and update % every == 0


class Timer:
    def __init__(self, minutes: float) -> None:
        self._began, self._after = time.monotonic(), minutes

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._began) / 60

    def rings(self) -> bool:
        return self.minutes >= self._after


class Log:
    """Writes metrics and throughput to files and sinks, on the first rank only."""

    def __init__(self, trainer: Trainer, folder: Path, sinks: Sequence[Sink], resumed: Path | None) -> None:
        """After a checkpoint, logs continue as they were then."""
        self._silent = not trainer.ranks.first
        if self._silent:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name in LOGS:
            (folder / name).unlink(missing_ok=True)
            if resumed is not None:
                shutil.copyfile(resumed / name, folder / name)
        self._metrics, self._pace = (JsonLines(folder / name) for name in LOGS)
        self._sinks, self._tokens = sinks, trainer.num_tokens
        lengths = trainer.data.pairs.valid_lengths
        passes = training_passes(trainer.model, trainer.rule.adaptive)
        self._flops = passes * forward_flops(trainer.model, lengths) / max(1, int(lengths.sum()))  # per token
        self._peak = peak_rate(trainer.device)
        self._world = trainer.ranks.world

    def write(self, metrics: dict[str, float], seconds: float) -> None:
        if self._silent:
            return
        update = int(metrics["update"])
        tokens, self._tokens = metrics["num_tokens"] - self._tokens, int(metrics["num_tokens"])
        pace = {
            "throughput/pairs_per_s": metrics["pairs/valid"] / seconds,
            "throughput/tokens_per_s": tokens / seconds,
            "throughput/update_s": seconds,
        }
        if self._peak is not None:
            pace["throughput/mfu"] = self._flops * tokens / seconds / (self._peak * self._world)
        self._metrics.log(update, metrics)
        self._pace.log(update, pace)
        for sink in self._sinks:
            sink.log(update, metrics | pace)

    def close(self) -> None:
        if not self._silent:
            for sink in (self._metrics, self._pace, *self._sinks):
                sink.close()


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """Inside this context, stop signals are noted instead of acted on, and the first one counts. Sending the same
    signal again stops at once."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self._seen: set[int] = set()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread may handle signals
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        self._seen.add(number)
        self.asked = self.asked or number
        if number == signal.SIGINT:
            print("stopping after this update; press Ctrl-C again to stop immediately", file=sys.stderr, flush=True)
