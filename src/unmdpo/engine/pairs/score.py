"""Scores a whole set of pairs, over all ranks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from unmdpo.engine.cost import microbatch_tokens
from unmdpo.engine.pairs.proof import prove_once
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.tally import Report, Tally
from unmdpo.engine.text.encoded import EncodedPairs

MOST = 64  # microbatches that are scored before they are kept


class Part(NamedTuple):
    """What is known of some places, while others are still to come."""

    places: Tensor  # (m,)
    values: Tensor  # (m, d)


class Kept(NamedTuple):
    """Scores of earlier attempts, and where those of this one go: what was scored is never scored again."""

    parts: Iterable[Part] = ()
    keep: Callable[[Part], None] | None = None


NOTHING = Kept()


@torch.no_grad()
def score(
    scorer: PairScorer,
    pairs: EncodedPairs,
    token_budget: int | None = None,
    report: Report | None = None,
    kept: Kept = NOTHING,
) -> Tensor:
    """(n, 2) log-probabilities of chosen and rejected for every pair, NaN where invalid."""
    prove_once(scorer, pairs, token_budget)
    ranks, was_training = Ranks.current(), scorer.training
    budget = microbatch_tokens(scorer, token_budget)
    scores, slots = torch.full((len(pairs), 2), torch.nan), torch.from_numpy(pairs.valid.nonzero()[0])
    for part in kept.parts:
        scores[part.places] = part.values
    known = ~scores[slots].isnan().any(dim=1)  # (m,) of the valid pairs
    log_probs, tally = torch.zeros(len(slots), 2, device=scorer.device), Tally(report, len(slots), "pairs scored")
    tally.add(int(known.sum()))
    kinds = scorer.packing.groups(pairs.lengths[slots.numpy()], budget, ranks.world)
    missing = ([members for members in kind if not known[members].all()] for kind in kinds)
    fresh: list[int] = []

    def keep() -> None:
        if fresh and kept.keep is not None:  # else the device need not wait for a copy
            places = torch.tensor(fresh)
            kept.keep(Part(slots[places], log_probs[places.to(scorer.device)].cpu()))
            fresh.clear()

    scorer.train(False)
    try:
        for number, (members, counts) in enumerate(ranks.turns(missing), start=1):
            batch = scorer.prepare(pairs.select(slots[members].tolist()), budget)
            logs = scorer(batch.to(scorer.device)).float()
            if counts:
                log_probs[torch.tensor(members).to(scorer.device, non_blocking=True)] = logs
                fresh += members
            tally.add(len(members) * ranks.world)
            if number % MOST == 0:
                keep()
    finally:
        scorer.settle()
        scorer.train(was_training)
        keep()
    found = ranks.total(log_probs).cpu()
    scores[slots[~known]] = found[~known]
    return scores
