"""Trains a policy on comparisons, one update at a time, with any packing and number of ranks.

The loss is the mean over the valid pairs of the global batch, each as much as its weight. Pairs are laid out in
microbatches of a fixed token budget, and each contributes its share of that mean, so the gradient does not depend on
how pairs were packed or which rank computed them. Adaptive objectives get an extra pass without gradient first; the
others do not pay for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from unmdpo.core.errors import UserError
from unmdpo.engine.cost import microbatch_tokens
from unmdpo.engine.pairs.packing import PairBatch
from unmdpo.engine.pairs.proof import prove_once
from unmdpo.engine.pairs.router import load_metrics
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ComputeSettings, ObjectiveChoice, TrainingSettings, updates_per_epoch
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.metrics import batch_metrics
from unmdpo.engine.training.optimizer import MasterWeights, make_optimizer
from unmdpo.engine.training.schedule import batch_of, learning_rate, update_seed
from unmdpo.objectives import AdaptiveObjective, PairLogps, take
from unmdpo.objectives.losses import sft
from unmdpo.scale import PolicyTimeScale


@dataclass(frozen=True)
class Microbatch:
    members: list[int]  # positions among the batch's valid slots
    batch: PairBatch
    counts: bool  # False: only keeps the number of passes equal on all ranks


@dataclass(frozen=True)
class GlobalBatch:
    """The valid pairs of one update, and this rank's share of the work."""

    update: int
    slots: list[int]
    work: list[Microbatch]
    tokens: int  # over all ranks, each prompt counted once
    fill: float  # share of laid-out tokens that are not padding


