"""Random pairs, and the loss of any objective on them."""

import torch

from unmdpo.objectives import OBJECTIVES, AdaptiveObjective, PairLogps


def random_pairs(n=12, seed=0, dtype=torch.float64, spread=20.0):
    rng = torch.Generator().manual_seed(seed)

    def normal(mean, scale):
        return (mean + scale * torch.randn(n, generator=rng, dtype=torch.float64)).to(dtype)

    reference = normal(-200, 30), normal(-180, 30)
    return PairLogps(
        chosen=reference[0] + normal(0, spread),
        rejected=reference[1] + normal(0, spread),
        ref_chosen=reference[0],
        ref_rejected=reference[1],
        chosen_tokens=torch.randint(1, 400, (n,), generator=rng),
        rejected_tokens=torch.randint(1, 400, (n,), generator=rng),
        strength=torch.randint(1, 4, (n,), generator=rng).to(dtype),
        scale=(0.5 + 1.5 * torch.rand(n, generator=rng, dtype=torch.float64)).to(dtype),
    )


def loss_of(name, pairs, seed=42, **settings):
    """The loss of any objective, adapting first if it is adaptive."""
    objective = OBJECTIVES[name]
    if isinstance(objective, AdaptiveObjective):
        knobs, _ = objective.adapt(pairs.log_ratio, objective.init(seed, **settings), **settings)
        return objective.loss(pairs, knobs, **settings)
    return objective.loss(pairs, **settings)


def permuted(pairs, order):
    return PairLogps(**{key: value[order] for key, value in vars(pairs).items()})
