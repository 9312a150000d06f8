"""What is recomputed after a change, and what is not."""

import os
import shutil
from pathlib import Path

import pytest

from tests.worlds.pipeline import events, recipe
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.execute.progress import View
from unmdpo.results.run import open_run
from unmdpo.stages.shared import base
from unmdpo.stages.shared.files import POLICY_SCALE
from unmdpo.store import code
from unmdpo.store.store import Store


def keys(folder, **changes):
    run = open_run(recipe(folder, **changes), Store(folder / "store"))
    return {name: stage.key for name, stage in run.stages.items()}


def changed(folder, **changes):
    before, after = keys(folder), keys(folder, **changes)
    return {name.split("[")[0] for name in before if before[name] != after.get(name)}


def test_a_change_redoes_what_depends_on_it(folder):
    after_policies = {"policy", "generation", "judgement", "summary"}
    training = {"updates": 3, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
    assert changed(folder, training=training) == after_policies  # pilots have a separate budget
    assert changed(folder, compute={"token_budget": 128}) == set()
    assert changed(folder, pilots={"folds": 2, "updates": 3}) == {"pilot", "oof", "scale", "check", *after_policies}
    assert changed(folder, name="another", description="words") == set()
    without = keys(folder, evaluation=None)
    assert all(keys(folder)[name] == key for name, key in without.items())  # evaluating retrains nothing
    assert changed(folder, seed=1) == {"pilot", "oof", "scale", "check", *after_policies}


def test_changed_code_is_another_key(folder, monkeypatch):
    """Of the stages that reach it, and of no others; a room that makes no results is not reached."""
    before, original, reached = keys(folder), code.code_digest, {}

    def digest(module):
        reached[module.stem] = {path.relative_to(code.ROOT).as_posix() for path in code.reached(module)}
        return "other" if "stats/evaluation.py" in reached[module.stem] else original(module)

    monkeypatch.setattr(base, "code_digest", digest)
    after = keys(folder)
    different = {name.split("[")[0] for name in before if before[name] != after[name]}
    assert different == {"judgement", "summary"}
    assert {"engine/training/trainer.py", "objectives/losses.py", "core/adamw.py"} <= reached["policy"]
    assert {"scale/pooled.py", "scale/maps.py", "scale/fitting.py"} <= reached["scale"]
    assert {"data/load.py", "data/sources/annotated.py"} <= reached["comparisons"]
    others = ("cli", "report", "recipe", "store", "execute")
    assert not any(module.startswith(others) for modules in reached.values() for module in modules)


def test_a_changed_file_is_another_input(folder, tmp_path):
    shutil.copytree(folder / "model", tmp_path / "model")
    shutil.copy(folder / "data.jsonl", tmp_path / "data.jsonl")
    before = keys(tmp_path)
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write((folder / "data.jsonl").read_text().splitlines()[0] + "\n")
    after = keys(tmp_path)
    assert all(before[name] != after[name] for name in before)


def test_until_only_and_force(folder):
    store = Store(folder / "parts")
    run = open_run(recipe(folder), store)
    made = [name for name, what in events(run, until="oof") if what == "finished"]
    assert made == ["comparisons", "encoded", "reference", "pilot[0]", "pilot[1]", "oof"]
    with pytest.raises(UserError, match=r"'policy\[unm-wr\]' needs 'scale\[seq\]', which is not finished"):
        execute(run, only="policy[unm-wr]")
    assert ("pilot[1]", "finished") in events(run, until="oof", force=["pilot[1]"])
    assert events(run, only="pilot[*]") == [("pilot[0]", "cached"), ("pilot[1]", "cached")]
    assert run.wanted(only="pilot[1],encoded") == ["encoded", "pilot[1]"]
    forced = events(run, until="oof", force=["reference"])  # it comes out the same, so nothing follows
    assert [name for name, what in forced if what == "finished"] == ["reference"]
    with pytest.raises(UserError, match=r"'policy\[unm-wr\]' needs 'scale\[seq\]', which is not finished"):
        execute(run, only="policy[unm-wr]", jobs=2)
    with pytest.raises(UserError, match="no stage 'polcy'; did you mean"):
        execute(run, until="polcy")


def test_a_scale_can_come_from_another_run(done, folder):
    borrowed = recipe(
        folder, name="borrower", scales={"seq": {"estimator": "pooled", "run": "small"}},
        policies={"dpo": {"objective": "dpo"}, "unm-ao": {"objective": "unm-ao", "scale": "seq"}},
        evaluation=None,
    )  # fmt: skip
    run = execute(open_run(borrowed, Store(folder / "store")))
    assert not any(name.startswith(("pilot", "scale")) for name in run.stages)
    digest = run.artifact("policy[unm-ao]").manifest["inputs"]["scale"]["digest"]
    assert digest == done.artifact("scale[seq]").digest
    other = recipe(folder, pilots={"folds": 2, "updates": 1}, evaluation=None)
    execute(open_run(other, Store(folder / "store")), until="scale[seq]")
    with pytest.raises(UserError, match=r"several runs 'small' have a scale 'seq'; name one: small-"):
        open_run(borrowed, Store(folder / "store"))
    scales = {"seq": {"estimator": "pooled", "run": "nobody"}, "ln": {"estimator": "constant"}}
    with pytest.raises(UserError, match="no finished run 'nobody'"):
        open_run(recipe(folder, scales=scales), Store(folder / "store"))


@pytest.mark.parametrize(
    ("policy", "more", "what"),
    [
        ({"objective": "unm-wr", "settings": {"tau": 2.0}}, {}, "τ = 1.0, and the policy has 2.0"),
        ({"objective": "unm-wr", "settings": {"levels": [1, 2, 4]}}, {}, r"m\(k\)"),
        ({"objective": "unm-wr", "settings": {"beta": 0.2}}, {}, "β"),
        ({"objective": "unm-wr"}, {"beta": 0.3}, "β"),
        ({"objective": "ulnm-wr"}, {}, "length normalization = False"),
    ],
)
def test_a_borrowed_scale_goes_with_policies_that_score_alike(done, folder, policy, more, what):
    borrowed = recipe(
        folder, name="borrower", scales={"seq": {"estimator": "pooled", "run": done.folder.name}},
        policies={"dpo": {"objective": "dpo"}, "mine": policy | {"scale": "seq"}}, evaluation=None, **more,
    )  # fmt: skip
    with pytest.raises(UserError, match=f"policies.mine: its scale 'seq' of the run .* was fitted with {what}"):
        open_run(borrowed, done.store)


def test_an_edited_template_or_judge_is_another_input(folder, tmp_path, monkeypatch):
    template = tmp_path / "chat.jinja"
    template.write_text((folder / "model" / "chat_template.jinja").read_text())
    model = {"path": str(folder / "model"), "template": str(template)}
    before = keys(folder, model=model)
    template.write_text(template.read_text() + " ")
    assert keys(folder, model=model)["encoded"] != before["encoded"]
    (tmp_path / "my_judge.py").write_text("def score(p, r): return [0.0] * len(r)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    evaluation = {
        "baseline": "dpo", "panels": {"one": {"size": 2, "seed": 1}}, "judge": {"function": "my_judge:score"},
    }  # fmt: skip
    before = keys(folder, evaluation=evaluation)
    (tmp_path / "my_judge.py").write_text("def score(p, r): return [1.0] * len(r)\n")
    after = keys(folder, evaluation=evaluation)
    assert after["judgement[dpo,one]"] != before["judgement[dpo,one]"]
    assert after["generation[dpo,one]"] == before["generation[dpo,one]"]


def test_scales_beside_a_policy_learn_its_margins(folder, tmp_path):
    policies = {"wr": {"objective": "unm-wr", "scale": "e", "settings": {"tau": 0.25}}}
    small = recipe(folder, policies=policies, scales={"e": {"estimator": "ema"}}, evaluation=None)
    run = execute(open_run(small, Store(folder / "store")))
    settings = POLICY_SCALE.load(run.artifact("policy[wr]")).settings
    assert (settings.placement, settings.tau) == ("wr", 0.25)


def test_a_try_that_ended_before_the_rename_leaves_no_trace(folder, tmp_path, monkeypatch):
    run = open_run(recipe(folder), Store(tmp_path / "store"))
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, target: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(UserError, match="No space left"):
        execute(run, until="comparisons")
    monkeypatch.setattr(Path, "rename", rename)
    execute(run, until="comparisons")
    assert run.artifact("comparisons").damage() == []


# --- Local files ----------------------------------------------------------------------------------


def moved(folder, place):
    """The same world somewhere else."""
    shutil.copytree(folder / "model", place / "model")
    shutil.copy(folder / "data.jsonl", place / "data.jsonl")
    return place


def test_the_same_files_elsewhere_are_the_same_input(folder, tmp_path):
    assert keys(moved(folder, tmp_path)) == keys(folder)
    (tmp_path / "data.jsonl").rename(tmp_path / "renamed.jsonl")
    (tmp_path / "model").rename(tmp_path / "the-model")
    places = {"model": {"path": str(tmp_path / "the-model")}}
    described = recipe(tmp_path, **places)
    data = described.data.model_copy(update={"path": str(tmp_path / "renamed.jsonl")})
    run = open_run(described.model_copy(update={"data": data}), Store(tmp_path / "store"))
    assert {name: stage.key for name, stage in run.stages.items()} == keys(folder)


def test_what_nobody_reads_changes_nothing(folder, tmp_path):
    moved(folder, tmp_path)
    for name in ("README.md", "NOTES.md", "events.out", ".gitattributes", "trainer_state.json"):
        (tmp_path / "model" / name).write_text("words")
    assert keys(tmp_path) == keys(folder)
    (tmp_path / "model" / "chat_template.jinja").write_text("another")
    assert keys(tmp_path) != keys(folder)


def test_a_template_counts_by_its_text(folder, tmp_path):
    for name in ("a.jinja", "b.jinja"):
        (tmp_path / name).write_text("{{ messages }}")
    model = {"path": str(folder / "model")}
    one, two = (keys(folder, model=model | {"template": str(tmp_path / name)}) for name in ("a.jinja", "b.jinja"))
    assert one == two != keys(folder)
    (tmp_path / "b.jinja").write_text("{{ messages }}!")
    assert keys(folder, model=model | {"template": str(tmp_path / "b.jinja")}) != one
    hub = [keys(folder, model={"path": name, "template": str(tmp_path / "a.jinja")}) for name in ("o/a", "o/b")]
    assert hub[0]["encoded"] != hub[1]["encoded"]


def test_a_store_among_the_data_is_no_data(folder, tmp_path):
    """Results of earlier runs would be read as more rows."""
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(folder / "data.jsonl", data / "data.jsonl")
    described = recipe(folder, data={"path": str(data), "validation": {"fraction": 0.2}})
    counts = set()
    for _ in range(3):
        run = execute(open_run(described, Store(data / "store")), until="comparisons")
        counts.add((run.artifact("comparisons").manifest["notes"]["read"], run.stages["comparisons"].key))
    assert len(counts) == 1
    assert counts.pop()[0] == len((folder / "data.jsonl").read_text().splitlines())


def test_a_file_that_changed_under_its_old_date(folder, tmp_path):
    """Its change time tells."""
    path = moved(folder, tmp_path) / "data.jsonl"
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(tmp_path), store), until="comparisons")
    before, text = path.stat(), path.read_text()
    path.write_text(text.replace("a", "b", 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert open_run(recipe(tmp_path), store).stages["comparisons"].key != run.stages["comparisons"].key


@pytest.mark.parametrize("text", ["[]", "{", '{"x": 1}', "null", "[" * 9999])
def test_damaged_memories_of_checksums_are_no_obstacle(folder, tmp_path, text):
    store = Store(tmp_path / "store")
    store.prepare()
    (store.root / "fingerprints.json").write_text(text)
    run = open_run(recipe(folder), store)
    assert {name: stage.key for name, stage in run.stages.items()} == keys(folder)


def test_results_of_other_files_are_kept_and_reported_of_once(folder, tmp_path):
    path, store = moved(folder, tmp_path) / "data.jsonl", Store(tmp_path / "store")

    class Told(View):
        def __init__(self):
            self.notes = []

        def noted(self, text):
            if not text.startswith("data: "):
                self.notes.append(text)

    views = [Told() for _ in range(4)]
    execute(open_run(recipe(tmp_path), store), until="comparisons", view=views[0])
    execute(open_run(recipe(tmp_path), store), until="comparisons", view=views[1])
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    execute(open_run(recipe(tmp_path), store), until="comparisons", view=views[2])
    execute(open_run(recipe(tmp_path), store), until="comparisons", view=views[3])
    assert [len(view.notes) for view in views] == [0, 0, 1, 0]
    assert "a run of this recipe with other files is kept as small-" in views[2].notes[0]
    assert len(list((store.root / "artifacts" / "comparisons").iterdir())) == 2 * 2  # and their validation rows
