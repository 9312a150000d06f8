"""A first look: every count against rows made for it."""

import pytest

from tests.worlds.shapes import battle, said, user
from unmdpo.audit.describe import Spread, describe, is_cut_off, script_of
from unmdpo.audit.figures import percent, shares
from unmdpo.data import rows_of

LONG = "This answer goes on and on about the very many things that could be said about the matter at hand and"


JOINED = {"another vote on the same two answers, counted with the first": 1}


def pair(prompt="Q?", chosen="Yes.", rejected="No.", strength=1, **changes):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "strength": strength} | changes


def seen_in(path, split="train", against=()):
    seen, _ = describe(rows_of(path, split=split or "all"), against)
    return seen


def test_counts(write):
    rows = [
        pair(strength=1, domain="code"),
        pair(strength=1, domain="code"),  # repeated
        pair(chosen="No.", rejected="Yes.", strength=2),  # contradicts the first
        pair("B?", "same", "same", 3),
        pair("C?", "", LONG, 3),
        pair("D?", "a", "b", 0),  # a tie
        pair([user("1?"), said("one"), user("2?")], "two", "three", 2, language="english"),
        pair([{"role": "system", "content": "Be brief."}, user("你好吗？")], "好", "不好", 2),
    ]
    seen = seen_in(write(rows))
    assert (seen.read, seen.bad, seen.comparisons, seen.ties) == (8, 0, 7, 1)
    assert (seen.prompts, seen.several_pairs, seen.pairs_per_prompt.most) == (6, 0, 1)
    assert (seen.repeated, seen.contradicted, seen.same_answer, seen.empty_answers, seen.cut_off) == (1, 1, 1, 1, 1)
    assert dict(seen.strengths) == {1: 2, 2: 3, 3: 2}
    assert dict(seen.domains) == {"code": 2, "": 6}
    assert dict(seen.turns) == {1: 7, 2: 1}
    assert seen.system_messages == 1
    assert dict(seen.languages) == {"Latin script": 6, "english": 1, "Chinese or Japanese": 1}
    assert seen.identified == 1  # one pair with two margins
    assert seen.strength_from == "`strength`"
    assert "q can be estimated directly for 1 of 6 prompts; elsewhere it must be learned" in seen.strength_means
    assert seen.chosen_length == Spread.of([4, 4, 3, 4, 0, 1, 3, 1])


def test_cycles_tell_a_scale(write):
    rows = [pair(chosen=a, rejected=b, strength=k) for a, b, k in (("x", "y", 1), ("y", "z", 1), ("x", "z", 1))]
    seen = seen_in(write(rows))
    assert (seen.prompts, seen.several_pairs, seen.identified) == (1, 1, 1)


@pytest.mark.filterwarnings("ignore:.*no strengths")
def test_equal_strengths_say_nothing(write):
    seen = seen_in(write([{"prompt": "Q?", "chosen": "a", "rejected": "b"}]))
    assert "margins carry no information" in seen.strength_means
    assert seen.strength_from == "nothing: it is 1 for all"


def test_leaks_whatever_their_case_and_spaces(write, tmp_path):
    write([pair("What is  it?"), pair("Other?")], "data/train.jsonl")
    write([pair("what is it?"), pair("New?")], "data/validation.jsonl")
    panel = write([{"instruction": "Other?"}, {"instruction": "WHAT IS IT?"}, {"instruction": "x"}], "panel.jsonl")
    pairs = write([pair("Other?", a) for a in "ab"], "more.jsonl")
    seen = seen_in(str(tmp_path / "data"), against=[panel, pairs])
    assert seen.leaked == {"the split 'validation'": 1, panel: 2, pairs: 1}


def test_votes_and_both_bad(write):
    rows = [battle("model_a"), battle("model_a", judge="another"), battle("both_bad", "x", "y"), battle(None)]
    seen = seen_in(write(rows))
    assert (seen.voted, seen.ties, seen.both_bad, seen.left_out) == (1, 1, 1, {**JOINED, "nobody voted": 1})
    assert seen.columns == ("conversation_a", "conversation_b", "winner")


@pytest.mark.parametrize(
    ("answer", "cut"),
    [
        (LONG, True),
        (f"{LONG} so on.", False),
        (f"{LONG} `code`", False),
        (f"{LONG} 42", False),
        (f"{LONG},", True),
        (f"{LONG}。", False),
        ("Short answer", False),
        (f"{LONG} 🙂", False),
    ],
)
def test_answers_that_end_within_a_sentence(answer, cut):
    assert is_cut_off(answer) is cut


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello", "Latin script"),
        ("Привет, как дела?", "Cyrillic"),
        ("こんにちは", "Chinese or Japanese"),
        ("안녕", "Korean"),
        ("¿Qué tal?", "Latin script"),
        ("1 + 1 = ?", "no letters"),
        ("مرحبا", "Arabic"),
        ("Explain 你好 to me, please", "Latin script"),
    ],
)
def test_scripts(text, script):
    assert script_of(text) == script


def test_shares_in_words():
    assert shares({3: 1, 1: 3}) == "1 75 %, 3 25 %"
    assert shares({"b": 1, "a": 3, "": 1}, most=2) == "a 60 %, (none) 20 %, 1 others"
    assert [percent(share) for share in (0, 0.005, 0.5, 0.999, 1)] == ["0 %", "0.5 %", "50 %", "99.9 %", "100 %"]


def test_markup_and_only_ties(write):
    marked = pair("<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant")
    assert seen_in(write([marked, pair("Other?", strength=2)])).markup == 1
    ties = seen_in(write([pair(strength=0), pair("B?", strength=0)]))
    assert (ties.comparisons, ties.ties) == (0, 2)
    assert ties.strength_means == "there are only ties, so there is nothing to learn"


def test_unrelated_conversations_with_the_same_last_turn_are_no_leak(write):
    path = write([pair([user("A?"), said("a"), user("Continue.")])])
    other = write([pair([user("B?"), said("b"), user("Continue.")])], "other.jsonl")
    assert seen_in(path, against=[other]).leaked == {other: 0}


def test_many_pairs_of_one_prompt_take_no_time(write):
    rows = [pair(chosen=f"a{i}", rejected=f"b{i}", strength=1 + i % 3) for i in range(2_000)]
    assert seen_in(write(rows)).pairs_per_prompt.most == 2_000
