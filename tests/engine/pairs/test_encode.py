"""From messages to tokens: templates, prefixes, terminators, limits."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unmdpo.core.errors import UserError
from unmdpo.data import Comparison, Message, Origin
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs

WORDS = ["<pad>", "<bos>", "<end>", "user:", "assistant:", "today:", "May", "June", "<nl>"]
WORDS += [f"w{i}" for i in range(20)]
TEMPLATE = (
    "<bos> today: {{ date_string | default('May') }} "
    "{% for m in messages %}{{ m.role }}: {{ m.content }} <end> <nl> {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer(template=TEMPLATE):
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", eos_token="<end>", unk_token="<pad>"
    )
    made.chat_template = template
    return made


def comparison(prompt="w1 w2", chosen="w3", rejected="w4 w5", row=7):
    return Comparison((Message("user", prompt),), chosen, rejected, 1, Origin("f.jsonl", row))


def words(ids):
    return " ".join(WORDS[i] for i in ids)


def test_what_is_scored():
    (pair,) = Encoder(tokenizer()).encode([comparison()])
    assert words(pair.prompt) == "<bos> today: May user: w1 w2 <end> <nl> assistant:"
    assert words(pair.chosen) == "w3 <end>"  # the terminator, and nothing the template writes after it
    assert words(pair.rejected) == "w4 w5 <end>"
    assert pair.valid
    assert list(pair.prompt).count(WORDS.index("<bos>")) == 1


@pytest.mark.parametrize("special", [True, False])
def test_nothing_after_the_end_of_turn_is_scored(special):
    """As in Phi-3, whose template writes an end of text after the end of the turn; the end may also be no special
    token of the tokenizer."""
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% else %}<end>{% endif %}"
    )
    made = tokenizer(template)
    made.add_tokens([AddedToken("<|end|>", special=special, normalized=False)])
    (pair,) = Encoder(made).encode([comparison()])
    assert made.convert_ids_to_tokens(pair.chosen.tolist()) == ["w3", "<|end|>"]
    assert made.convert_ids_to_tokens(pair.rejected.tolist()) == ["w4", "w5", "<|end|>"]


def test_a_template_without_an_end_keeps_the_response():
    (pair,) = Encoder(
        tokenizer("{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
                  "{% if add_generation_prompt %}assistant: {% endif %}")
    ).encode([comparison()])  # fmt: skip
    assert words(pair.rejected) == "w4 w5"


def test_template_arguments():
    (pair,) = Encoder(tokenizer(), template_arguments={"date_string": "June"}).encode([comparison()])
    assert words(pair.prompt).startswith("<bos> today: June")


@pytest.mark.parametrize(("limit", "valid"), [(12, True), (11, False)])
def test_the_limit_counts_whole_sequences(limit, valid):
    # the prompt has nine tokens, the longer response three
    (pair,) = Encoder(tokenizer(), max_length=limit).encode([comparison()])
    assert pair.valid is valid
    assert len(pair.rejected) == 3  # nothing is truncated


def test_empty_responses():
    (pair,) = Encoder(tokenizer()).encode([comparison(chosen="")])
    assert words(pair.chosen) == "<end>"
    bare = tokenizer("{% for m in messages %}{{ m.content }} {% endfor %}")
    (pair,) = Encoder(bare).encode([comparison(chosen="")])
    assert len(pair.chosen) == 0
    assert not pair.valid


def test_a_response_that_merges_with_its_prompt_is_tokenized_apart():
    joined = tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    encoder = Encoder(joined)
    (pair,) = encoder.encode([comparison()])
    assert [words(part) for part in (pair.prompt, pair.chosen, pair.rejected)] == ["w1 w2", "w3", "w4 w5"]
    assert encoder.remarks() == ["2 responses begin inside a token: tokenized apart"]
    assert list(Encoder(joined).encode([])) == []


def test_no_template_is_refused_with_advice():
    with pytest.raises(UserError, match="no chat template; use an instruction-tuned model"):
        Encoder(tokenizer(template=None))


def test_flat_storage_gives_the_pairs_back():
    comparisons = [comparison(f"w{i}", "w1 " * (i % 4), "w2 " * (i % 3), row=i) for i in range(1100)]
    pairs = list(Encoder(tokenizer(), max_length=12).encode(comparisons))
    stored = EncodedPairs.of(pairs)
    assert len(stored) == 1100
    for original, again in zip(pairs, stored.select(range(1100)), strict=True):
        for part in ("prompt", "chosen", "rejected"):
            assert np.array_equal(getattr(original, part), getattr(again, part))
        assert original.valid == again.valid
    assert len(EncodedPairs.of([])) == 0
