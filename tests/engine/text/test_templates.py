"""Where prompt and response meet, with the tokenizers and templates that people bring."""

import copy

import pytest

from tests.worlds.models import word_tokenizer
from tests.worlds.templates import TEMPLATES, TOKENIZERS, tokenizer_like
from unmdpo.core.errors import DataError, UserError
from unmdpo.data import Comparison, Message, Origin
from unmdpo.engine.text import template
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.template import ChatTemplate

PLAIN = ("Hello there", "你好", "def f(x):\n    return x", "- one\n- two")
NASTY = ("\nHello", " Hello", "\n\n\nHello\n", "  x ", "\t- a\n", "<think>\nwhy\n</think>\n\nHello", ".\n\nok", "")


def comparisons(responses, *turns):
    prompt = tuple(Message(role, text) for role, text in turns or [("user", "How are you?\n")])
    return [Comparison(prompt, text, "Hello!", 1, Origin("f.jsonl", row)) for row, text in enumerate(responses)]


def texts(encoder, rows):
    """The prompt and the chosen response as the model reads them, decoded together."""
    for pair in encoder.encode(rows):
        prompt, chosen = pair.prompt.tolist(), pair.chosen.tolist()
        start, whole = (
            encoder.tokenizer.decode(tokens, skip_special_tokens=False) for tokens in (prompt, prompt + chosen)
        )
        assert whole.startswith(start)
        yield start, whole[len(start) :]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_is_read_is_what_was_written(kind, template):
    encoder = Encoder(tokenizer_like(kind, template))
    rows, frame = comparisons(PLAIN + NASTY), encoder.template.frame
    for row, (_, response) in zip(rows, texts(encoder, rows), strict=True):
        said = row.chosen.strip() if frame.trims else row.chosen
        if template == "qwen3" and "think" not in said:
            said = said.lstrip("\n")  # as its template does
        if template == "r1-distill":
            said = said.removeprefix("<think>\n")  # the prompt ends with it
        assert said in response, (row.chosen, response)
        assert response.count("<think>") <= 1
        assert response.strip(" ").endswith(frame.after.removesuffix("</s>").rstrip("\n") or "</s>")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_prompts_are_what_a_policy_answers_and_clean_boundaries_stay(kind, template):
    """The slow twin: the rest of the tokens of the whole conversation, wherever they begin with the prompt's."""
    encoder = Encoder(tokenizer_like(kind, template))
    clean = 0
    for row, pair in zip(comparisons(PLAIN + NASTY), encoder.encode(comparisons(PLAIN + NASTY)), strict=True):
        prompt, whole = encoder.tokenize(
            [encoder.prompt_text(row.prompt), encoder.answered_text(row.prompt, row.chosen)]
        )
        assert pair.prompt.tolist() == prompt
        if whole[: len(prompt)] == prompt and "think" not in row.chosen:
            clean += 1
            rest = whole[len(prompt) :]
            assert rest[: len(pair.chosen)] == pair.chosen.tolist()
            assert "".join(encoder.tokenizer.decode(rest[len(pair.chosen) :]).split()) in ("", "</s>")
    assert clean or template in ("r1-distill", "llama-3.2")


def test_a_response_that_begins_with_a_line_break_is_counted_once_and_reported():
    encoder = Encoder(tokenizer_like("tiktoken_like", "qwen2.5"))
    (pair,) = encoder.encode(comparisons(["\nHello"]))
    tokenizer = encoder.tokenizer
    assert [tokenizer.decode([token]) for token in (pair.prompt[-1], pair.chosen[0])] == ["\n", "\n"]
    assert encoder.counts["apart"] == 1
    assert encoder.remarks() == ["1 responses begin inside a token: tokenized apart"]


def test_a_dummy_prefix_adds_no_space():
    """After a prompt that ends in a space, `▁Hello` would read as two of them."""
    spaced = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    encoder = Encoder(tokenizer_like("dummy_prefix", spaced + "{% if add_generation_prompt %}assistant: {% endif %}"))
    ((start, response),) = texts(encoder, comparisons(["Hello there"]))
    assert (start[-11:], response.rstrip()) == ("assistant: ", "Hello there")
    assert encoder.counts["apart"] == 2


# --- Templates that refuse, drop or move --------------------------------------------------------------

