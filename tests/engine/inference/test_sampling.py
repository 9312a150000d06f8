"""What is drawn follows the model's probabilities, and depends on the prompt and the seed alone."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from tests.worlds.decoding import PAD, batch, lively
from tests.worlds.models import word_tokenizer
from unmdpo.data import Message
from unmdpo.engine.inference import decode as decoding
from unmdpo.engine.inference.decode import decode
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.inference.sampling import Picker, Sampling, seeds_of, uniform_numbers
from unmdpo.engine.text.encode import Encoder

FINE = 20_000


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 1.0])
def test_frequencies_are_those_of_transformers_warpers(temperature, top_p):
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(1)) * 2
    every = ((torch.arange(FINE) + 0.5) / FINE)[:, None]  # each random number once
    picker = Picker(Sampling(temperature=temperature, top_p=top_p), every)
    drawn = picker(logits.expand(FINE, -1), torch.tensor([0]))[:, 0]
    warped = TopPLogitsWarper(top_p)(None, TemperatureLogitsWarper(temperature)(None, logits))
    found = torch.bincount(drawn, minlength=30) / FINE
    assert torch.allclose(found, warped.softmax(-1)[0], atol=3 / FINE)


def test_numbers_near_one_draw_a_token_that_is_kept():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2, 1e-30]]))
    for top_p, allowed in ((0.4, {0}), (0.7, {0, 1}), (1.0, {0, 1, 2})):
        near = Picker(Sampling(top_p=top_p), torch.tensor([[1 - 1e-7]]))
        assert int(near(logits, torch.tensor([0]))) in allowed


def slow_twin(model, row, uniform, sampling, new_tokens, ends):
    """One answer, token by token, each from a pass over everything before it."""
    written = []
    for step in range(new_tokens):
        logits = model(torch.tensor([row + written])).logits[0, -1].double() / sampling.temperature
        chances, tokens = logits.softmax(-1).sort(descending=True)
        kept = [0]
        while float(chances[kept].sum()) < sampling.top_p and len(kept) < len(chances):
            kept.append(len(kept))
        left = float(uniform[step]) * float(chances[kept].sum())
        place = 0
        while place < kept[-1] and left >= float(chances[: place + 1].sum()):
            place += 1
        written.append(int(tokens[place]))
        if written[-1] in ends:
            break
    return written


@pytest.mark.parametrize("stretch", [3, 128])
@pytest.mark.parametrize("name", ["llama, tied", "qwen3"])
@torch.no_grad()
def test_a_slow_twin_draws_the_same(name, stretch, monkeypatch):
    monkeypatch.setattr(decoding, "STRETCH", stretch)
    model, (tokens, mask), sampling = lively(name), batch(), Sampling(temperature=1.3, top_p=0.95)
    uniform = uniform_numbers(range(len(tokens)), 24)
    found = decode(model, tokens, mask, 24, {11, 12}, PAD, Picker(sampling, uniform)).tolist()
    for row, seen, numbers, written in zip(tokens.tolist(), mask.tolist(), uniform, found, strict=True):
        prompt = [token for token, real in zip(row, seen, strict=True) if real]
        expected = slow_twin(model, prompt, numbers, sampling, 24, {11, 12})
        assert written[: len(expected)] == expected
        assert set(written[len(expected) :]) <= {PAD}


def generated(texts, budget=4096, own=True, **sampling):
    model = lively("llama, tied")
    settings = GenerationSettings(12, budget, Sampling(**sampling))
    generator = Generator(model, Encoder(word_tokenizer()), settings)
    generator.can_decode &= own
    made = [one for part in generator.generate([(Message("user", text),) for text in texts]) for one in part]
    return [one.text for one in sorted(made, key=lambda one: one.prompt)]


def test_an_answer_depends_on_its_prompt_and_the_seed_alone():
    texts = ["w1", "w1", "w2 w3 w4", "w1", "w5 w6"]
    together = generated(texts)
    assert len(set(together)) == 5  # also those to the same prompt
    assert generated(texts, budget=20) == together
    assert generated(texts, own=False) == together  # by Transformers' loop
    assert generated(["w2 w3 w4"]) == [together[2]]
    assert generated(["w5 w6", "w1", "w1"]) == [together[4], together[0], together[1]]
    assert generated(texts, seed=1) != together


def test_seeds_tell_repeated_prompts_apart():
    seeds = seeds_of([[1, 2], [1, 2], [12]], 0)
    assert len(set(seeds)) == 3
    assert seeds_of([[12], [1, 2]], 0) == [seeds[2], seeds[0]]
