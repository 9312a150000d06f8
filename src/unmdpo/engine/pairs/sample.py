"""Pairs to try a layout on, in rows as full as those of training."""

import numpy as np
import torch
from torch import Tensor

from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs, longest


class Sample:
    """Pairs whose scores are compared, and others that fill the rows around them as in training."""

    def __init__(self, pairs: EncodedPairs, budget: int) -> None:
        self.places, self.budget = _handful(pairs), budget
        others = np.setdiff1d(pairs.valid.nonzero()[0], self.places)[:budget]
        enough = np.cumsum(pairs.lengths[others].sum(axis=1)).searchsorted(budget) + 1
        order = [
            *self.places[:1],
            *others[:enough].tolist(),
            *self.places[1:],
        ]  # in a row, some come before the others
        self.pairs, self._mine = pairs.select(order), [order.index(place) for place in self.places]
        self.lengths = pairs.lengths[order]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def compared(self) -> list[EncodedPair]:
        return [self.pairs[i] for i in self._mine]

    @property
    def roots(self) -> Tensor:
        """(n, 2) of the responses' numbers of tokens."""
        return torch.from_numpy(self.lengths[self._mine, 1:]).double().sqrt()

    @torch.no_grad()
    def scores(self, scorer: PairScorer, budget: int, *, training: bool) -> Tensor:
        """(n, 2) of the pairs that are compared, in the scorer's layout."""
        was_training, scores = scorer.training, torch.empty(len(self), 2, dtype=torch.float64)
        scorer.train(training)
        try:
            for members in scorer.packing.groups(self.lengths, budget).all:
                mine = [(row, self._mine.index(member)) for row, member in enumerate(members) if member in self._mine]
                if mine:
                    batch = scorer.prepare([self.pairs[i] for i in members], budget)
                    found = scorer(batch.to(scorer.device)).double().cpu()
                    scores[[place for _, place in mine]] = found[[row for row, _ in mine]]
        finally:
            scorer.settle()
            if scorer.router is not None:
                scorer.router.forget()  # this was not training
            scorer.train(was_training)
        return scores

    def plain(self, scorer: PairScorer) -> Tensor:
        """(n, 2) one sequence at a time, from the model's own logits."""
        scorer.use("single")
        return self.scores(scorer, self.budget, training=False)


def _handful(pairs: EncodedPairs) -> list[int]:
    """The two shortest valid pairs, two of middling length, and the one with the longest sequence."""
    valid = pairs.valid.nonzero()[0]
    if not len(valid):
        return []
    lengths = pairs.lengths[valid]
    order, middle = np.argsort(lengths.sum(axis=1), kind="stable"), len(valid) // 2
    last = np.argmax(longest(lengths))
    return [int(valid[place]) for place in dict.fromkeys([*order[:2], *order[middle : middle + 2], last])]
