"""Training a policy on comparisons: one update at a time, whatever the packing.

The loss is the mean over the valid pairs of the global batch. Pairs are packed into microbatches of a
fixed token budget; each contributes its share of that mean, so the gradient does not depend on how
they were packed. Objectives that follow batch statistics get a pass without gradient first, and the
rest pay nothing for it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.masters import MasterWeights
from unmdpo.engine.packing import PackedBatch, first_fit, padded_length
from unmdpo.engine.schedule import Schedule, batch_of, learning_rate
from unmdpo.engine.scoring import response_log_probs
from unmdpo.errors import UserError
from unmdpo.objectives import OBJECTIVES, AdaptiveObjective, PairLogps, take
from unmdpo.scale import ScaleBesidePolicy


@dataclass(frozen=True)
class TrainingSettings:
    """The paper's contract as defaults ("Policy training and baseline settings")."""

    updates: int = 150
    batch: int = 128
    learning_rate: float = 1e-6
    warmup: int = 20
    schedule: Schedule = "constant"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-5
    clip: float = 1.0
    seed: int = 42
    token_budget: int = 16_384  # tokens of a packed microbatch


@dataclass(frozen=True)
class TrainingData:
    """Everything about the loader's slots that an update looks up."""

    pairs: EncodedPairs
    strength: Tensor  # (n,)
    reference: Tensor | None = None  # (n, 2) log-probabilities of chosen and rejected
    scale: Tensor | None = None  # (n,) frozen q
    unit: Tensor | None = None  # (n,) unit of each pair, for a scale that learns beside the policy


