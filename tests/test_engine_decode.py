"""Our decoding gives what Transformers' own greedy generation gives."""

import pytest
import torch
from transformers import GenerationConfig

from tests.test_engine_logprobs import tiny
from unmdpo.engine import decode as decoding
from unmdpo.engine.decode import can_decode, decode
from unmdpo.engine.padding import padded

PAD, END = 0, 7


def lively(name):
    """A model whose rows end at different times."""
    model = tiny(name, "sdpa", torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model


def batch():
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 9, 1, 13, 8, 2)
    return padded([torch.randint(8, 64, (n,), generator=generator).tolist() for n in lengths], PAD, "left")


@pytest.mark.parametrize("stretch", [3, 16, 128])
@pytest.mark.parametrize("name", ["llama, tied", "qwen2", "qwen3"])
def test_it_equals_plain_generation(name, stretch, monkeypatch):
    monkeypatch.setattr(decoding, "STRETCH", stretch)
    model, (tokens, mask) = lively(name), batch()
    ends = _ends_of_some(model, tokens, mask)
    settings = GenerationConfig(
        max_new_tokens=40, do_sample=False, pad_token_id=PAD, eos_token_id=sorted(ends)
    )
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


def test_it_stops_when_all_have_ended(monkeypatch):
    monkeypatch.setattr(decoding, "STRETCH", 4)
    model, (tokens, mask) = lively("llama, tied"), batch()
    everything = set(range(model.config.vocab_size))
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    found = decode(model, tokens, mask, 40, everything, PAD)
    assert (found[:, 1:] == PAD).all()
    assert len(calls) <= 1 + 4  # the prompts, one stretch


def test_models_with_sliding_windows_are_left_to_transformers():
    assert can_decode(tiny("llama, tied", "sdpa", torch.float32))
    assert not can_decode(tiny("llama, tied", "eager", torch.float32))
    assert not can_decode(tiny("gemma3, sliding", "sdpa", torch.float32))
