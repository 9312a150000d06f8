"""A mixture of experts: its auxiliary loss is Transformers' own, trains the routers, and its load is reported."""

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from tests.worlds.engine import SETTINGS, encoded
from tests.worlds.families import build
from tests.worlds.models import PAIRS, tiny
from unmdpo.core.errors import UserError
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.router import load_metrics
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.settings import ComputeSettings, ObjectiveChoice
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.schedule import batch_of
from unmdpo.engine.training.trainer import Trainer

GATE = "model.layers.1.mlp.gate.weight"


def step(coefficient):
    """A trainer after one update with a single microbatch, and its metrics."""
    scorer, pairs = PairScorer(build("qwen3_moe", "sdpa")), encoded()
    data = TrainingData(pairs, torch.ones(20), reference=score(scorer, pairs, 2048))
    settings = SETTINGS.model_copy(update={"updates": 1, "clip": 1e9, "router_aux_loss_coef": coefficient})
    trainer = Trainer(scorer, data, ObjectiveChoice(name="dpo"), settings, ComputeSettings(token_budget=2048))
    return trainer, trainer.step()


def test_the_loss_is_transformers_own():
    model = build("qwen3_moe", "sdpa")
    scorer = PairScorer(model).train()
    batch = PackedBatch.of(PAIRS, 80)
    scorer(batch)
    seen = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _, __, made: seen.append(made[0]))
    scorer(batch)
    expected = load_balancing_loss_func(tuple(seen), 4, 2, batch.real[None].long())
    assert torch.allclose(scorer.router.loss, expected, atol=1e-5)
    assert scorer.router.counts.sum() == 2 * 2 * batch.real.sum() * len(seen)  # two passes, two experts for each token


def test_it_joins_the_gradient_and_the_load_is_reported():
    (plain, _), (even, metrics) = step(0.0), step(0.5)
    slots = plain.data.valid(batch_of(0, 20, SETTINGS.batch, plain.seed))
    fresh = PairScorer(build("qwen3_moe", "sdpa")).train()
    fresh(fresh.prepare(plain.data.pairs.select(slots), 2048))
    fresh.router.loss.backward()
    expected = dict(fresh.model.named_parameters())[GATE].grad
    found = even.masters.named[GATE].grad - plain.masters.named[GATE].grad
    assert expected.norm() > 0
    assert torch.allclose(found, 0.5 * expected, atol=1e-5 * float(expected.norm()))
    assert metrics["router/busiest"] == pytest.approx(float(fresh.router.counts.max() / fresh.router.counts.mean()))
    assert load_metrics(torch.tensor([4.0, 0.0, 4.0, 0.0])) == {"router/busiest": 2.0, "router/idle": 0.5}


def test_a_dense_model_has_no_routers():
    scorer, pairs = PairScorer(tiny("llama, tied", "sdpa", torch.float32)), encoded()
    data = TrainingData(pairs, torch.ones(20), reference=score(scorer, pairs, 64))
    settings = SETTINGS.model_copy(update={"router_aux_loss_coef": 0.1})
    with pytest.raises(UserError, match=r"router_aux_loss_coef is set, but LlamaForCausalLM shows no routers"):
        Trainer(scorer, data, ObjectiveChoice(name="dpo"), settings)
