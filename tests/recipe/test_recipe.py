"""Recipes are strict, frozen, and say precisely what is wrong and where."""

import contextlib
import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from unmdpo.core.errors import UserError
from unmdpo.recipe import load_recipe, packaged, schema
from unmdpo.recipe import settings_table as described
from unmdpo.recipe.document import Document
from unmdpo.recipe.recipe import as_yaml

MINIMAL = """\
name: mine
model: {path: some/model}
data: {source: preference, path: pairs.jsonl}
scales:
  seq: {estimator: pooled}
policies:
  dpo: {objective: dpo}
  wr: {objective: unm-wr, scale: seq}
evaluation:
  baseline: dpo
  panels: {small: {size: 10, seed: 1}}
  judge: {path: some/judge}
"""


@pytest.fixture
def recipe_file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def changed(old: str, new: str) -> str:
    assert old in MINIMAL
    return MINIMAL.replace(old, new)


def test_defaults_are_the_papers_contract(recipe_file):
    recipe = load_recipe(recipe_file(MINIMAL))
    training = recipe.training
    assert (recipe.seed, training.updates, training.batch, training.learning_rate) == (42, 150, 128, 1e-6)
    assert (training.warmup_of(150), training.weight_decay, training.betas) == (20, 0.1, (0.9, 0.98))
    assert (training.eps, training.clip, recipe.data.max_length) == (1e-5, 1.0, 4096)
    pilots = recipe.pilots
    assert (pilots.folds, pilots.fold_seed, pilots.objective) == (5, 260836, "fixed-margin")
    assert recipe.scales["seq"].penalty is None  # the estimator's default


def test_every_packaged_recipe_resolves_and_repeats():
    assert {"hs3-1b", "hs2-1b"} <= packaged().keys()
    for name in (name for name in packaged() if not name.startswith("_")):
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.table


def test_resolved_yaml_is_the_same_recipe(recipe_file):
    recipe = load_recipe("hs3-1b", ["seed=7"])
    again = load_recipe(recipe_file(recipe.to_yaml()))
    assert again == recipe
    assert again.digest == recipe.digest


def test_digest_sees_every_setting_and_no_spelling(recipe_file):
    base = load_recipe(recipe_file(MINIMAL)).digest
    spelled_out = MINIMAL + "training: {updates: 150, learning_rate: 0.000001}\n"
    assert load_recipe(recipe_file(spelled_out)).digest == base
    assert load_recipe(recipe_file(MINIMAL), ["training.eps=2e-5"]).digest != base


def test_recipes_are_frozen():
    recipe = load_recipe("hs3-1b")
    with pytest.raises(ValidationError):
        recipe.seed = 3


def test_overrides(recipe_file):
    recipe = load_recipe(
        recipe_file(MINIMAL),
        ["training.learning_rate=5e-7", "training.betas=[0.8, 0.9]", "policies.o={objective: odpo}"],
    )
    assert recipe.training.learning_rate == 5e-7
    assert recipe.training.betas == (0.8, 0.9)
    assert recipe.policies["o"].objective == "odpo"


def test_a_policy_more_does_not_change_the_question():
    recipe = load_recipe(
        "hs3-1b", ["policies.more={objective: dpo, settings: {beta: 0.1}}", "policies.dpo.settings.beta=0.2"]
    )
    assert recipe.policies["more"].settings == {"beta": 0.1}
    assert (len(recipe.policies), recipe.primary) == (13, load_recipe("hs3-1b").primary)


