"""A tiny model, pairs and a trainer, shared by the engine's tests."""

import copy
from functools import lru_cache

import numpy as np
import torch

from tests.worlds.models import tiny
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.settings import ComputeSettings, ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.trainer import Trainer
from unmdpo.scale import Units

SETTINGS = TrainingSettings(updates=6, batch=8, learning_rate=1e-2, warmup=2, weight_decay=0.1, eps=1e-8)
COMPUTE = ComputeSettings(token_budget=64)


def encoded(n=20, invalid=(3, 11)):
    rng = np.random.default_rng(0)

    def ids(low, high):
        return rng.integers(3, 64, rng.integers(low, high)).astype(np.int32)

    return EncodedPairs.of(EncodedPair(ids(1, 8), ids(1, 9), ids(1, 9), i not in invalid) for i in range(n))


@lru_cache(maxsize=2)
def world(name="llama, tied"):
    """A tiny Llama and twenty pairs with everything known about them; copy the model before changing it."""
    model = tiny(name, "sdpa", torch.float32)
    pairs = encoded()
    rng = torch.Generator().manual_seed(1)
    data = TrainingData(
        pairs=pairs,
        strength=torch.randint(1, 4, (20,), generator=rng).float(),
        reference=score(PairScorer(model), pairs, token_budget=64),
        scale=0.5 + 1.5 * torch.rand(20, generator=rng),
        unit=torch.arange(20),
    )
    return model, data


def changed(settings, changes):
    """The settings with the changes that apply to them."""
    assert not changes.keys() - {*TrainingSettings.model_fields, *ComputeSettings.model_fields}
    own = {name: value for name, value in changes.items() if name in type(settings).model_fields}
    return settings.model_copy(update=own)


def trainer(objective="unm-wr", scale=None, data=None, **changes):
    model, usual = world()
    data = data or usual
    if scale is not None:
        units = Units(torch.randn(20, 6, generator=torch.Generator().manual_seed(2)))
        scale = scale().start(units, torch.arange(20))
    return Trainer(
        PairScorer(copy.deepcopy(model)),
        data,
        ObjectiveChoice(name=objective),
        changed(SETTINGS, changes),
        changed(COMPUTE, changes),
        scale,
    )


def weights(trained):
    return {name: p.detach().clone() for name, p in trained.model.named_parameters()}


def same(a, b, atol=0.0):
    return all(torch.allclose(a[name], b[name], atol=atol, rtol=0) for name in a)
