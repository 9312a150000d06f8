"""Decoding over a static cache gives what Transformers' own greedy generation gives."""

import pytest
import torch
from benchmarks.static_decoding import decode
from transformers import GenerationConfig

from tests.test_engine_logprobs import tiny
from unmdpo.engine.padding import padded

PAD, END = 0, 7


@pytest.mark.parametrize("name", ["llama, tied", "qwen2", "qwen3"])
def test_it_equals_plain_generation(name):
    model = tiny(name, "sdpa", torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # so that rows end at different times
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(8, 64, (length,), generator=generator).tolist() for length in (5, 9, 1, 13)]
    tokens, mask = padded(rows, PAD, "left")
    settings = GenerationConfig(max_new_tokens=40, do_sample=False, pad_token_id=PAD, eos_token_id=[END])
    expected = model.generate(input_ids=tokens, attention_mask=mask, generation_config=settings)
    expected = expected[:, tokens.shape[1] :]
    found = decode(model, tokens, mask, 40, {END}, PAD)
    assert torch.equal(found[:, : expected.shape[1]], expected)
    assert (found[:, expected.shape[1] :] == PAD).all()
