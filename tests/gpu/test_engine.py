"""Tests that need a GPU."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.worlds.engine import SETTINGS, encoded
from tests.worlds.families import build
from tests.worlds.models import TINY, one_by_one, pair
from unmdpo.engine.inference.decode import decode
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer, compile_layers
from unmdpo.engine.settings import ComputeSettings, ObjectiveChoice
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # compilers warn about themselves


def on_gpu(dtype):
    torch.manual_seed(0)
    config = LlamaConfig(**(TINY | {"hidden_size": 64, "head_dim": 16}))
    model = LlamaForCausalLM._from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to("cuda", dtype)


def test_flex_attention_equals_one_by_one():
    pairs, scorer = encoded(6, invalid=()), PairScorer(on_gpu(torch.float32))
    found = score(scorer, pairs, 512)
    assert scorer.model.config._attn_implementation == "flex_attention"
    plain = on_gpu(torch.float32)
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        expected = one_by_one(plain.cpu(), pairs.select(range(6)))
    assert torch.allclose(found, expected, atol=5e-2)  # FlexAttention computes float32 products in TF32


def test_masked_rows_of_wide_heads_have_finite_gradients():
    """Those of cuDNN's attention with heads of 256 were not (Gemma 3)."""
    wide = {"hidden_size": 256, "head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1}
    model = build("gemma3_text", attention="sdpa", max_position_embeddings=2048, sliding_window=512, **wide)
    scorer = PairScorer(model.to("cuda", torch.bfloat16))
    scorer.use("masked")
    pairs = [pair(900 + 20 * seed, 780 - 20 * seed, 300 + 10 * seed, seed) for seed in range(16)]
    scorer.train()(scorer.prepare(pairs, 65_536).to(scorer.device)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_recorded_decoding_equals_plain_generation():
    model = on_gpu(torch.float32)
    model.set_attn_implementation("sdpa")
    tokens = torch.randint(3, 64, (40, 9), device="cuda")
    mask = torch.ones_like(tokens)
    mask[::3, :4] = 0
    settings = {"max_new_tokens": 200, "do_sample": False, "pad_token_id": 0, "eos_token_id": [7]}
    expected = model.generate(tokens, attention_mask=mask, **settings)[:, 9:]
    found = decode(model, tokens, mask, 200, {7}, 0)
    assert (found[:, expected.shape[1] :] == 0).all()
    same = (found[:, : expected.shape[1]] == expected).all(dim=1)
    assert same.sum() >= 38  # a near tie may go the other way


def test_a_model_that_waits_for_the_host_is_not_recorded():
    model = on_gpu(torch.float32)
    model.set_attn_implementation("sdpa")
    tokens = torch.randint(3, 64, (4, 9), device="cuda")
    expected = decode(model, tokens, torch.ones_like(tokens), 60, {7}, 0)
    waits = []
    model.model.norm.register_forward_hook(lambda module, inputs, made: waits.append(float(made.sum())))
    assert torch.equal(decode(model, tokens, torch.ones_like(tokens), 60, {7}, 0), expected)
    assert len(waits) > 2


def test_bfloat16_training_with_compiled_layers():
    model = on_gpu(torch.bfloat16)
    scorer, pairs = PairScorer(model), encoded()
    prove(scorer, pairs)
    assert scorer.packing.layout == "flash"
    compile_layers(scorer)
    data = TrainingData(pairs, torch.ones(20), reference=score(scorer, pairs, 512))
    settings, compute = SETTINGS.model_copy(update={"updates": 30}), ComputeSettings(token_budget=512)
    lines = list(Trainer(scorer, data, ObjectiveChoice(name="dpo"), settings, compute).run())
    assert abs(lines[0]["rewards/margins"]) < 0.05
    assert lines[-1]["rewards/accuracies"] > 0.9
