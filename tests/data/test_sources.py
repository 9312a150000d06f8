"""Every source gives the same comparisons from every kind of file."""

import gzip
import json
import warnings

import pyarrow
import pyarrow.parquet
import pytest

from tests.worlds.rows import helpsteer3_row
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data import Message, PairRule, StrengthRule, load_comparisons
from unmdpo.data.load import hub_rows


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


# --- HelpSteer3 -----------------------------------------------------------------------------------


def test_helpsteer3_orientation_strength_votes(write):
    rows = [
        helpsteer3_row("A?", label=-2, votes=(-3, -1, 1)),
        helpsteer3_row("B?", label=3, votes=(3, 2)),
        helpsteer3_row("C?", label=0, votes=(-1, 1)),
    ]
    data = load_comparisons(write(rows))
    first, second = data.rows
    assert first.chosen.startswith("Rayleigh")
    assert first.rejected.startswith("Because")
    assert (first.strength, first.votes) == (2, (3, 1, -1))  # positive votes are for `chosen`
    assert second.chosen.startswith("Because")
    assert (second.strength, second.votes) == (3, (3, 2))
    assert (first.domain, first.language) == ("general", "english")
    assert first.prompt == (Message("user", "A?"),)
    assert str(first.source).endswith("data.jsonl, row 1")
    assert len(data) == 2
    assert [tie.strength for tie in data.ties] == [0]


def test_helpsteer3_string_context_is_one_user_turn(write):
    (row,) = load_comparisons(write([helpsteer3_row(context="Hello")])).rows
    assert row.prompt == (Message("user", "Hello"),)


def test_comparisons_of_one_prompt_share_its_text(write):
    data = load_comparisons(write([helpsteer3_row(), helpsteer3_row(label=1)]))
    assert data.rows[0].prompt is data.rows[1].prompt


# --- HelpSteer2 -----------------------------------------------------------------------------------


def helpsteer2_row(prompt="Hi", strength=1, split="train"):
    vote = {"statement": "s", "elaboration": "e", "strength": strength}
    return {
        "split": split,
        "prompt": prompt,
        "response_1": "one",
        "response_2": "two",
        "preference_strength": strength,
        "preference_statement": "s",
        "three_most_similar_preferences": [vote, vote],
        "all_preferences_unprocessed": [vote, vote, vote],
    }


def test_helpsteer2_turn_markers_keep_every_character(write):
    marked = "First \n<extra_id_1>Assistant\nAnswer\n<extra_id_1>User\n Next?"
    (row,) = load_comparisons(write([helpsteer2_row(marked, strength=-3)])).rows
    assert row.prompt == (Message("user", "First \n"), Message("assistant", "Answer\n"), Message("user", " Next?"))
    assert (row.chosen, row.strength, row.votes) == ("one", 3, (3, 3, 3))  # all votes, not the selected two


def test_helpsteer2_splits_by_column_from_file_and_folder(write, tmp_path):
    rows = [helpsteer2_row("A"), helpsteer2_row("B", split="validation"), helpsteer2_row("C")]
    path = write(rows, "mirror/preference/preference.jsonl.gz")
    assert len(load_comparisons(path)) == 2
    assert len(load_comparisons(path, split="validation")) == 1
    folder = str(tmp_path / "mirror")
    assert len(load_comparisons(folder, split="validation")) == 1  # recognized, too
    assert len(load_comparisons(folder, split="validation", source="helpsteer2")) == 1
    assert len(load_comparisons(folder, split="all", source="helpsteer2")) == 3


def test_helpsteer2_two_turns_of_one_speaker_are_an_error(write):
    with pytest.raises(UserError, match="two turns by 'user' in a row"):
        load_comparisons(write([helpsteer2_row("a<extra_id_1>User\nb")]))


# --- PandaLM --------------------------------------------------------------------------------------


# --- Generic preference data ----------------------------------------------------------------------

PREFERENCE_SHAPES = {
    "prompt said twice": {
        "prompt": "Q?",
        "chosen": [user("Q?"), assistant("good")],
        "rejected": [user("Q?"), assistant("bad")],
    },
    "strings": {"prompt": "Q?", "chosen": "good", "rejected": "bad"},
    "conversational": {"prompt": [user("Q?")], "chosen": [assistant("good")], "rejected": [assistant("bad")]},
    "implicit": {"chosen": [user("Q?"), assistant("good")], "rejected": [user("Q?"), assistant("bad")]},
}