SYSTEM = [("system", "Be brief."), ("user", "Hi")]
TWICE = [("user", "Hi"), ("user", "Are you there?")]
OPENING = [("assistant", "Welcome!"), ("user", "Hi")]


@pytest.mark.parametrize(
    ("template", "turns", "adapted", "text"),
    [
        ("gemma-2", SYSTEM, {"folded"}, "user\nBe brief.\n\nHi<end_of_turn>"),
        ("drops system", SYSTEM, {"folded"}, "user\nBe brief.\n\nHi<|im_end|>"),
        ("gemma-3", SYSTEM, set(), "user\nBe brief.\n\nHi<end_of_turn>"),
        ("qwen2.5", SYSTEM, set(), "system\nBe brief.<|im_end|>"),
        ("gemma-2", TWICE, {"merged"}, "user\nHi\n\nAre you there?<end_of_turn>"),
        ("mistral-v0.3", [SYSTEM[0], *TWICE], {"merged"}, "Be brief.\n\nHi\n\nAre you there?"),
        ("gemma-2", OPENING, {"opened"}, "user\n<end_of_turn>\n<start_of_turn>model\nWelcome!<end_of_turn>"),
        ("gemma-2", [SYSTEM[0], *OPENING], {"folded"}, "model\nWelcome!<end_of_turn>\n<start_of_turn>user\nBe brief."),
        ("qwen2.5", OPENING, set(), "assistant\nWelcome!<|im_end|>"),
    ],
)
def test_a_conversation_is_adapted_in_the_mildest_way(template, turns, adapted, text):
    encoder = Encoder(tokenizer_like("byte_level", template))
    (row,) = comparisons(["Hello"], *turns)
    list(encoder.encode([row]))
    assert adapted <= {what for what, count in encoder.counts.items() if count}
    assert ("folded" in encoder.counts) == ("folded" in adapted)
    rendered = encoder.prompt_text(row.prompt)
    assert text in rendered
    assert all(message.content in rendered for message in row.prompt)
    assert len(encoder.remarks()) >= len(adapted)


def test_mistral_keeps_the_system_message_beside_an_answer():
    """Its template writes the system message into the last user turn, and drops it once an answer follows."""
    encoder = Encoder(tokenizer_like("dummy_prefix", "mistral-v0.3"))
    assert "Be brief." not in encoder.answered_text(comparisons(["x"], *SYSTEM)[0].prompt, "x")
    ((start, response),) = texts(encoder, comparisons(["Hello"], *SYSTEM))
    assert "Be brief." in start
    assert response.strip() == "Hello</s>"
    assert encoder.counts["rebuilt"] == 2


def test_reasoning_is_not_lost():
    """A template for reasoning models starts the thought itself and drops it from finished turns."""
    encoder = Encoder(tokenizer_like("byte_level", "r1-distill"))
    ((start, response),) = texts(encoder, comparisons(["I add.\n</think>\n\nFour."]))
    assert start.endswith("<|assistant|><think>\n")
    assert response == "I add.\n</think>\n\nFour.</s>"
    assert "2 responses follow their prompts unchanged" in encoder.remarks()[0]


def test_thoughts_of_earlier_turns_are_stripped_alike_in_prompt_and_whole():
    encoder = Encoder(tokenizer_like("tiktoken_like", "qwen3"))
    turns = [("user", "1+1?"), ("assistant", "<think>\neasy\n</think>\n\nTwo"), ("user", "2+2?")]
    ((start, response),) = texts(encoder, comparisons(["Four"], *turns))
    assert "easy" not in start
    assert response == "<think>\n\n</think>\n\nFour<|im_end|>"
    assert "writes '<think>\\n\\n</think>\\n\\n' before every response" in encoder.remarks()[-1]


def test_thinking_off_is_part_of_the_prompt():
    arguments = {"enable_thinking": False}
    encoder = Encoder(tokenizer_like("tiktoken_like", "qwen3"), template_arguments=arguments)
    ((start, response),) = texts(encoder, comparisons(["Four"]))
    assert start.endswith("<think>\n\n</think>\n\n")
    assert response == "Four<|im_end|>"
    assert not encoder.remarks()


