"""What comes after a run: listing and removing runs, exporting policies, asking them."""

import copy
import json
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import unmdpo
from tests.worlds.pipeline import recipe
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.core.files import sha256
from unmdpo.data import Message
from unmdpo.execute import execute
from unmdpo.results.export import export_policy
from unmdpo.results.policy import LoadedPolicy
from unmdpo.results.run import open_run
from unmdpo.results.verify import verify
from unmdpo.stages.shared import base
from unmdpo.store.runs import find_run, remove_record, runs_of
from unmdpo.store.store import Store


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def store(done, tmp_path):
    place = tmp_path / "store"
    shutil.copytree(done.store.root, place)
    return Store(place)


def test_runs_are_listed_and_one_is_removed_without_the_other(done, folder, store):
    other = execute(open_run(recipe(folder, name="other", beta=0.2), store), until="pilot[0]")
    by_name = {run.name: run for run in runs_of(store)}
    assert {done.folder.name, other.folder.name} <= set(by_name)
    mine, theirs = by_name[done.folder.name], by_name[other.folder.name]
    assert len(mine.finished) == len(mine.places) == len(done.stages)
    assert 0 < len(theirs.finished) < len(theirs.places)
    listed = command("runs", "--store", store.root).output
    assert f"all {len(done.stages)}" in listed
    assert f"{len(theirs.finished)} of {len(theirs.places)}" in listed
    shared = set(mine.finished) & set(theirs.finished)
    assert shared
    removed = command("rm", "other", "--yes", "--store", store.root)
    assert removed.exit_code == 0, removed.output
    assert other.folder.name not in [run.name for run in runs_of(store)]
    assert all(store.find(place) is not None for place in mine.places)
    assert all(store.find(place) is not None for place in theirs.finished)  # a record goes, and nothing else
    unreferenced = len(set(theirs.finished) - shared)
    assert f"{unreferenced} results of no run" in removed.output
    freed = command("rm", "--unused", "--yes", "--store", store.root)
    assert f"{unreferenced} results of no run removed" in freed.output
    assert not any(store.find(place) for place in set(theirs.finished) - shared)
    again = open_run(done.recipe, store)
    assert not [finding for finding in verify(again) if finding.problem]
    remove_record(find_run(store, done.folder.name))
    assert done.folder.name not in [run.name for run in runs_of(store)]


def test_a_run_that_is_not_there(done, store):
    with pytest.raises(UserError, match="has no run 'no-such'"):
        find_run(store, "no-such")
    assert command("rm", done.folder.name, "--store", store.root).exit_code == 1  # nobody said yes
    assert find_run(store, done.folder.name[:-3]).folder.is_dir()


def test_an_exported_policy_is_the_policy_and_says_so(done, tmp_path):
    out = tmp_path / "mine"
    said = command("export", done.folder, "unm-wr", out, "--license", "apache-2.0")
    assert said.exit_code == 0, said.output
    ours, theirs = (AutoModelForCausalLM.from_pretrained(place) for place in (done.policy("unm-wr"), out))
    both = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in both)
    assert AutoTokenizer.from_pretrained(out).chat_template
    card = (out / "README.md").read_text()
    assert ModelCard(card).data.base_model is None  # a folder of this machine
    assert "license: apache-2.0\n" in card.split("---")[1]
    wanted = {"policy": "unm-wr", "panel": "one", "against": "dpo"}
    (rate,) = [row["win_rate"] for row in done.table() if wanted.items() <= row.items()]
    assert f"(a judge that was not measured here) | dpo | {rate:.1f} |" in card
    assert done.answer in card
    (shown, *_) = [one for one in ModelCard(card).data.eval_results if "against dpo" in one.metric_name]
    assert (shown.dataset_name, shown.metric_type) == ("one", "win_rate")
    assert shown.metric_value == pytest.approx(rate)
    for part in ("trained on", "## Limits", f"{len(done.panel('one'))} of one", "## Usage", "## Recipe", "## SHA-256"):
        assert part in card