@pytest.mark.parametrize("shape", PREFERENCE_SHAPES)
def test_preference_shapes_mean_the_same(write, shape):
    (row,) = load_comparisons(write([PREFERENCE_SHAPES[shape] | {"strength": 2}])).rows
    assert (row.prompt, row.chosen, row.rejected) == ((Message("user", "Q?"),), "good", "bad")
    assert row.strength == 2


def test_implicit_text_prompt_ends_at_a_whole_word(write):
    rows = [{"chosen": "The sky is blue.", "rejected": "The sky is black.", "strength": 1}]
    (row,) = load_comparisons(write(rows)).rows
    assert row.prompt == (Message("user", "The sky is"),)
    assert (row.chosen, row.rejected) == (" blue.", " black.")


def test_system_turn_and_several_turns(write):
    prompt = [{"role": "system", "content": "Be kind"}, user("a"), assistant("b"), user("c")]
    rows = [{"prompt": prompt, "chosen": "x", "rejected": "y", "strength": 1, "votes": [2, -1]}]
    (row,) = load_comparisons(write(rows)).rows
    assert [m.role for m in row.prompt] == ["system", "user", "assistant", "user"]
    assert row.votes == (2, -1)


def scored_pairs(margins, **columns):
    return [
        {"prompt": f"{i}?", "chosen": "x", "rejected": "y", "score_chosen": 1 + m, "score_rejected": 1.0} | columns
        for i, m in enumerate(margins)
    ]


def strengths(data):
    return [row.strength for row in data]


def test_scores_cut_at_given_thresholds(write):
    settings = {"strength": StrengthRule(thresholds=(1.0, 2.5))}
    data = load_comparisons(write(scored_pairs([0.5, 1.0, 2.0, 2.5, 9, 0])), **settings)
    assert strengths(data) == [1, 2, 2, 3, 3]  # a margin of at least 1 reaches level 2
    assert len(data.ties) == 1


def test_scores_cut_at_quantiles(write):
    data = load_comparisons(write(scored_pairs([1, 2, 3, 4, 5, 6])))
    # thirds of 1…6 are at 1 + 5/3 = 2.67 and 1 + 10/3 = 4.33
    assert strengths(data) == [1, 1, 2, 2, 3, 3]
    settings = {"strength": StrengthRule(levels=2)}
    assert strengths(load_comparisons(write(scored_pairs([1, 2, 3, 4])), **settings)) == [1, 1, 2, 2]


def test_a_margin_that_many_share_is_one_level(write):
    with pytest.warns(UnmdpoWarning, match=r"too few distinct values for 3 strength levels .*levels used: \[1\]"):
        assert strengths(load_comparisons(write(scored_pairs([2, 2, 2])))) == [1, 1, 1]
    with pytest.warns(UnmdpoWarning, match=r"levels used: \[1, 3\]"):
        assert strengths(load_comparisons(write(scored_pairs([1] * 7 + [2, 3, 4])))) == [1] * 7 + [3] * 3


def test_rounding_does_not_move_a_threshold(write):
    rows = [{"prompt": "Q", "chosen": "x", "rejected": "y", "score_chosen": 4.1, "score_rejected": 3.1}]
    settings = {"strength": StrengthRule(levels=2, thresholds=(1.0,))}
    assert strengths(load_comparisons(write(rows), **settings)) == [2]
    settings = {"strength": StrengthRule(levels=1, thresholds=()), "pairing": PairRule(min_gap=1.0)}
    assert pairs_of(load_comparisons(write(answers([[4.1], [3.1]])), **settings)) == [("r0", "r1", 1)]


def test_preference_strength_is_a_strength_column(write):
    rows = [{"chosen": "Say a", "rejected": "Say b", "preference_strength": k} for k in (0, 3)]
    data = load_comparisons(write(rows))
    assert (strengths(data), len(data.ties)) == ([3], 1)