@pytest.mark.parametrize(("template", "written"), [("llama-3.2", "26 Jul 2024"), ("gpt-oss", "2024-07-26")])
def test_the_date_does_not_depend_on_the_day(template, written):
    encoder = Encoder(tokenizer_like("byte_level", template))
    assert written in encoder.prompt_text((Message("user", "?"),))
    assert "it is 26 Jul 2024 here, whenever this runs" in encoder.remarks()[-1]
    given = Encoder(tokenizer_like("byte_level", template), template_arguments={"date_string": "1 May 2025"})
    if template == "llama-3.2":
        assert "1 May 2025" in given.prompt_text((Message("user", "?"),))
    assert not any("date" in remark for remark in given.remarks())


def test_a_template_that_refuses_everything_names_the_row():
    encoder = Encoder(tokenizer_like("byte_level", "{{ raise_exception('No.') }}"))
    with pytest.raises(DataError, match=r"f.jsonl, row 0: the chat template of the tokenizer fails: No."):
        list(encoder.encode(comparisons(["x"])))


def test_a_template_with_a_mistake_names_the_row():
    encoder = Encoder(tokenizer_like("byte_level", "{{ 1 + messages[0].content }}"))
    with pytest.raises(
        DataError, match=r"f.jsonl, row 0: the chat template of the tokenizer fails: unsupported operand"
    ):
        list(encoder.encode(comparisons(["x"])))


def test_turns_that_are_lost_in_every_form_are_reported():
    last = "{{ messages[-1].role }}: {{ messages[-1].content }}<|im_end|>{% if add_generation_prompt %}A:{% endif %}"
    encoder = Encoder(tokenizer_like("byte_level", last))
    list(encoder.encode(comparisons(["x"], ("user", "1?"), ("assistant", "one"), ("user", "2?"))))
    assert any("1 comparisons lose turns" in remark for remark in encoder.remarks())


def test_a_template_that_changes_words_keeps_the_response():
    shouting = (
        "{% for m in messages %}{{ m.content | upper }}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    ((_, response),) = texts(Encoder(tokenizer_like("byte_level", shouting)), comparisons(["Hello there"]))
    assert response == "Hello there"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{% for", "unexpected"),
        ("{{ missing.part }}", "'missing' is undefined"),
        ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 10000000000 }}", "MemoryError"),
        ("{% for m in messages %}{{ m['content'] * 99999 * 9 }}{% endfor %}", "characters for a conversation of 6"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("Hello", "does not write what the user says"),
        ("", "does not write what the user says"),
        ("{% for m in messages[::-1] %}{{ m.content }}\n{% endfor %}", "writes the prompt after the response"),
    ],
)
def test_a_template_that_cannot_be_used_is_reported_before_any_work(text, told):
    tokenizer = copy.deepcopy(tokenizer_like("byte_level", "qwen3"))
    tokenizer.chat_template = text
    with pytest.raises(UserError, match=told):
        ChatTemplate(tokenizer).prove()


def test_a_template_that_never_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(template, "PATIENCE", 1)
    tokenizer = copy.deepcopy(tokenizer_like("byte_level", "qwen3"))
    tokenizer.chat_template = (
        "{% set r = range(9999) %}{% for i in r %}{% for j in r %}{% for k in r %}{% endfor %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(UserError, match="did not finish within"):
        ChatTemplate(tokenizer).prove()


@pytest.mark.parametrize("kind", ["byte_level", "dummy_prefix", "tiktoken_like"])
def test_text_that_cannot_fit_is_not_tokenized(kind, monkeypatch):
    """And every text that could fit is."""
    encoder, seen = Encoder(tokenizer_like(kind, "qwen3"), max_length=40), []
    most = encoder._most_characters
    assert 40 < most < 40 * 1000
    tokenize = encoder.tokenize
    monkeypatch.setattr(Encoder, "tokenize", lambda self, texts: seen.extend(map(len, texts)) or tokenize(texts))
    rows = [Comparison((Message("user", "Hi"),), "yes", "no" * count, 1, Origin("here", 1)) for count in (1, 10**6)]
    short, long = encoder.encode(rows)
    assert (short.valid, long.valid) == (True, False)
    assert max(seen) <= most


def test_a_tokenizer_that_knows_no_long_words_has_no_limit():
    assert Encoder(word_tokenizer(), max_length=40)._most_characters == float("inf")
