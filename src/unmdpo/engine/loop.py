"""A whole training run in a folder: resume, train, validate, log, checkpoint.

folder/metrics.jsonl      what training did: the same bytes whether or not it was interrupted
folder/throughput.jsonl   how fast it went
folder/checkpoints/       the last few, and the terminal one
"""

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmdpo.engine.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from unmdpo.engine.flops import forward_flops, matrix_rate, training_passes
from unmdpo.engine.score import Validation
from unmdpo.engine.sinks import JsonLines, Sink
from unmdpo.engine.stopping import StopRequests
from unmdpo.engine.train import Trainer
from unmdpo.errors import Stopped
from unmdpo.objectives import AdaptiveObjective


@dataclass(frozen=True)
class LoopSettings:
    checkpoint_updates: int | None = None  # after every so many updates
    checkpoint_minutes: float | None = 15.0  # or when so much time has passed
    keep: int = 2
    validate_updates: int | None = None  # the last update is always followed by a validation


def train(
    trainer: Trainer,
    folder: Path,
    settings: LoopSettings | None = None,
    *,
    validation: Validation | None = None,
    sinks: Sequence[Sink] = (),
) -> Path:
    """Trains to the end of the budget, from the last checkpoint if there is one; gives the terminal one."""
    settings, saved = settings or LoopSettings(), folder / "checkpoints"
    newest = next(reversed(checkpoints(saved)), None)
    if newest is not None:
        load_checkpoint(trainer, newest)
    log, timer = Log(trainer, folder, sinks), Timer(settings.checkpoint_minutes)
    with StopRequests() as stop, contextlib.closing(log):
        while newest is None or trainer.update < trainer.settings.updates:
            started = time.perf_counter()
            metrics = trainer.step()
            seconds = time.perf_counter() - started
            last = trainer.update == trainer.settings.updates
            if validation is not None and (last or _due(trainer.update, settings.validate_updates)):
                metrics |= validation(trainer)
            log.write(metrics, seconds)
            timely = trainer.ranks.agree(timer.rings(), trainer.device)
            stopping = trainer.ranks.agree(stop.asked is not None, trainer.device)
            if last or timely or stopping or _due(trainer.update, settings.checkpoint_updates):
                newest = save_checkpoint(trainer, saved, keep=settings.keep)
                timer = Timer(settings.checkpoint_minutes)
            if stopping:
                raise Stopped(stop.asked or signal.SIGTERM)
    return newest


def _due(update: int, every: int | None) -> bool:
    return every is not None and update % every == 0


class Timer:
    def __init__(self, minutes: float | None) -> None:
        self._due = None if minutes is None else time.monotonic() + 60 * minutes

    def rings(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due


class Log:
    """The first rank's files and sinks, and the pace of the run."""

    def __init__(self, trainer: Trainer, folder: Path, sinks: Sequence[Sink]) -> None:
        self._silent = not trainer.ranks.first
        if self._silent:
            return
        self._metrics, self._pace = (
            JsonLines(folder / name, trainer.update) for name in ("metrics.jsonl", "throughput.jsonl")
        )
        self._sinks, self._tokens = sinks, trainer.num_tokens
        lengths = trainer.data.pairs.lengths[trainer.data.pairs.valid]
        passes = training_passes(trainer.model, isinstance(trainer.rule, AdaptiveObjective))
        self._flops = passes * forward_flops(trainer.model, lengths) / max(1, int(lengths.sum()))  # a token
        self._peak = matrix_rate(trainer.device) * trainer.ranks.world

    def write(self, metrics: dict[str, float], seconds: float) -> None:
        if self._silent:
            return
        update = int(metrics["update"])
        tokens, self._tokens = metrics["num_tokens"] - self._tokens, int(metrics["num_tokens"])
        pace = {
            "throughput/pairs_per_s": metrics["pairs/valid"] / seconds,
            "throughput/tokens_per_s": tokens / seconds,
            "throughput/mfu": self._flops * tokens / seconds / self._peak,
            "throughput/update_s": seconds,
        }
        self._metrics.log(update, metrics)
        self._pace.log(update, pace)
        for sink in self._sinks:
            sink.log(update, metrics | pace)

    def close(self) -> None:
        if not self._silent:
            for sink in (self._metrics, self._pace, *self._sinks):
                sink.close()