def test_order_of_strength_signals(write):
    rows = scored_pairs([5, 5], margin=0.25) + scored_pairs([5], margin=0.75)
    settings = {"strength": StrengthRule(levels=2, thresholds=(0.5,))}
    assert strengths(load_comparisons(write(rows), **settings)) == [1, 1, 2]  # margin wins over scores
    rows = scored_pairs([5], margin=0.25, strength=3)
    assert strengths(load_comparisons(write(rows))) == [3]  # strength wins over margin
    named = {"strength": StrengthRule(column="level")}
    assert strengths(load_comparisons(write(scored_pairs([1], level=2)), **named)) == [2]
    rewards = [{"prompt": "a", "chosen": "x", "rejected": "y", "chosen_reward": 2, "rejected_reward": 1}]
    assert strengths(load_comparisons(write(rewards), **settings)) == [2]


def test_no_signal_is_a_warning(write):
    with pytest.warns(UnmdpoWarning, match="margins carry no information"):
        data = load_comparisons(write([{"prompt": "a", "chosen": "x", "rejected": "y"}]))
    assert strengths(data) == [1]


# --- Scored responses -----------------------------------------------------------------------------


def answers(scores):
    return [{"prompt": "Q", "response": f"r{i}", "scores": s} for i, s in enumerate(scores)]


def pairs_of(data):
    return [(row.chosen, row.rejected, row.strength) for row in data]


def test_scored_all_pairs(write):
    settings = {"strength": StrengthRule(thresholds=(2.0, 4.0))}
    data = load_comparisons(write(answers([[5], [9, 7], [1]])), **settings)
    assert pairs_of(data) == [("r1", "r0", 2), ("r1", "r2", 3), ("r0", "r2", 3)]


def test_scored_neighbours_and_minimum_gap(write):
    settings = {"strength": StrengthRule(thresholds=(2.0, 4.0)), "pairing": PairRule(pairs="neighbours", min_gap=2)}
    data = load_comparisons(write(answers([[5], [8], [4], [4]])), **settings)
    assert pairs_of(data) == [("r1", "r0", 2)]
    assert [(t.chosen, t.rejected) for t in data.ties] == [("r0", "r2"), ("r2", "r3")]


def test_scored_row_per_prompt_means_the_same(write):
    per_prompt = [{"prompt": "Q", "responses": ["r0", "r1", "r2"], "scores": [5, [9, 7], 1]}]
    by_response = load_comparisons(write(answers([[5], [9, 7], [1]]), "a.jsonl"))
    assert pairs_of(load_comparisons(write(per_prompt, "b.jsonl"))) == pairs_of(by_response)


# --- Files and folders ----------------------------------------------------------------------------


def test_every_file_kind_gives_the_same(write, tmp_path):
    rows = [helpsteer3_row("A?"), helpsteer3_row("B?", label=1, votes=())]
    expected = [(r.prompt_hash, r.chosen, r.strength, r.votes) for r in load_comparisons(write(rows))]
    listed, lined = tmp_path / "list.json", tmp_path / "lines.json"
    listed.write_text(json.dumps(rows, indent=1))
    lined.write_text("\ufeff" + "\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    (tmp_path / "list.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    write(rows, "rows.jsonl.gz")
    for name in ("list.json", "lines.json", "list.json.gz", "rows.parquet", "rows.jsonl.gz"):
        data = load_comparisons(str(tmp_path / name))
        assert [(r.prompt_hash, r.chosen, r.strength, r.votes) for r in data] == expected, name


def test_folder_splits(write, tmp_path):
    write([helpsteer3_row("A?")], "hs3/preference/train.jsonl.gz")
    write([helpsteer3_row("B?"), helpsteer3_row("C?")], "hs3/preference/validation.jsonl.gz")
    write([{"other": 1}], "hs3/edit/train.jsonl.gz")
    folder = str(tmp_path / "hs3")
    assert len(load_comparisons(folder, source="helpsteer3")) == 1
    assert len(load_comparisons(folder, split="validation", source="helpsteer3")) == 2
    assert len(load_comparisons(folder, split="all", source="helpsteer3")) == 3
    assert len(load_comparisons(folder, config="preference")) == 1
    assert len(load_comparisons(folder)) == 1  # the right part of a mirrored repository is found automatically
    with pytest.raises(UserError, match="no files for the split 'test'; splits here: train, validation"):
        load_comparisons(folder, split="test", source="helpsteer3")
    with pytest.raises(UserError, match="it has no folder 'other'"):
        load_comparisons(folder, config="other")


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        ("train/0000.jsonl", "validation/0000.jsonl"),
        ("my-train.jsonl", "my-eval.jsonl"),
        ("train-00000-of-00001.jsonl", "dev-00000-of-00001.jsonl"),
    ],
)
def test_split_names_in_any_place(write, tmp_path, train, validation):
    write([helpsteer3_row("A?")], f"set/{train}")
    write([helpsteer3_row("B?"), helpsteer3_row("C?")], f"set/{validation}")
    folder = str(tmp_path / "set")
    assert len(load_comparisons(folder)) == 1
    assert len(load_comparisons(folder, split="validation")) == 2