@dataclass
class Trainer:
    """A policy, its optimizer, and the state of an adaptive objective or a scale beside it."""

    scorer: PairScorer
    data: TrainingData
    objective: ObjectiveChoice
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    scale: PolicyTimeScale | None = None

    def __post_init__(self) -> None:
        self.update, self.num_tokens = 0, 0
        self.updates, self.seed = self.settings.updates_over(len(self.data)), self.settings.random_seed
        self.ranks = Ranks.current()
        self.rule, self.resolved = self.objective.objective, self.objective.resolved
        self.adaptive_state = None
        if isinstance(self.rule, AdaptiveObjective):
            self.adaptive_state = self.rule.init(self.seed, **self.objective.settings)
        if self.rule.reference and self.data.reference is None:
            raise UserError(f"objective '{self.rule.name}' needs reference log-probabilities")
        if self.settings.router_aux_loss_coef and self.scorer.router is None:
            name = type(self.model).__name__
            raise UserError(
                f"training.router_aux_loss_coef is set, but {name} shows no routers of a mixture of experts"
            )
        if self.rule.scale and self.data.scale is None and self.scale is None:
            raise UserError(f"objective '{self.rule.name}' needs a scale")
        prove_once(self.scorer, self.data.pairs, self.compute.token_budget)
        if self.settings.router_aux_loss_coef and self.scorer.packing.layout == "single":
            raise UserError("training.router_aux_loss_coef does not work for a model that is scored one by one")
        self.budget = microbatch_tokens(self.scorer, self.compute.token_budget)
        self.masters = MasterWeights(self.model)
        s = self.settings
        self.optimizer = make_optimizer(
            self.masters.parameters,
            betas=s.betas,
            eps=s.eps,
            decay=s.weight_decay,
            offload=self.compute.offload_optimizer,
        )
        self._ahead: GlobalBatch | None = None

    @property
    def model(self) -> PreTrainedModel:
        return self.scorer.model

    @property
    def device(self) -> torch.device:
        return self.scorer.device

    def run(self) -> Iterator[dict[str, float]]:
        """Trains to the end of the budget, yielding the metrics of each update."""
        while self.update < self.updates:
            yield self.step()

    def step(self) -> dict[str, float]:
        """Does one update and returns its metrics."""
        s, batch = self.settings, self._global_batch()
        torch.manual_seed(update_seed(self.seed, self.update, self.ranks.rank))  # for dropout
        warmup = s.warmup_of(self.updates)
        rate = learning_rate(
            self.update, peak=s.learning_rate, warmup=warmup, updates=self.updates, schedule=s.schedule
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.num_tokens += batch.tokens
        metrics = {
            "update": self.update,
            "epoch": (self.update + 1) / updates_per_epoch(len(self.data), s.batch),
            "learning_rate": rate,
            "num_tokens": self.num_tokens,
            "pairs/valid": len(batch.slots),
        }
        if batch.slots:
            metrics |= {"fill": batch.fill, **self._descend(batch)}
        self.update += 1
        return metrics

    def _global_batch(self) -> GlobalBatch:
        ready, self._ahead = self._ahead, None
        return ready if ready is not None and ready.update == self.update else self._lay_out(self.update)

    def _lay_out(self, update: int) -> GlobalBatch:
        pairs = self.data.pairs
        slots = self.data.valid(batch_of(update, len(self.data), self.settings.batch, self.seed))
        groups = self.scorer.packing.groups(pairs.lengths[slots], self.budget, self.ranks.world)
        work = [
            Microbatch(members, self.scorer.prepare(pairs.select(slots[i] for i in members), self.budget), counts)
            for members, counts in self.ranks.turns(groups)
        ]
        fill = self.scorer.packing.fill(pairs.lengths[slots], groups, self.budget)
        return GlobalBatch(update, slots, work, int(pairs.lengths[slots].sum()), fill)

    def _descend(self, batch: GlobalBatch) -> dict[str, float]:
        """Accumulates gradients of the mean loss over microbatches, then takes one optimizer step.

        Nothing waits for the device until all microbatches are queued and the next batch is laid out.
        """
        scales = self._scales(batch.slots)
        knobs = self._adapt(batch)
        self.optimizer.zero_grad(set_to_none=True)
        self.scorer.train()
        results = torch.zeros(len(batch.slots), 3, device=self.device)  # loss, log-probabilities
        for part in batch.work:
            loss, logs, index = self._losses(batch, part, scales, knobs)
            # A sharded model averages gradients over the ranks; the loss is a sum over all of them.
            share = self.ranks.world / len(batch.slots) if part.counts else 0.0
            (loss.sum() * share + self._balance(batch, part)).backward()  # type: ignore[no-untyped-call]
            if part.counts:
                results[index] = torch.column_stack([loss, logs]).detach().float()
        if self.update + 1 < self.updates:
            self._ahead = self._lay_out(self.update + 1)
        results = self.ranks.total(results).cpu()
        self._check_finite("loss", results[:, 0], batch.slots)
        norm = self._clip()
        self._check_finite("gradient", norm.expand(len(batch.slots)), batch.slots)
        self.optimizer.step()
        self.masters.publish()
        if self.scale is not None:
            self._step_scale(batch.slots, results[:, 1:])
        logged = self._router_metrics()
        logged |= batch_metrics(self.data.logps(batch.slots, results[:, 1:], scales), self.rule, self.resolved)
        return {"loss": float(results[:, 0].mean()), "grad_norm": float(norm), **logged}

    def _losses(
        self, batch: GlobalBatch, part: Microbatch, scales: Tensor | None, knobs: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(m,) losses, (m, 2) log-probabilities, (m,) positions in the batch."""
        logs = self.scorer(part.batch.to(self.device))
        index = torch.tensor(part.members)
        mine = None if scales is None else scales[index]
        slots = [batch.slots[i] for i in part.members]
        pairs = self.data.logps(slots, logs, mine)
        index = index.to(self.device, non_blocking=True)
        adapted = [] if knobs is None else [take(knobs, index)]
        return self.losses(slots, pairs, *adapted), logs, index

    def losses(self, slots: list[int], pairs: PairLogps, *adapted: Any, data: TrainingData | None = None) -> Tensor:
        """(m,) what is minimized, of some slots of the training data, or of other data."""
        losses = self.rule.loss(pairs, *adapted, **self.objective.settings)
        if self.settings.sft:
            losses = losses + self.settings.sft * sft(pairs)
        return (data or self.data).weighted(slots, losses)

    def _balance(self, batch: GlobalBatch, part: Microbatch) -> Tensor | float:
        """This microbatch's share of the auxiliary loss, by its tokens."""
        router, weight = self.scorer.router, self.settings.router_aux_loss_coef
        if router is None or router.loss is None or not weight or not part.counts:
            return 0.0
        tokens = int(self.data.pairs.lengths[[batch.slots[i] for i in part.members]].sum())
        return weight * router.loss * (self.ranks.world * tokens / batch.tokens)

    def _router_metrics(self) -> dict[str, float]:
        router = self.scorer.router
        if router is None or router.counts is None:
            return {}
        metrics = load_metrics(self.ranks.total(router.counts).cpu())
        router.forget()
        return metrics

    def _clip(self) -> Tensor:
        """Clips gradients and returns their norm before clipping."""
        gradients = [p.grad for p in self.masters.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()
        torch.nn.utils.clip_grads_with_norm_(self.masters.parameters, self.settings.clip, norm)
        return norm.cpu()

    def _scales(self, slots: list[int]) -> Tensor | None:
        if self.scale is not None:
            return self.scale.scales(self.data.units(slots))
        return None if self.data.scale is None else self.data.scale[slots]

    def _adapt(self, batch: GlobalBatch) -> Any:
        """Knobs for the whole batch, from a pass without gradient, for objectives that need them."""
        if not isinstance(self.rule, AdaptiveObjective):
            return None
        ratios = self._log_ratios(batch)
        self._check_finite("log-ratio", ratios, batch.slots)
        knobs, self.adaptive_state = self.rule.adapt(ratios, self.adaptive_state, **self.objective.settings)
        return knobs

    @torch.no_grad()
    def _log_ratios(self, batch: GlobalBatch) -> Tensor:
        """(n,) log-ratios of the whole batch, the same on every rank."""
        self.scorer.train()  # as in the pass with gradient; only matters for dropout
        ratios = torch.zeros(len(batch.slots), device=self.device)
        for part in batch.work:
            logs = self.scorer(part.batch.to(self.device))
            if part.counts:
                pairs = self.data.logps([batch.slots[i] for i in part.members], logs, None)
                ratios[part.members] = pairs.log_ratio.float()
        return self.ranks.total(ratios)

    def _step_scale(self, slots: list[int], logps: Tensor) -> None:
        assert self.scale is not None
        weight = None if self.data.weight is None else self.data.weight[slots]
        self.scale.step(self.data.units(slots), self.evidence(slots, logps), self.data.strength[slots], weight)

    def evidence(self, slots: list[int], logps: Tensor) -> Tensor:
        """(m,) B = β·A of some slots, with A as in the objective: of whole responses, or per token."""
        pairs = self.data.logps(slots, logps, None)
        beta: float = dict(self.resolved)["beta"]
        return beta * (pairs.mean_log_ratio if self.rule.normalized else pairs.log_ratio)

    def _check_finite(self, what: str, values: Tensor, slots: list[int]) -> None:
        """Stops before the weights change, and names the pairs."""
        broken = ~torch.isfinite(values.detach())
        if broken.any():
            named = [slot for slot, bad in zip(slots, broken.tolist(), strict=True) if bad]
            raise UserError(
                f"update {self.update}: the {what} is not finite for pairs {named[:16]}; "
                "the last checkpoint is still good"
            )