@pytest.mark.parametrize("by_override", [True, False])
def test_another_place_takes_nothing_from_the_old_one(tmp_path, by_override):
    """The old revision, or the old kind of judge, would be an error at best."""
    changes = {"model.path": "mine", "data.path": "rows.jsonl", "evaluation.judge.function": "judges:longest"}
    if by_override:
        recipe = load_recipe("hs3-1b", [f"{key}={value}" for key, value in changes.items()])
        pinned = load_recipe("hs3-1b", ["model.revision=main", "model.path=mine"])
    else:
        file = tmp_path / "mine.yaml"
        judge = "evaluation: {judge: {function: 'judges:longest'}}"
        file.write_text(f"extends: hs3-1b\nmodel: {{path: mine}}\ndata: {{path: rows.jsonl}}\n{judge}\n")
        recipe = load_recipe(str(file))
        file.write_text("extends: hs3-1b\nmodel: {revision: main, path: mine}\n")
        pinned = load_recipe(str(file))
    assert (recipe.model.path, recipe.model.revision, recipe.data.revision) == ("mine", None, None)
    assert recipe.evaluation.judge.model_dump() == {"function": "judges:longest"}
    assert (pinned.model.path, pinned.model.revision) == ("mine", "main")
    assert load_recipe("hs3-1b", ["training.updates=3"]).model.revision is not None


MISTAKES = {
    "key of a section": (MINIMAL + "learning_rate: 1e-4\n", "unknown key; did you mean 'training.learning_rate'?"),
    "a name of TRL's": (
        MINIMAL + "training: {max_steps: 3}\n",
        "training.max_steps: unknown key; here it is training.updates",
    ),
    "unknown key": (MINIMAL + "trainning: {}\n", ":13: trainning: unknown key; did you mean 'training'?"),
    "unknown inner key": (
        changed("{objective: dpo}", "{objectve: dpo}"),
        ":7: policies.dpo.objectve: unknown key; did you mean 'objective'?",
    ),
    "unknown objective": (
        changed("objective: unm-wr", "objective: unm_wr"),
        ":8: policies.wr.objective: unknown name 'unm_wr'; did you mean 'unm-wr'?",
    ),
    "unknown scale": (changed("scale: seq", "scale: sec"), "there is no scale 'sec'; did you mean 'seq'?"),
    "scale missing": (changed("unm-wr, scale: seq", "unm-wr"), ":8: policies.wr: objective 'unm-wr' needs a scale"),
    "scale unused": (changed("{objective: dpo}", "{objective: dpo, scale: seq}"), "does not use a scale"),
    "unknown setting": (
        changed("{objective: dpo}", "{objective: dpo, settings: {betta: 1}}"),
        ":7: policies.dpo.settings: objective 'dpo' has no setting 'betta'; did you mean 'beta'?",
    ),
    "bad setting": (
        changed("{objective: dpo}", "{objective: dpo, settings: {beta: -1}}"),
        "objective 'dpo': beta should be greater than 0, not -1",
    ),
    "baseline": (
        changed("baseline: dpo", "baseline: dp"),
        ":10: evaluation.baseline: 'dp' is not a policy; did you mean 'dpo'?",
    ),
    "reserved name": (
        changed("  wr: {", "  initial: {"),
        ":8: policies.initial: 'initial' is the model that policies start from; choose another name",
    ),
    "two judges": (
        changed("{path: some/judge}", "{path: some/judge, function: a:b}"),
        "evaluation.judge: give exactly one of path (a sequence classifier",
    ),
    "no judge": (changed("{path: some/judge}", "{}"), "evaluation.judge: give exactly one of path"),
    "wrong type": (changed("size: 10", "size: many"), ":11: evaluation.panels.small.size should be"),
    "no coercion": (changed("size: 10", "size: '10'"), "evaluation.panels.small.size should be"),
    "too small": (changed("size: 10", "size: 0"), "a number of prompts, a share of them between 0 and 1, or all"),
    "missing key": (changed("name: mine\n", ""), "name is missing"),
    "source without path": (changed(", path: pairs.jsonl", ""), "source 'preference' needs a path"),
    "two budgets": (MINIMAL + "training: {updates: 3, epochs: 1}\n", "updates or epochs, not both"),
    "pilots with scale": (MINIMAL + "pilots: {updates: 3, objective: unm-ao}\n", "pilots come before any scale"),
    "unknown pilot objective": (
        MINIMAL + "pilots: {updates: 3, objective: dppo}\n",
        "pilots.objective: unknown name 'dppo'; did you mean 'dpo'?",
    ),
    "duplicate key": (MINIMAL + "name: again\n", ":13: the key 'name' appears twice"),
    "not YAML": (MINIMAL + "seed: [1, 2\n", "not valid YAML"),
    "a list": ("- 1\n- 2\n", ":1: a recipe should be a mapping"),
    "infinite": (MINIMAL + "training: {updates: 3, learning_rate: .inf}\n", "finite number"),
    "python tags": ("name: !!python/object/apply:os.system [ls]\n", "is not allowed"),
    "list as key": ("? [a, b]\n: c\n", ":1: a key should be a plain name"),
    "self-reference": ("name: &a [*a]\n", "too large or too deep"),
    "deep nesting": ("name: " + "[" * 3000 + "\n", "nested too deeply"),
    "bad integer": ("seed: !!int abc\n", ":1: 'abc' is not a readable int"),
    "bad boolean": ("seed: !!bool abc\n", ":1: 'abc' is not a readable bool"),
    "endless integer": ("seed: " + "9" * 5000 + "\n", "is not a readable int"),
    "list as merged key": ("training: {<<: {? [a, b] : c}}\n", "a key should be a plain name"),
    "estimator": (
        changed("estimator: pooled", "estimator: poled"),
        ":5: scales.seq.estimator: unknown name 'poled'; did you mean 'pooled'?",
    ),
    "thresholds": (
        changed("path: pairs.jsonl}", "path: pairs.jsonl, strength: {thresholds: [1.0]}}"),
        "3 strength levels need 2 thresholds",
    ),
    "betas": (MINIMAL + "training: {betas: [2, -1]}\n", ":13: training.betas.0 should be less than 1"),
    "no panels": (changed("{small: {size: 10, seed: 1}}", "{}"), "evaluation.panels: Dictionary should have"),
    "two validations": (
        changed("path: pairs.jsonl}", "path: p.jsonl, validation: {path: v.jsonl, fraction: 0.1}}"),
        "not both",
    ),
    "dotted name": (changed("  dpo: {", "  v1.5: {objective: dpo}\n  dpo: {"), "policies.v1.5"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_say_where_and_what(recipe_file, case):
    text, message = MISTAKES[case]
    path = recipe_file(text)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    without_columns = re.sub(r"(\.yaml:\d+):\d+:", r"\1:", str(caught.value))
    assert message in without_columns
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.updates", "should look like key.sub=value"),
        ("=3", "should look like key.sub=value"),
        ("training.upates=3", "override 'training.upates=3': training.upates: unknown key; did you mean"),
        ("name.x=3", "'name' is a value and has no keys below it"),
        ("training.updates=a few", "override 'training.updates=a few': training.updates should be"),
        ("training.updates=[1", "not valid YAML"),
        ("policies.dpo.seeds=1", "policies.dpo.seeds should be a list, such as [1]"),
    ],
)
def test_override_mistakes(recipe_file, override, message):
    with pytest.raises(UserError) as caught:
        load_recipe(recipe_file(MINIMAL), [override])
    assert message in str(caught.value)