@dataclass(frozen=True)
class ObjectiveChoice:
    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trainer:
    """A policy, its optimizer, and the state of an adaptive objective or a scale beside it."""

    model: PreTrainedModel
    data: TrainingData
    objective: ObjectiveChoice
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    scale: ScaleBesidePolicy | None = None

    def __post_init__(self) -> None:
        self.update = 0
        self.rule = OBJECTIVES[self.objective.name]
        self.adaptive_state = None
        if isinstance(self.rule, AdaptiveObjective):
            self.adaptive_state = self.rule.init(self.settings.seed, **self.objective.settings)
        if self.rule.spec.reference and self.data.reference is None:
            raise UserError(f"objective '{self.rule.name}' needs reference log-probabilities")
        if self.rule.spec.scale and self.data.scale is None and self.scale is None:
            raise UserError(f"objective '{self.rule.name}' needs a scale")
        self.masters = MasterWeights(self.model)
        self.optimizer = torch.optim.AdamW(
            self.masters.parameters,
            lr=self.settings.learning_rate,
            betas=self.settings.betas,
            eps=self.settings.eps,
            weight_decay=self.settings.weight_decay,
            fused=self.device.type == "cuda",
        )

    @property
    def device(self) -> torch.device:
        return self.model.device

    def run(self) -> Iterator[dict[str, float]]:
        """Trains to the end of the budget; one line of metrics for each update."""
        while self.update < self.settings.updates:
            yield self.step()

    def step(self) -> dict[str, float]:
        """One update."""
        s = self.settings
        slots = batch_of(self.update, len(self.data.pairs), s.batch, s.seed)
        valid = [slot for slot in slots if self.data.pairs.valid[slot]]
        rate = learning_rate(
            self.update, peak=s.learning_rate, warmup=s.warmup, updates=s.updates, schedule=s.schedule
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        metrics = {"update": float(self.update), "learning_rate": rate, "pairs/valid": float(len(valid))}
        if valid:
            metrics |= self._descend(valid)
        self.update += 1
        return metrics

    def _descend(self, slots: list[int]) -> dict[str, float]:
        """Gradients of the mean loss over `slots`, microbatch by microbatch, then one step.

        Nothing waits for the device until all microbatches are under way.
        """
        bins = self._bins(slots)
        scales = self._scales(slots)
        knobs = self._adapt(slots, bins)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.train()
        losses, logps = torch.empty(len(slots), device=self.device), torch.empty(len(slots), 2)
        logps = logps.to(self.device)
        for members in bins:
            logs = self._log_probs(slots, members)
            pairs, index = (
                self._pairs(slots, members, logs, scales),
                torch.tensor(members, device=self.device),
            )
            adapted = [] if knobs is None else [take(knobs, index)]
            loss = self.rule.loss(pairs, *adapted, **self.objective.settings)
            (loss.sum() / len(slots)).backward()  # type: ignore[no-untyped-call]
            losses[index], logps[index] = loss.detach().float(), logs.detach().float()
        self._check_finite("loss", losses, slots)
        norm = torch.nn.utils.clip_grad_norm_(self.masters.parameters, self.settings.clip)
        self._check_finite("gradient", norm.expand(len(slots)), slots)
        self.optimizer.step()
        self.masters.publish()
        logps = logps.cpu()
        if self.scale is not None:
            self._step_scale(slots, logps)
        mean = float(losses.mean())
        return {"loss": mean, "grad_norm": float(norm), **self._reward_metrics(slots, logps)}

    def _log_probs(self, slots: Sequence[int], members: Sequence[int]) -> Tensor:
        """(m, 2) log-probabilities of some of the slots."""
        return response_log_probs(self.model, self._packed(slots, members))

    def _bins(self, slots: Sequence[int]) -> list[list[int]]:
        """Microbatches, as positions in `slots`."""
        lengths = self.data.pairs.lengths[list(slots)].sum(axis=1).tolist()
        return first_fit(lengths, max(self.settings.token_budget, max(lengths)))

    def _packed(self, slots: Sequence[int], members: Sequence[int]) -> PackedBatch:
        pairs = self.data.pairs.select(slots[i] for i in members)
        length = padded_length(sum(pair.tokens for pair in pairs), self.settings.token_budget)
        return PackedBatch.of(pairs, length).to(self.device)

    def _pairs(
        self, slots: Sequence[int], members: Sequence[int], logs: Tensor, scales: Tensor | None
    ) -> PairLogps:
        index = torch.tensor([slots[i] for i in members])
        lengths = torch.from_numpy(self.data.pairs.lengths[index.numpy()])
        reference = self.data.reference

        def on_device(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.to(logs.device)

        return PairLogps(
            chosen=logs[:, 0],
            rejected=logs[:, 1],
            chosen_tokens=lengths[:, 1].to(logs.device),
            rejected_tokens=lengths[:, 2].to(logs.device),
            strength=self.data.strength[index].to(logs.device),
            ref_chosen=on_device(None if reference is None else reference[index, 0]),
            ref_rejected=on_device(None if reference is None else reference[index, 1]),
            scale=on_device(None if scales is None else scales[members]),
        )

    def _scales(self, slots: list[int]) -> Tensor | None:
        if self.scale is not None:
            return self.scale.scales(self._units(slots))
        return None if self.data.scale is None else self.data.scale[slots]

    def _units(self, slots: list[int]) -> Tensor:
        if self.data.unit is None:
            raise UserError("a scale that learns beside the policy needs the unit of every pair")
        return self.data.unit[slots]

    def _adapt(self, slots: list[int], bins: list[list[int]]) -> Any:
        """Knobs of the whole batch from a pass without gradient, for the objectives that need one."""
        if not isinstance(self.rule, AdaptiveObjective):
            return None
        ratios = torch.empty(len(slots), device=self.device)
        with torch.no_grad():
            for members in bins:
                logs = self._log_probs(slots, members)
                ratios[members] = self._pairs(slots, members, logs, None).log_ratio.float()
        knobs, self.adaptive_state = self.rule.adapt(ratios, self.adaptive_state, **self.objective.settings)
        return knobs

    def _step_scale(self, slots: list[int], logps: Tensor) -> None:
        assert self.scale is not None
        pairs = self._pairs(slots, range(len(slots)), logps, None)
        beta = self.rule.spec.resolve(self.rule.name, self.objective.settings)["beta"]
        normalized = self.rule.name.startswith("ulnm")
        ratio = pairs.mean_log_ratio if normalized else pairs.log_ratio
        self.scale.step(self._units(slots), beta * ratio, self.data.strength[slots])

    def _reward_metrics(self, slots: list[int], logps: Tensor) -> dict[str, float]:
        """The names that TRL's users know."""
        named = {
            "logps/chosen": float(logps[:, 0].mean()),
            "logps/rejected": float(logps[:, 1].mean()),
        }
        if self.data.reference is None:
            return named
        beta = float(self.rule.spec.resolve(self.rule.name, self.objective.settings).get("beta", 1.0))
        rewards = beta * (logps - self.data.reference[slots].float())
        margins = rewards[:, 0] - rewards[:, 1]
        return named | {
            "rewards/chosen": float(rewards[:, 0].mean()),
            "rewards/rejected": float(rewards[:, 1].mean()),
            "rewards/margins": float(margins.mean()),
            "rewards/accuracies": float((margins > 0).float().mean()),
        }

    def _check_finite(self, what: str, values: Tensor, slots: Sequence[int]) -> None:
        """Stops before the weights are touched, and names the pairs."""
        broken = ~torch.isfinite(values.detach())
        if broken.any():
            named = [slot for slot, bad in zip(slots, broken.tolist(), strict=True) if bad]
            raise UserError(
                f"update {self.update}: the {what} is not finite for pairs {named[:16]}; "
                "the last checkpoint is good"
            )


@torch.no_grad()
def score(model: PreTrainedModel, pairs: EncodedPairs, token_budget: int = 16_384) -> Tensor:
    """(n, 2) log-probabilities of every pair: the reference cache and out-of-fold values. NaN if invalid."""
    was_training = model.training
    model.train(False)
    found = torch.full((len(pairs), 2), torch.nan)
    slots = [i for i in range(len(pairs)) if pairs.valid[i]]
    lengths = pairs.lengths.sum(axis=1)
    with contextlib.ExitStack() as after:
        after.callback(model.train, was_training)
        for members in first_fit([int(lengths[i]) for i in slots], max(token_budget, int(lengths.max()))):
            chosen = [slots[i] for i in members]
            batch = PackedBatch.of(
                pairs.select(chosen), padded_length(int(lengths[chosen].sum()), token_budget)
            )
            found[chosen] = response_log_probs(model, batch.to(model.device)).float().cpu()
    return found
