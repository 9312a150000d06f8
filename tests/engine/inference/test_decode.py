"""Our decoding gives the same output as Transformers' greedy generation."""

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tests.worlds.decoding import FAMILIES, PAD, batch, lively, made
from tests.worlds.models import TINY, tiny
from unmdpo.engine.inference import decode as decoding
from unmdpo.engine.inference.decode import LOOK, can_decode, decode
from unmdpo.engine.inference.generate import token_bytes

END = 7


@pytest.mark.parametrize("stretch", [3, 16, 128])
@pytest.mark.parametrize("name", ["llama, tied", "qwen2", "qwen3", *FAMILIES])
def test_it_equals_plain_generation(name, stretch, monkeypatch):
    monkeypatch.setattr(decoding, "STRETCH", stretch)
    model, (tokens, mask) = lively(name), batch()
    ends = _ends_of_some(model, tokens, mask)
    settings = GenerationConfig(max_new_tokens=40, do_sample=False, pad_token_id=PAD, eos_token_id=sorted(ends))
    expected = model.generate(input_ids=tokens, attention_mask=mask, generation_config=settings)
    expected = expected[:, tokens.shape[1] :]
    found = decode(model, tokens, mask, 40, ends, PAD)
    assert torch.equal(found[:, : expected.shape[1]], expected)
    assert (found[:, expected.shape[1] :] == PAD).all()
    assert model.config._attn_implementation == "sdpa"


def _ends_of_some(model, tokens, mask):
    """End tokens that stop some rows early, some late, some never."""
    free = decode(model, tokens, mask, 40, (), PAD)
    ends = {int(free[0, 2]), int(free[1, 20])}
    stops = [next((i for i, token in enumerate(row) if token in ends), 40) for row in free.tolist()]
    assert min(stops) < 3
    assert len(set(stops)) > 2
    return ends


@pytest.mark.parametrize(("stretch", "most"), [(4, 1 + 4), (128, 1 + LOOK)])
def test_it_stops_when_all_have_ended(stretch, most, monkeypatch):
    monkeypatch.setattr(decoding, "STRETCH", stretch)
    model, (tokens, mask) = lively("llama, tied"), batch()
    everything = set(range(model.config.vocab_size))
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    found = decode(model, tokens, mask, 40, everything, PAD)
    assert (found[:, 1:] == PAD).all()
    assert len(calls) <= most  # the prompts, then at most one stretch or LOOK steps


def test_one_token_costs_the_reading_of_the_prompts():
    model, (tokens, mask) = lively("llama, tied"), batch()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    first = decode(model, tokens, mask, 1, (), PAD)
    assert len(calls) == 1
    assert torch.equal(first, decode(model, tokens, mask, 5, (), PAD)[:, :1])


def test_models_with_another_memory_are_left_to_transformers():
    assert can_decode(tiny("llama, tied", "sdpa", torch.float32))
    assert not can_decode(tiny("llama, tied", "eager", torch.float32))
    assert not can_decode(tiny("gemma3, sliding", "sdpa", torch.float32))
    assert not can_decode(torch.nn.Linear(1, 1))
    growing = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    stretched = LlamaConfig(**(TINY | {"rope_parameters": growing}))
    assert not can_decode(LlamaForCausalLM._from_config(stretched, attn_implementation="sdpa"))


@pytest.mark.parametrize("name", ["llama, tied", "gpt2, learned positions", "deepseek, wide keys"])
def test_what_a_token_takes_is_measured(name):
    model = made(name).eval()
    with torch.no_grad():
        layers = model(torch.ones(1, 7, dtype=torch.long), use_cache=True).past_key_values.layers
    assert token_bytes(model) == sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) / 7