def test_several_mistakes_are_reported_at_once(recipe_file):
    """An unknown key does not hide what else is wrong in its section."""
    text = changed("size: 10", "size: no").replace("path: some/model", "path: 3")
    path = recipe_file(text + "training: {bach: 3, updates: a few, learning_rate: []}\njudge: 3\n")
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    assert [line.removeprefix(path) for line in str(caught.value).splitlines()] == [
        ":2:9: model.path should be text, not 3",
        ":11:20: evaluation.panels.small.size should be a number of prompts, a share of them between 0 and 1, or all, "
        "not 'no'",
        ":13:12: training.bach: unknown key; did you mean 'batch'?",
        ":13:21: training.updates should be a whole number, not 'a few'",
        ":13:37: training.learning_rate should be a number",
        ":14:1: judge: unknown key; known: beta, compute, data, description, evaluation, logging, margin, model, "
        "name, pairs, pilots, policies, reference, scales, seed, table, training",
    ]


def test_panels_must_fit_the_official_validation_split():
    with pytest.raises(UserError, match="panels ask for 500 prompts; the validation split has at most 448"):
        load_recipe("hs2-1b", ["evaluation.panels.eval224.size=500"])
    load_recipe("hs2-1b", ["evaluation.panels.eval224.size=500", "data.validation.path=mine.jsonl"])
    with pytest.raises(UserError, match="at most 448"):
        load_recipe("hs2-1b", ["evaluation.panels.eval224.size=500", "data.validation.seed=7"])


