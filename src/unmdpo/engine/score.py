"""Log-probabilities of a whole dataset: the reference cache, out-of-fold values, validation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.rewards import describe
from unmdpo.engine.rows import TrainingData
from unmdpo.engine.scoring import PairScorer
from unmdpo.engine.train import Trainer
from unmdpo.objectives import AdaptiveObjective
from unmdpo.scale import Units


@torch.no_grad()
def score(scorer: PairScorer, pairs: EncodedPairs, token_budget: int | None = None) -> Tensor:
    """(n, 2) log-probabilities of chosen and rejected of every pair, NaN where invalid."""
    ranks, was_training = Ranks.current(), scorer.training
    budget = token_budget or scorer.default_budget
    slots = pairs.valid.nonzero()[0]
    found = torch.zeros(len(slots), 2, device=scorer.device)
    scorer.train(False)
    try:
        for members, counts in ranks.turns(scorer.packing.groups(pairs.lengths[slots], budget)):
            batch = scorer.prepare(pairs.select(slots[members].tolist()), budget)
            logs = scorer(batch.to(scorer.device)).float()
            if counts:
                found[torch.tensor(members).to(scorer.device, non_blocking=True)] = logs
    finally:
        scorer.settle()
        scorer.train(was_training)
    scores = torch.full((len(pairs), 2), torch.nan)
    scores[torch.from_numpy(slots)] = ranks.total(found).cpu()
    return scores


@dataclass(frozen=True)
class Validation:
    """Held-out pairs, looked at without changing anything.

    A scale that learns beside the policy judges new prompts by their features, so it needs `units`.
    """

    data: TrainingData
    units: Units | None = None

    @torch.no_grad()
    def __call__(self, trainer: Trainer) -> dict[str, float]:
        """The objective's loss and the rewards, averaged over the valid pairs, as `eval_…`."""
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
            losses.append(rule.loss(pairs, *adapted, **trainer.objective.settings))
        pairs = self.data.logps(slots, logs[slots], None if scales is None else scales[slots])
        found = {"loss": float(torch.cat(losses).mean()), **describe(pairs, rule.spec, trainer.resolved)}
        return {f"eval_{name}": value for name, value in found.items()}

    def _scales(self, trainer: Trainer) -> Tensor | None:
        if trainer.scale is None or self.units is None:
            return self.data.scale
        return trainer.scale.predict(self.units)[self.data.units(range(len(self.data)))]