def test_words_that_only_begin_like_a_split(write, tmp_path):
    write([helpsteer3_row("A?")], "set/testimonials.jsonl")
    assert len(load_comparisons(str(tmp_path / "set"))) == 1


def test_shards_are_read_in_order(write, tmp_path):
    write([helpsteer3_row("A?")], "many/train-00000-of-00002.jsonl")
    write([helpsteer3_row("B?")], "many/train-00001-of-00002.jsonl")
    prompts = [row.prompt[0].content for row in load_comparisons(str(tmp_path / "many"))]
    assert prompts == ["A?", "B?"]


# --- The Hub --------------------------------------------------------------------------------------

CARD = """---
configs:
- config_name: preference
  data_files:
  - {split: train, path: preference/train.jsonl.gz}
  - {split: validation, path: preference/validation.jsonl.gz}
---
"""


@pytest.fixture
def mirror(write, tmp_path, monkeypatch):
    """A folder laid out like HelpSteer3's repository, which `datasets` loads as if from the Hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    write([helpsteer3_row("A?"), helpsteer3_row("B?", label=2)], "hub/preference/train.jsonl.gz")
    write([helpsteer3_row("C?", label=3)], "hub/preference/validation.jsonl.gz")
    (tmp_path / "hub" / "README.md").write_text(CARD)
    return str(tmp_path / "hub")


def test_hub_loading_code_on_a_local_mirror(mirror):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the datasets library itself
        train = list(hub_rows(mirror, split="train", revision=None, config="preference", data_dir=None))
        both = list(hub_rows(mirror, split=None, revision=None, config="preference", data_dir=None))
    assert [row.values["overall_preference"] for row in train] == [-2, 2]
    assert str(train[1].origin) == f"{mirror} [train], row 2"
    assert [row.values["overall_preference"] for row in both] == [-2, 2, 3]
    assert [row.origin.row for row in both] == [1, 2, 1]


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("nvidia/HelpSteer3", "validation", ("preference", None, "validation")),
        ("nvidia/HelpSteer2", "validation", (None, "preference", None)),
    ],
)
def test_official_names_know_their_layout(monkeypatch, name, split, expected):
    """From a Hub name to the library call; the library is replaced by one that returns rows."""
    import datasets

    asked = []

    def load_dataset(path, *, name, data_dir, revision, split):
        asked.append((path, name, data_dir, revision, split))
        rows = [helpsteer3_row("A?")] if "3" in path else [helpsteer2_row("B", split="validation")]
        return rows if split else {"train": rows}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_comparisons(name, split=split, revision="abc123")
    config, data_dir, hub_split = expected
    assert asked == [(name, config, data_dir, "abc123", hub_split)]
    assert len(data) == 1
    assert data.rows[0].source.file.startswith(f"{name}@abc123 [")


def test_hub_failure_says_what_to_do(mirror):
    rows = hub_rows(mirror, split="train", revision="abc", config="nosuch", data_dir=None)
    with pytest.raises(UserError, match="or download its files"):
        next(rows)


def test_path_that_is_no_hub_name_is_not_sought_there():
    with pytest.raises(UserError, match="no such file or folder"):
        load_comparisons("data/train.jsonl")


def test_a_system_message_is_no_turn_of_an_arena(tmp_path):
    def talk(answer):
        said = (("system", "be kind"), ("user", "Q"), ("assistant", answer), ("user", "R"), ("assistant", "later"))
        return [{"role": role, "content": content} for role, content in said]

    row = {"conversation_a": talk("one"), "conversation_b": talk("two"), "winner": "model_a", "turn": 1}
    path = tmp_path / "battles.jsonl"
    path.write_text(json.dumps(row | {"model_a": "x", "model_b": "y"}) + "\n")
    (found,) = load_comparisons(str(path), source="arena")
    assert [message.content for message in found.prompt] == ["be kind", "Q"]
    assert (found.chosen, found.rejected) == ("one", "two")
