"""Scores a whole set of pairs, over all ranks."""

import torch
from torch import Tensor

from unmdpo.engine.cost import microbatch_tokens
from unmdpo.engine.pairs.proof import prove_once
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.tally import Report, Tally
from unmdpo.engine.text.encoded import EncodedPairs


@torch.no_grad()
def score(
    scorer: PairScorer, pairs: EncodedPairs, token_budget: int | None = None, report: Report | None = None
) -> Tensor:
    """(n, 2) log-probabilities of chosen and rejected for every pair, NaN where invalid."""
    prove_once(scorer, pairs, token_budget)
    ranks, was_training = Ranks.current(), scorer.training
    budget = microbatch_tokens(scorer, token_budget)
    slots = pairs.valid.nonzero()[0]
    log_probs, tally = torch.zeros(len(slots), 2, device=scorer.device), Tally(report, len(slots), "pairs scored")
    scorer.train(False)
    try:
        for members, counts in ranks.turns(scorer.packing.groups(pairs.lengths[slots], budget, ranks.world)):
            batch = scorer.prepare(pairs.select(slots[members].tolist()), budget)
            logs = scorer(batch.to(scorer.device)).float()
            if counts:
                log_probs[torch.tensor(members).to(scorer.device, non_blocking=True)] = logs
            tally.add(len(members) * ranks.world)
    finally:
        scorer.settle()
        scorer.train(was_training)
    scores = torch.full((len(pairs), 2), torch.nan)
    scores[torch.from_numpy(slots)] = ranks.total(log_probs).cpu()
    return scores
