"""Greedy answers and embeddings of every family: in padded batches as one by one, token for token."""

import itertools
import warnings

import pytest
import torch
from transformers import GenerationConfig

from tests.worlds.families import NAMES, build, some_now
from tests.worlds.models import word_tokenizer
from unmdpo.data.identity import Message
from unmdpo.engine.inference.embed import Embedder, embeddings_of
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.models import body
from unmdpo.engine.text.encode import Encoder

WORDS = ((3, 1, 4, 1), (9,), (7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3), (5, 9, 2, 6, 5, 3, 5))
PROMPTS = [(Message("user", " ".join(f"w{word}" for word in words)),) for words in WORDS]
NEW = 6  # tokens
NOT_TRIED = {
    "git": "writes about images",
    "llama, dynamic rope": "remembers its longest input",
    "mllama": "writing needs an image",
    "xlstm": "its cache does not fit its tiny configuration",
}


@pytest.fixture(scope="module")
def encoder():
    return Encoder(word_tokenizer())


def alone(model, row, ends):
    ids = torch.tensor([row])
    settings = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=sorted(ends))
    model.generation_config = GenerationConfig()  # without what its family adds, such as a forced end
    made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    written = made[0, len(row) :].tolist()
    return list(itertools.takewhile(lambda token: token not in ends, written))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some_now(name for name in NAMES if name not in NOT_TRIED))
def test_answers_and_embeddings_do_not_depend_on_the_batch(name, encoder):
    model = build(name, attention=None)
    generator = Generator(model, encoder, GenerationSettings(max_new_tokens=NEW))
    answers = {g.prompt: g for batch in generator.generate(PROMPTS) for g in batch}
    assert sorted(answers) == list(range(len(PROMPTS)))
    for place, row in enumerate(generator.rows):
        expected = encoder.tokenizer.decode(alone(model, row, generator.ends), skip_special_tokens=True)
        assert answers[place].text == expected, (name, place, generator.can_decode)
    if body(model) is model:
        return
    found = embeddings_of(Embedder(model), encoder, PROMPTS)
    for row, embedding in zip(generator.rows, found, strict=True):
        with torch.no_grad():
            hidden = body(model)(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0, -1]
        assert torch.allclose(embedding, hidden, atol=1e-3 * float(hidden.norm())), name


def test_the_usual_families_are_decoded_fast():
    fast = (
        "llama",
        "qwen3",
        "qwen3_moe",
        "mistral, full",
        "granite",
        "cohere",
        "olmo2",
        "smollm3",
        "glm4",
        "deepseek_v3",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in fast:
            assert Generator(build(name, attention=None), Encoder(word_tokenizer())).can_decode, name
