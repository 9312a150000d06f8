"""Responses of several turns and calls of tools: rendered as Transformers does, and only the assistant's is scored."""

import json

import numpy as np
import pytest
import torch

from tests.worlds.templates import TEMPLATES, TOKENIZERS, WITH_TOOLS, tokenizer_like
from unmdpo.data import load_comparisons
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.padding import PaddedBatch, SingleBatch
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs, unmarked

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather of a town",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}  # fmt: skip


def says(text):
    return {"role": "assistant", "content": text}


def asks(text):
    return {"role": "user", "content": text}


def call(town):
    function = {"name": "weather", "arguments": {"town": town}}
    return says("") | {"tool_calls": [{"id": "abcdefgh1", "type": "function", "function": function}]}


def returns(text):
    return {"role": "tool", "name": "weather", "tool_call_id": "abcdefgh1", "content": text}


ASKED = [asks("Is it raining in Bern?")]
GOOD = [call("Bern"), returns("sunny"), says("No, the sun shines.")]
BAD = [call("Berlin"), returns("rain"), says("Yes.")]
CALLED = {"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "tools": [WEATHER]}
PLAIN = {"prompt": ASKED, "chosen": "Yes.", "rejected": "No."}
TALK = [*ASKED, says("Where?"), asks("In Bern.")]
IN_JSON = json.dumps([{"name": "weather", "arguments": '{"town": "Bern"}'}])


def read(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"strength": 1} | row) + "\n" for row in rows))
    return load_comparisons(str(path)).rows


def encoded(kind, template, rows):
    encoder = Encoder(tokenizer_like(kind, template))
    return encoder, list(encoder.encode(rows))