def test_a_null_budget_is_the_default(recipe_file):
    assert load_recipe(recipe_file(MINIMAL), ["training.updates=null"]).training.updates == 150
    epochs = load_recipe(recipe_file(MINIMAL), ["training.epochs=2"]).training
    assert (epochs.updates, epochs.epochs) == (None, 2)


def test_template_arguments_of_any_kind(recipe_file):
    recipe = load_recipe(recipe_file(MINIMAL), ["model.chat_template.enable_thinking=false"])
    assert recipe.model.chat_template == {"enable_thinking": False}


def test_an_override_is_blamed_for_its_own_mistakes_only(recipe_file):
    path = recipe_file(changed(", path: pairs.jsonl", ""))
    with pytest.raises(UserError) as caught:
        load_recipe(path, ["data.max_length=77"])
    assert str(caught.value).startswith(f"{path}:3:1: data: source 'preference' needs a path")


def test_updates_take_the_place_of_epochs_and_epochs_of_updates(recipe_file, tmp_path):
    base = recipe_file(MINIMAL + "training: {epochs: 2}\n")
    assert load_recipe(base, ["training.updates=3"]).training.updates == 3
    assert load_recipe(base, ["training.updates=3", "training.epochs=1"]).training.epochs == 1
    assert load_recipe(base, ["training.updates=null"]).training.epochs == 2
    (tmp_path / "child.yaml").write_text(f"extends: {base}\ntraining: {{updates: 7}}\n")
    assert load_recipe(str(tmp_path / "child.yaml")).training.updates == 7
    (tmp_path / "both.yaml").write_text(f"extends: {base}\ntraining: {{updates: 7, epochs: 1}}\n")
    with pytest.raises(UserError, match="updates or epochs, not both"):
        load_recipe(str(tmp_path / "both.yaml"))


def test_an_empty_section_can_be_overridden(recipe_file):
    assert load_recipe(recipe_file(MINIMAL + "training:\n"), ["training.batch=4"]).training.batch == 4


def test_messages_fit_a_screen(recipe_file):
    many = "".join(f"  p{i}: {{objective: 3}}\n" for i in range(300))
    with pytest.raises(UserError, match="and 288 more mistakes"):
        load_recipe(recipe_file(changed("  dpo: {", many + "  dpo: {")))


def test_unknown_names():
    with pytest.raises(UserError, match="there is no recipe 'hs3-1c'; did you mean 'hs3-1b'"):
        load_recipe("hs3-1c")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_recipe("nowhere.yaml")


def test_the_schema_accepts_the_packaged_recipes_and_refuses_mistakes():
    check = jsonschema.Draft202012Validator(json.loads(schema()))
    for text in packaged().values():
        check.validate(Document(text, "recipe").data)
    good = Document(packaged()["hs3-1b"], "recipe").data
    for section, key, value in (
        ("policies", "dpo", {"objective": "dppo"}),
        ("policies", "Bad Name", {"objective": "dpo"}),
        ("training", "upates", 3),
    ):
        bad = good | {section: good.get(section, {}) | {key: value}}
        with pytest.raises(jsonschema.ValidationError):
            check.validate(bad)


