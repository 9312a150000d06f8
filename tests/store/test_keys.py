"""Keys: everything that affects a result is in them, and where files lie is not."""

import json
import shutil
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.worlds.pipeline import recipe
from unmdpo.core.places import Place, places_in
from unmdpo.recipe import Recipe
from unmdpo.results.run import open_run
from unmdpo.store.keys import identity_of, stage_key
from unmdpo.store.pins import pinned_now
from unmdpo.store.store import Store

# Words that settings themselves use: a folder may be called like any of them.
NAMES = st.sampled_from(["judge", "model", "parts", "label", "path", "files", "train", "settings", "x", "ä ö", "a.b"])


def keys_of(described, folder):
    run = open_run(Recipe.model_validate(described), Store(folder / "store"))
    return {name: stage.key for name, stage in run.stages.items()}


def changed(folder, monkeypatch, *, first, second):
    """The stages whose keys differ between two recipes that are read from the folder itself."""
    monkeypatch.chdir(folder)
    before, after = keys_of(first, folder), keys_of(second, folder)
    return {name.partition("[")[0] for name in before if before[name] != after[name]}


@pytest.fixture
def here(folder, tmp_path):
    """A model, a judge and data under names that settings use as well."""
    shutil.copytree(folder / "model", tmp_path / "model")
    shutil.copytree(folder / "model", tmp_path / "judge")
    (tmp_path / "parts").mkdir()
    rows = [
        {"prompt": f"w{i}", "chosen": "w1 w2", "rejected": "w3", "score_chosen": 9 - i % 5, "score_rejected": 1}
        for i in range(24)
    ]
    (tmp_path / "parts" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def described(**changes):
    whole = {
        "name": "named",
        "model": {"path": "model"},
        "data": {"path": "parts", "strength": {"thresholds": [4, 6]}, "validation": {"fraction": 0.25}},
        "policies": {"dpo": {"objective": "dpo"}},
        "evaluation": {"baseline": "dpo", "panels": {"one": {"size": 2}}, "judge": {"path": "judge", "label": 0}},
    }
    return whole | changes


def test_a_setting_of_a_judge_in_a_folder_called_judge(here, monkeypatch):
    evaluation = described()["evaluation"]
    other = described(evaluation=evaluation | {"judge": {"path": "judge", "label": 1}})
    assert changed(here, monkeypatch, first=described(), second=other) == {"judgement", "summary"}


def test_a_template_of_a_model_in_a_folder_called_model(here, monkeypatch):
    other = described(model={"path": "model", "template": "{{ messages }}"})
    assert {"encoded", "reference", "policy"} <= changed(here, monkeypatch, first=described(), second=other)


def test_thresholds_of_data_in_a_folder_called_parts(here, monkeypatch):
    data = described()["data"] | {"strength": {"thresholds": [5, 6]}}
    found = changed(here, monkeypatch, first=described(), second=described(data=data))
    assert {"comparisons", "encoded", "policy", "summary"} <= found


def leaves(value, path=()):
    """Every single setting, with the way to it."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from leaves(getattr(value, name), (*path, name))
    elif isinstance(value, dict | list | tuple):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, name))
    else:
        yield path, value


def replaced(value, path, leaf):
    if not path:
        return leaf
    name, *rest = path
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: replaced(getattr(value, name), rest, leaf)})
    if isinstance(value, dict):
        return value | {name: replaced(value[name], rest, leaf)}
    parts = [*value]
    parts[name] = replaced(parts[name], rest, leaf)
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def another(leaf):
    if isinstance(leaf, Place):
        return leaf.pinned("of something else")
    if leaf is None:
        return 1
    if isinstance(leaf, bool):
        return not leaf
    return leaf + "x" if isinstance(leaf, str) else leaf + 1


def test_every_setting_of_every_stage_is_in_its_key(folder, tmp_path):
    """Whatever one changes, the key is another."""
    run = open_run(recipe(folder), Store(tmp_path))
    for stage in run.stages.values():
        inputs = {role: needed.key for role, needed in stage.inputs.items()}
        assert stage_key(stage.kind.name, stage.code, stage.settings, inputs) == stage.key
        for path, leaf in leaves(stage.settings):
            other = replaced(stage.settings, path, another(leaf))
            assert stage_key(stage.kind.name, stage.code, other, inputs) != stage.key, (stage.name, path)
        for role in inputs:
            assert stage_key(stage.kind.name, stage.code, stage.settings, inputs | {role: "x"}) != stage.key
        assert stage_key(stage.kind.name, "x", stage.settings, inputs) != stage.key


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=NAMES, data=NAMES, spelt=st.sampled_from(["{}", "./{}", "{}/", "../{here}/{}"]))
def test_keys_do_not_depend_on_where_files_lie_or_how_paths_are_spelt(folder, tmp_path_factory, model, data, spelt):
    there = tmp_path_factory.mktemp("there")
    shutil.copytree(folder / "model", there / f"m-{model}")
    shutil.copy(folder / "data.jsonl", there / f"{data}.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(there)
        model_path = spelt.format(f"m-{model}", here=there.name)
        data_path = spelt.removesuffix("/").format(f"{data}.jsonl", here=there.name)
        elsewhere = recipe(folder).model_dump(mode="json")
        elsewhere["model"]["path"], elsewhere["data"]["path"] = model_path, data_path
        assert keys_of(elsewhere, there) == keys_of(recipe(folder).model_dump(mode="json"), there)
        (there / f"m-{model}" / "generation_config.json").write_text("{}")
        after = keys_of(elsewhere, there)
        assert after["encoded"] != keys_of(recipe(folder).model_dump(mode="json"), there)["encoded"]


def test_a_place_cannot_enter_a_key_before_it_is_pinned():
    with pytest.raises(AssertionError, match="before it is known what lies there"):
        identity_of(Place("somewhere"))
    with pytest.raises(TypeError, match="cannot be part of a key"):
        identity_of({1, 2})


@pytest.mark.parametrize(
    "name", ["bpe.codes", "merges.bpe", "tokenizer.model.v3", "vocab.unheard-of", "sub/extra.tiktoken"]
)
def test_every_file_of_a_tokenizer_counts(folder, tmp_path, name):
    shutil.copytree(folder / "model", tmp_path / "model")
    (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
    source = recipe(folder, model={"path": str(tmp_path / "model")}).model
    digests = set()
    for content in ("one", "two"):
        (tmp_path / "model" / name).write_text(content)
        ((_, place),) = places_in(pinned_now(source))
        digests.add(place.digest)
    assert len(digests) == 2


def test_single_files_count_by_content_and_type(tmp_path):
    for name, content in (("a.jsonl", "x"), ("b.jsonl", "x"), ("a.csv", "x"), ("c.jsonl", "y")):
        (tmp_path / name).write_text(content)
    a, b, other_type, other_content = (
        pinned_now(Place(str(tmp_path / name))).digest for name in ("a.jsonl", "b.jsonl", "a.csv", "c.jsonl")
    )
    assert a == b
    assert len({a, other_type, other_content}) == 3


@given(text=st.text(string.printable, max_size=20))
def test_text_is_never_taken_for_a_path(text):
    """A setting that is text is in the key as it is, whatever it looks like."""
    assert identity_of({"label": text}) == {"label": text}
