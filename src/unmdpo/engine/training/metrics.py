"""What is logged about an update, and where.

Metrics have the names that TRL users know. JSON lines are the record; the terminal line, TensorBoard and W&B only show
it.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from unmdpo.core.extras import needed
from unmdpo.core.files import expand_home
from unmdpo.core.margins import StrengthMap
from unmdpo.core.settings import Strict
from unmdpo.engine.settings import LoggingSettings
from unmdpo.objectives import PairLogps
from unmdpo.objectives.table import MarginSettings, Objective

Metrics = Mapping[str, float]


class Sink(Protocol):
    def log(self, update: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One line per update, after those that are there."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def log(self, update: int, metrics: Metrics) -> None:
        self._file.write(json.dumps({"update": update} | dict(metrics)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Progress:
    """Reports progress as a short text after every update, with what the last validation found."""

    def __init__(self, updates: int, show: Callable[[str], object]) -> None:
        self.updates, self.show = updates, show
        self._following, self._validated = 0, dict[str, float]()

    def log(self, update: int, metrics: Metrics) -> None:
        if update != self._following:
            self.show(f"resumes after update {update} of {self.updates}")
        self._following = update + 1
        self._validated |= {name: value for name, value in metrics.items() if name.startswith("eval_")}
        self.show(describe_progress(update, self.updates, {**self._validated, **metrics}))

    def close(self) -> None: ...


def describe_progress(update: int, updates: int, metrics: Metrics) -> str:
    """`12/150 · loss 0.6421 · accuracy 0.70 · 48.9 pairs/s · 65,803 tokens/s · MFU 57% · ETA 5:59`."""
    parts = [f"{update + 1}/{updates}"]
    if "loss" in metrics:
        parts.append(f"loss {metrics['loss']:.4f}")
    if "rewards/accuracies" in metrics:
        held_out = metrics.get("eval_rewards/accuracies")
        beside = "" if held_out is None else f", held out {held_out:.2f}"
        parts.append(f"accuracy {metrics['rewards/accuracies']:.2f}{beside}")
    pace = metrics.get("throughput/pairs_per_s", 0.0)
    if pace > 0:
        parts += [f"{pace:.1f} pairs/s", f"{metrics['throughput/tokens_per_s']:,.0f} tokens/s"]
    if "throughput/mfu" in metrics:
        parts.append(f"MFU {100 * metrics['throughput/mfu']:.0f}%")
    left = (updates - update - 1) * metrics.get("throughput/update_s", 0.0)
    return " · ".join([*parts, f"ETA {clock(left)}"])


def roughly(seconds: float) -> str:
    """`about 3 hours`: no digits that an estimate does not have."""
    units = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
    unit, size = next((unit, size) for unit, size in units if seconds >= 1.5 * size or size == 1)
    count = seconds / size
    digits = math.floor(math.log10(max(count, 1)))
    step = 10**digits if count / 10**digits >= 2 else max(1, 10 ** (digits - 1))  # 12 and 15, but 20 and 30
    whole = max(1, round(count / step) * step)
    return f"about {whole} {unit}{'s' if whole > 1 else ''}"


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        with needed("logging to TensorBoard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        self._writer = SummaryWriter(str(folder))

    def log(self, update: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, update)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """API key and offline mode come from W&B's own environment variables."""

    def __init__(self, name: str, project: str, folder: Path | None = None) -> None:
        with needed("logging to W&B", "wandb"):
            import wandb  # noqa: PLC0415 - an extra
        self._run = wandb.init(project=project, name=name, dir=folder, reinit="create_new")

    def log(self, update: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=update)

    def close(self) -> None:
        self._run.finish()


def sinks_of(logging: LoggingSettings, name: str) -> list[Sink]:
    """What the recipe asks for, for one training."""
    sinks: list[Sink] = []
    if logging.tensorboard is not None:
        sinks.append(TensorBoard(expand_home(logging.tensorboard) / name))
    if logging.wandb is not None:
        sinks.append(WeightsAndBiases(name, logging.wandb.project))
    return sinks


def batch_metrics(pairs: PairLogps, objective: Objective, settings: Strict) -> dict[str, float]:
    """Means over a batch. Rewards are β times the log-ratio the objective uses: of whole responses, or per token for
    length-normalized objectives."""
    named = {"logps/chosen": pairs.chosen, "logps/rejected": pairs.rejected}
    if pairs.ref_chosen is not None and pairs.ref_rejected is not None:
        beta = getattr(settings, "beta", 1.0)
        chosen = beta * (pairs.chosen - pairs.ref_chosen) / (pairs.chosen_tokens if objective.normalized else 1)
        rejected = beta * (pairs.rejected - pairs.ref_rejected)
        rejected = rejected / (pairs.rejected_tokens if objective.normalized else 1)
        named |= {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": chosen - rejected,
            "rewards/accuracies": (chosen > rejected).float(),
        }
    if isinstance(settings, MarginSettings):
        named["margins/target"] = settings.tau * StrengthMap(settings.levels).of(pairs.strength)
    if pairs.scale is not None:
        named["scale/mean"] = pairs.scale
    return {name: _mean(values) for name, values in named.items()}


def _mean(values: Tensor) -> float:
    return float(values.float().mean())