def scored_text(encoder, tokens):
    return encoder.tokenizer.decode(tokens[tokens >= 0].tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_token_for_token_as_transformers_renders_them(tmp_path, name, kind):
    encoder, (pair,) = encoded(kind, WITH_TOOLS[name], read(tmp_path, CALLED))
    if (name, kind) == ("llama-3.1", "prefixed_bytes"):  # its tokens do not say where turns begin
        assert encoder.counts["unwritten"] == 1
        return
    assert pair.valid
    for turns, response in ((GOOD, pair.chosen), (BAD, pair.rejected)):
        text = encoder.tokenizer.apply_chat_template([*ASKED, *turns], tools=[WEATHER], tokenize=False)
        theirs = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        ours = [*pair.prompt.tolist(), *unmarked(response).tolist()]
        if encoder.counts["apart"]:  # the response begins inside a token
            assert encoder.tokenizer.decode(ours).replace(" ", "") in text.replace(" ", "")
        else:
            assert ours == theirs[: len(ours)]
            assert not encoder.tokenizer.decode(theirs[len(ours) :]).strip()  # what follows the end of the turn
        said = scored_text(encoder, response)
        town = turns[0]["tool_calls"][0]["function"]["arguments"]["town"]
        assert all(part in said for part in (town, "weather", turns[2]["content"]))
        assert turns[1]["content"] not in said  # what the tool returned is read, and not learned


def test_calls_in_the_prompt_and_in_a_single_answer(tmp_path):
    row = {"prompt": [*ASKED, *GOOD, asks("And in Basel?")], "chosen": [call("Basel")], "rejected": [says("No.")]}
    encoder, (pair,) = encoded("byte_level", WITH_TOOLS["qwen2.5"], read(tmp_path, row))
    assert pair.valid
    assert "Bern" in encoder.tokenizer.decode(pair.prompt.tolist())
    expected = '<tool_call>\n{"name": "weather", "arguments": {"town": "Basel"}}\n</tool_call><|im_end|>'
    assert scored_text(encoder, pair.chosen) == expected
    assert scored_text(encoder, pair.rejected) == "No.<|im_end|>"


@pytest.mark.parametrize("calls", [IN_JSON, call("Bern")["tool_calls"]])
def test_calls_as_tables_and_servers_write_them(tmp_path, calls):
    """Tables hold them as JSON, and servers their arguments."""
    spoken = {"role": "assistant", "content": None, "tool_calls": calls}
    row = {"prompt": ASKED, "chosen": [spoken], "rejected": "No.", "tools": json.dumps([WEATHER])}
    (found,) = read(tmp_path, row)
    (turn,) = found.chosen_turns
    assert turn.to_dict()["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"town": "Bern"}}
    assert json.loads(found.prompt[0].content) == [WEATHER]
    assert "Bern" in found.chosen  # for judges and readers


def test_a_template_without_tools_leaves_such_rows_out_and_says_so(tmp_path):
    rows = read(tmp_path, PLAIN, CALLED, PLAIN | {"tools": [WEATHER]})
    encoder, pairs = encoded("byte_level", "qwen2.5", rows)
    assert [pair.valid for pair in pairs] == [True, False, False]
    assert encoder.remarks()[0].startswith("2 comparisons are not trained on: the chat template does not write their")


@pytest.mark.parametrize("name", ["qwen2.5", "llama-3.2", "gemma-2", "zephyr"])
def test_conversations_that_part_are_scored_from_there_on(tmp_path, name):
    """TRL's conversational form, of different lengths; turns that both share are the prompt."""
    chosen, rejected = [*TALK, says("No."), asks("Sure?"), says("Yes, sun.")], [*TALK, says("I do not know.")]
    (found,) = rows = read(tmp_path, {"chosen": chosen, "rejected": rejected})
    assert [turn.content for turn in found.prompt] == ["Is it raining in Bern?", "Where?", "In Bern."]
    encoder, (pair,) = encoded("byte_level", name, rows)
    said = scored_text(encoder, pair.chosen)
    assert [part in said for part in ("No.", "Yes, sun.", "Sure?", "Where?")] == [True, True, False, False]
    assert "I do not know." in scored_text(encoder, pair.rejected)


def test_where_the_users_part_the_answer_that_both_share_is_not_scored(tmp_path):
    other = [*ASKED, TALK[1], asks("Guess!"), says("Yes.")]
    encoder, (pair,) = encoded(
        "byte_level", "qwen2.5", read(tmp_path, {"chosen": [*TALK, says("No.")], "rejected": other})
    )
    assert scored_text(encoder, pair.chosen) == "No.<|im_end|>"
    assert scored_text(encoder, pair.rejected) == "Yes.<|im_end|>"


def test_a_template_that_rewrites_earlier_turns_leaves_the_row_out(tmp_path):
    """Reasoning is stripped once the user goes on: what the assistant wrote is not what is read."""
    chosen = [*ASKED, says("<think>\nhm\n</think>\n\nNo."), asks("Sure?"), says("Yes.")]
    rows = read(tmp_path, {"chosen": chosen, "rejected": [*ASKED, says("Yes.")]})
    encoder, (pair,) = encoded("byte_level", TEMPLATES["qwen3"], rows)
    assert not pair.valid
    assert "changes earlier turns" in encoder.remarks()[0]


def test_every_layout_scores_the_same_tokens(tmp_path):
    _, pairs = encoded("byte_level", WITH_TOOLS["qwen2.5"], read(tmp_path, CALLED, PLAIN))
    batches = PackedBatch.of(pairs, 2048), PaddedBatch.of(pairs), SingleBatch.of(pairs)
    held = EncodedPairs.of(pairs)
    assert [torch.bincount(batch.response, minlength=4).tolist() for batch in batches] == [
        held.scored.ravel().tolist()
    ] * 3
    assert held.scored[0, 0] < held.lengths[0, 1]
    assert held.scored[1].tolist() == held.lengths[1, 1:].tolist()
    for batch in batches:
        assert int(batch.tokens.min()) >= 0
        assert sorted(batch.target.tolist()) == sorted(batches[0].target.tolist())
    assert np.array_equal(EncodedPairs.of(held.select([0, 1])).tokens, held.tokens)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chosen": [says("") | {"tool_calls": "no JSON"}]}, "text that is not JSON"),
        ({"chosen": [says("") | {"tool_calls": [{"function": {}}]}]}, "a call without the function's name"),
        ({"chosen": [says("") | {"function_call": {"name": "f"}}]}, "is an old form"),
        ({"chosen": [call("Bern"), returns("x")]}, "begin and end with an assistant"),
        ({"tools": {"name": "f"}}, "'tools' should be a list"),
    ],
)
def test_calls_that_cannot_be_read_are_bad_rows(tmp_path, change, problem):
    with pytest.raises(Exception, match=problem):
        read(tmp_path, PLAIN | change)