def test_yaml_reads_what_people_write():
    text = "a: 1e-6\nb: 26 Jul 2024\nc: 2024-07-26\nd: 1.5\ne: [1, 2e3]\nf: {<<: {x: 1}, y: 2}\ng: 12\n"
    text += "h: no\ni: 1:30\nj: 010\nk: 0o10\nl: 0xff\nm: true\n"
    document = Document(text, "x")
    assert document.data == {
        "a": 1e-6, "b": "26 Jul 2024", "c": "2024-07-26", "d": 1.5, "e": [1, 2000.0],
        "f": {"x": 1, "y": 2}, "g": 12, "h": "no", "i": "1:30", "j": 10, "k": 8, "l": 255, "m": True,
    }  # fmt: skip
    assert document.places["e", 1] == "5:8"


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(plain)
@example("\x85")
@example({"\u2028": "≡ \u2029 \x85"})
def test_yaml_round_trip(value):
    assert Document(as_yaml(value), "x").data == value


@given(st.text(max_size=80))
def test_any_text_is_a_recipe_or_a_user_error(text):
    with contextlib.suppress(UserError):  # and nothing else
        Document(text, "x")


def test_a_recipe_over_another(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends: hs3-1b\nname: mine\ntraining: {updates: 7}\npolicies: {spo: null}\nevaluation: null\n"
    )
    (tmp_path / "again.yaml").write_text("extends: mine.yaml\nname: again\nseed: 17\n")
    base, found = load_recipe("hs3-1b"), load_recipe(str(tmp_path / "again.yaml"))
    assert (found.name, found.seed, found.training.updates) == ("again", 17, 7)
    assert found.training.warmup == base.training.warmup
    assert [*found.policies] == [name for name in base.policies if name != "spo"]
    assert found.evaluation is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: nothing-like-it\n", "there is no recipe 'nothing-like-it'"),
        ("extends: loop.yaml\n", r"loop\.yaml:1:1: extends: this recipe extends itself"),
        ("extends: [1]\n", r"loop\.yaml:1:1: extends: should be a packaged name or a YAML file"),
        ("extends: []\n", r"loop\.yaml:1:1: extends: should be a packaged name or a YAML file"),
        ("extends: hs3-1b\ntraining: {updats: 3}\n", r"loop\.yaml:2:12: training\.updats: unknown key"),
        ("extends: away.yaml\n", r"away\.yaml: cannot be read"),
    ],
)
def test_bases_that_cannot_be(tmp_path, text, message):
    path = tmp_path / "loop.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_recipe(str(path))


def test_several_bases_are_laid_over_each_other(tmp_path):
    (tmp_path / "one.yaml").write_text("training: {updates: 3, batch: 4}\n")
    (tmp_path / "two.yaml").write_text("training: {updates: 5}\n")
    (tmp_path / "own.yaml").write_text("extends: [hs3-1b, one.yaml, two.yaml]\nname: own\n")
    own = load_recipe(str(tmp_path / "own.yaml"))
    assert (own.training.updates, own.training.batch) == (5, 4)
    assert own.policies == load_recipe("hs3-1b").policies


def test_opponents_are_policies():
    with pytest.raises(UserError, match="'dpoo' is not a policy; did you mean 'dpo'"):
        load_recipe("hs3-1b", ["evaluation.opponents=[dpoo]"])


def test_every_setting_says_what_it_means():
    assert [one.key for one in described.settings() if not one.meaning] == []
    keys = [one.key for one in described.settings()]
    known = {"data.validation.fraction", "policies.NAME.training.adapter.rank", "evaluation.panels.NAME.size"}
    assert known <= {*keys}
    assert len(keys) == len({*keys})


def test_the_page_of_settings_is_current():
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    assert page.read_text("utf-8") == described.as_markdown(), (
        "unmdpo recipes settings --markdown > docs/reference/settings.md"
    )


def test_a_dozen_mistakes_are_all_shown(recipe_file):
    many = "".join(f"  p{i}: {{objective: 3}}\n" for i in range(12))
    with pytest.raises(UserError) as caught:
        load_recipe(recipe_file(changed("  dpo: {", many + "  dpo: {")))
    assert str(caught.value).count("objective") >= 12
    assert "more mistakes" not in str(caught.value)
