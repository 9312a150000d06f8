"""A small world for every estimator, and any estimator fitted to it."""

from dataclasses import replace

import torch
from benchmarks.synthetic import random_utility_world

from unmdpo.scale import ESTIMATORS, FrozenScale, Rows, Units
from unmdpo.scale.settings import GivenSettings

LEARNED = [name for name, estimator in ESTIMATORS.items() if estimator.settings is not GivenSettings]
FROZEN = [name for name in LEARNED if not ESTIMATORS[name].joint]
BESIDE = [name for name in LEARNED if name not in FROZEN]
QUICK = {"entropy": {"epochs": 30, "learning_rate": 1e-2}}


def small_world(prompts=120, seed=0, rows_per_prompt=2, dimension=12):
    """Units with domains and folds, rows with votes and lengths: something for every estimator.

    Some prompts have twice as many rows as others, so weighting by rows and weighting by units differ.
    """
    world = random_utility_world(prompts, rows_per_prompt=rows_per_prompt, dimension=dimension, seed=seed)
    extra = torch.arange(len(world.rows))[world.units.features[world.rows.unit][:, 0] > 0.5]
    rows = world.rows.select(torch.cat([torch.arange(len(world.rows)), extra]))
    world = replace(world, rows=rows)
    rng = torch.Generator().manual_seed(seed + 1)
    n = len(world.rows)
    units = replace(world.units, domains=torch.randint(3, (prompts,), generator=rng), folds=torch.arange(prompts) % 5)
    votes = torch.zeros(n, 6, dtype=torch.int64)
    said = torch.randint(6, (n, 3), generator=rng)
    agreed = units.features[world.rows.unit][:, 1] > 0  # something that an entropy scale can find
    said[agreed] = said[agreed][:, :1]
    votes.scatter_add_(1, said, torch.ones(n, 3, dtype=torch.int64))
    lengths = torch.randint(10, 500, (n,), generator=rng).float()
    return units, replace(world.rows, votes=votes, lengths=lengths)


def fitted(name, units, rows, **settings):
    """Any estimator after fitting: directly, or alongside a policy whose evidence does not change."""
    estimator = ESTIMATORS[name].make(**(QUICK.get(name, {}) | settings))
    if isinstance(estimator, FrozenScale):
        return estimator.fit(units, rows)
    estimator.start(units, rows.unit)
    valid = rows.valid_rows
    order = torch.argsort(valid.unit * 7919 % 101, stable=True)
    for members in order.split(40) * 3:
        estimator.scales(valid.unit[members])
        estimator.step(valid.unit[members], valid.evidence[members], valid.strength[members])
    return estimator.finish(rows)


def world(seed, spread, prompts=600, dimensions=4, pairs=2):
    """Residuals whose scale depends on the first feature, by `spread`."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(prompts, dimensions, generator=rng)
    unit = torch.arange(prompts).repeat_interleave(pairs)
    strength = torch.randint(1, 4, unit.shape, generator=rng).float()
    uniform = torch.rand(unit.shape, generator=rng).clamp(1e-6, 1 - 1e-6)
    noise = torch.exp(spread * features[:, 0])[unit] * torch.log(uniform / (1 - uniform))
    return Units(features, None, torch.arange(prompts) % 5), Rows(unit, 0.4 * strength + noise, strength)