def test_an_export_overwrites_nothing_and_copies_no_damage(done, store, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "precious").write_text("x")
    with pytest.raises(UserError, match="already exists"):
        export_policy(done, "dpo", tmp_path / "there")
    with pytest.raises(UserError, match="whole model already"):
        export_policy(done, "dpo", tmp_path / "new", merge=True)
    with pytest.raises(UserError, match="without an adapter"):
        export_policy(done, "dpo", tmp_path / "new", adapter=True)
    run = open_run(done.recipe, store)
    sums = json.loads((run.policy("dpo") / "checksums.json").read_text())
    damaged = run.policy("dpo") / next(name for name in sums if name.endswith(".safetensors"))
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="damaged"):
        export_policy(run, "dpo", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_policy_answers_as_it_does_in_evaluation(done):
    panel, known = done.panel("one"), done.generations("dpo", "one")
    assert done.policy("dpo").generate(panel.prompts, 4) == [row["text"] for row in known]
    sent = copy.deepcopy(done.policy("dpo"))
    assert sent.generate(panel.prompts, 4) == [row["text"] for row in known]
    assert (sent / "config.json").is_file()
    text = LoadedPolicy(done.initial, max_new_tokens=4).answers(["w1 w2"])[0]
    said = command("chat", done.folder, "initial", "dpo", "--prompt", "w1 w2", "--tokens", 4)
    assert said.exit_code == 0, said.output
    assert f"initial: {text}" in said.output
    assert "dpo: " in said.output


def test_what_another_version_made_is_still_read(done, tmp_path, monkeypatch):
    """Its record says what it is."""
    monkeypatch.setattr(base, "code_digest", lambda place: "another")
    for words in (["report"], ["verify"], ["table"], ["export", "dpo", tmp_path / "out"], ["scale", "seq", "--check"]):
        said = command(words[0], done.folder, *words[1:])
        assert said.exit_code == 0, said.output


def test_questions_that_are_not_utf_8(done):
    said = CliRunner().invoke(app, ["chat", str(done.folder), "dpo", "--tokens", "2"], input=b"w1 \xff w2\n\n")
    assert said.exit_code == 0, said.output
    assert "dpo: " in said.output


def test_runs_stand_where_recipes_do(done):
    assert command("compare", done.folder, "unm-wr", "dpo").exit_code == 0
    assert command("plan", done.folder.name, "--store", done.store.root).exit_code == 0
    changed = command("scale", done.folder, "seq", "scales.seq.penalty=0.5", "--check")
    assert changed.exit_code == 2  # that scale is another one, and not fitted
    assert "has no run of this recipe" in changed.output


def test_from_python(done):
    again = unmdpo.run(done.recipe.model_dump(mode="json"), store=done.store.root, progress=True)
    assert again.summary == done.summary
    shown = repr(again)
    assert len(shown) < 2000
    assert "one: unm-wr against dpo:" in shown
    assert again._repr_html_().startswith("<p>Run small")
    with pytest.raises(UserError, match="nmae"):
        unmdpo.run({"nmae": "x"})


def test_a_model_trained_elsewhere_stands_in_the_table(done, folder, store, tmp_path):
    theirs = export_policy(done, "dpo", tmp_path / "theirs")
    given = done.recipe.model_dump(mode="json")
    given["evaluation"]["answers"] = {"theirs": {"path": str(theirs)}}
    run = unmdpo.run(given, store=store.root)
    ours, others = (run.generations(name, "one") for name in ("dpo", "theirs"))
    assert [row["text"] for row in ours] == [row["text"] for row in others]
    wanted = {"policy": "theirs", "panel": "one", "against": "dpo"}
    (row,) = [row for row in run.table() if wanted.items() <= row.items()]
    assert (row["win_rate"], row["length_ratio"]) == (50.0, 1.0)
    assert not [finding for finding in verify(run) if finding.problem]
    assert "policy[theirs]" not in run.stages
    given["evaluation"]["answers"]["theirs"] = {"path": "./nowhere"}
    with pytest.raises(UserError, match=r"evaluation\.answers\.theirs\.path: there is no file or folder"):
        unmdpo.run(given, store=store.root)


def test_quiet_runs_and_runs_for_machines(done, store, tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(done.recipe.to_yaml())
    told = command("run", file, "--jobs", 1, "--json", "--store", store.root)
    assert told.exit_code == 0, told.output
    events = [json.loads(line) for line in told.stdout.splitlines()]
    assert {event["stage"] for event in events if event["event"] == "cached"} == set(done.stages)
    assert [event for event in events if event["event"] == "row"] == [{"event": "row", **row} for row in done.table()]
    assert events[-1]["event"] == "run"
    quiet = command("run", file, "--jobs", 1, "--quiet", "--store", store.root)
    assert quiet.exit_code == 0
    assert quiet.stderr == ""
    assert "against dpo" in quiet.stdout


def test_an_upload_that_fails_says_where_the_policy_lies(done, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = command("export", done.folder, "dpo", tmp_path / "mine", "--push", "nobody/nothing")
    assert said.exit_code == 2
    assert "nobody/nothing could not be uploaded" in said.output
    assert (tmp_path / "mine" / "config.json").is_file()


def test_questions_may_be_texts_or_messages(done):
    policy = done.policy("dpo")
    asked = ["w1 w2", [{"role": "user", "content": "w1 w2"}], (Message("user", "w1 w2"),)]
    assert len(set(policy.generate(asked, 4))) == 1
    q = done.scale("seq").predict(asked)
    assert torch.allclose(q, q[:1], atol=1e-5)
    for wrong in (
        lambda: done.scale("seq").predict("w1"),
        lambda: policy.generate("w1 w2"),
        lambda: (policy / "model").generate(["w1"]),
    ):
        with pytest.raises(UserError):
            wrong()


def test_what_a_notebook_shows(done):
    table = done.table()
    frame = table.pandas()
    assert [*frame["policy"]] == [row["policy"] for row in table]
    assert frame["win_rate"].between(0, 100).all()
    assert table._repr_html_().count("<tr>") == 1 + len(table)
    assert "<table>" in done._repr_html_()
    scale = done.scale("seq")
    assert repr(scale).startswith("FittedScale seq: ")
    assert "<th>q</th>" in scale._repr_html_()


def test_an_adapter_is_exported_with_a_card_of_its_own(folder, store, tmp_path):
    policies = {"lora": {"objective": "dpo", "training": {"adapter": {"rank": 2}}}}
    run = unmdpo.run(recipe(folder, scales={}, policies=policies, evaluation=None), store=store.root)
    out = export_policy(run, "lora", tmp_path / "out")
    assert (out / "adapter_model.safetensors").is_file()
    assert "trained with `dpo` by unmdpo" in (out / "README.md").read_text()
    assert "README.md" not in json.loads((out / "checksums.json").read_text())
    said = command("export", run.folder, "lora", tmp_path / "merged", "--merge")
    assert said.exit_code == 0, said.output
    places = (tmp_path / "merged", out, run.recipe.model.path)
    tokens = torch.arange(1, 9)[None]
    merged, adapted, initial = (AutoModelForCausalLM.from_pretrained(place)(tokens).logits for place in places)
    assert (merged - adapted).abs().max() < 1e-2 * (merged - initial).abs().max()
    assert not list((tmp_path / "merged").glob("adapter*"))
    card = (tmp_path / "merged" / "README.md").read_text()
    assert (ModelCard(card).data.library_name, "## SHA-256" in card) == ("transformers", False)
    for name, expected in json.loads((tmp_path / "merged" / "checksums.json").read_text()).items():
        assert sha256(tmp_path / "merged" / name) == expected


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("w1", "give a list of questions"),
        ([], "give a list of questions"),
        ([{"role": "user", "content": "w1"}], "'question' should be text or a list of messages"),
        ([[("user", "w1")]], r"what was asked, row 1: 'question\[0\]'"),
        ([5], "not 5"),
        (["w1", "\ud800"], "row 2: .*surrogate"),
        ([[{"role": "user", "content": None}]], "content"),
        (
            [[{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]],
            "the last turn must be the user",
        ),
    ],
)
def test_questions_from_python_are_held_to_what_data_is(done, asked, says):
    with pytest.raises(UserError, match=says):
        done.policy("dpo").generate(asked, 2)
    with pytest.raises(UserError, match=says):
        done.scale("seq").predict(asked)


@pytest.mark.parametrize("most", [0, -1, 1.5])
def test_an_answer_has_a_whole_number_of_tokens(done, most):
    with pytest.raises(UserError, match="max_new_tokens should be a whole number"):
        done.policy("dpo").generate(["w1"], most)
