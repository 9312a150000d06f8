"""Recipes end to end on a tiny model: nothing redone, nothing lost, everything verified."""

import io
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from tests.pipeline_world import recipe, world
from unmdpo.catalog import CATALOG
from unmdpo.cli import app
from unmdpo.errors import UserError
from unmdpo.pipeline.garbage import unreferenced
from unmdpo.pipeline.plan import needs, plan, useful_rate
from unmdpo.pipeline.run import execute, open_run
from unmdpo.pipeline.store import MANIFEST, Artifact, Store, file_names
from unmdpo.pipeline.tables import prompt_of
from unmdpo.pipeline.verify import verify
from unmdpo.pipeline.view import Lines, View
from unmdpo.recipes import load_recipe

pytestmark = pytest.mark.xdist_group("pipeline")  # one small world for all of them


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def done(folder):
    return execute(open_run(recipe(folder), Store(folder / "store")))


class Seen(View):
    def __init__(self):
        self.events = []

    def cached(self, stage):
        self.events.append((stage, "cached"))

    def finished(self, stage, seconds):
        self.events.append((stage, "finished"))

    def progress(self, stage, text):
        self.events.append((stage, text))


def events(run, **how):
    seen = Seen()
    execute(run, view=seen, **how)
    return seen.events


def judged_by(function):
    """A small evaluation with one of the world's judges."""
    judge = {"function": f"tests.pipeline_world:{function}"}
    return {"baseline": "dpo", "panels": {"one": {"size": 2, "seed": 1}}, "judge": judge, "max_new_tokens": 2}


def problems(run):
    return [finding for finding in verify(run) if finding.problem]


# --- Whole runs -----------------------------------------------------------------------------------


def test_everything_is_made_once_and_verified(done, folder):
    assert {stage.kind.name for stage in done.stages.values()} == {
        "comparisons", "validation", "panel", "encoded", "reference", "features", "pilot", "oof", "scale",
        "policy", "generation", "judgement", "summary",
    }  # fmt: skip
    again = events(open_run(recipe(folder), Store(folder / "store")))
    assert {what for _, what in again} == {"cached"}
    assert len(again) == len(done.stages)
    assert problems(done) == []
    assert not list((folder / "store" / "work").iterdir())


def test_every_objective_and_every_estimator(folder):
    estimators = ["constant", "pooled", "cross-fitted", "entropy", "joint", "ema", "sigmoid-joint"]
    scales = {name: {"estimator": name} for name in estimators}
    scales["pairs"] = {"estimator": "pooled", "unit": "pair", "fit": "ao", "length_normalized": True}
    policies = {
        name: {"objective": name, **({"scale": "pooled"} if spec.scale else {})}
        for name, spec in CATALOG.items()
    }
    policies |= {f"with-{name}": {"objective": "unm-wr", "scale": name} for name in scales}
    policies["lora"] = {"objective": "dpo", "training": {"adapter": {"rank": 2}, "learning_rate": 1e-2}}
    policies["epoch"] = {"objective": "dpo", "training": {"epochs": 1, "seed": 3}}
    wide = recipe(
        folder, name="wide", scales=scales, policies=policies, evaluation=None,
        training={"updates": 1, "batch": 8, "learning_rate": 1e-3, "warmup": 1},
    )  # fmt: skip
    run = execute(open_run(wide, Store(folder / "store")))
    assert problems(run) == []
    for name in policies:
        assert (run.policy(name) / "model.safetensors").is_file()
        assert (run.policy(name) / "README.md").is_file()
    beta = json.loads((run.artifact("policy[ulnm-wr]").path / MANIFEST).read_text())["notes"]["settings"][
        "beta"
    ]
    assert beta == run.artifact("oof").manifest["notes"]["beta_ln"]


def test_manifests_say_where_things_come_from(done):
    manifest = done.artifact("policy[unm-wr]").manifest
    assert manifest["inputs"]["scale"]["digest"] == done.artifact("scale[seq]").digest
    assert manifest["settings"]["training"]["learning_rate"] == 1e-3
    assert manifest["notes"]["tokens"] > 0
    assert manifest["notes"]["flops"] > 0
    assert {"torch", "transformers", "unmdpo", "python"} <= manifest["versions"].keys()
    assert manifest["device"]
    assert manifest["seconds"] > 0
    assert manifest["files"]["model/model.safetensors"]["bytes"] > 0


def test_pilots_never_see_what_they_score(done):
    rows = [
        load_file(done.artifact(f"pilot[{f}]").file("held-out.safetensors"))["rows"].tolist() for f in (0, 1)
    ]
    everyone = sorted(rows[0] + rows[1])
    assert everyone == list(range(done.artifact("comparisons").manifest["notes"]["comparisons"]))


# --- Verification ---------------------------------------------------------------------------------


def test_one_changed_byte_anywhere_is_found(done, folder):
    for name in done.stages:
        artifact = done.artifact(name)
        for file in file_names(artifact.path):
            path = artifact.path / file
            before = path.read_bytes()
            place = len(before) // 2
            path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
            fresh = open_run(recipe(folder), Store(folder / "store"))
            found = next((finding for finding in verify(fresh) if finding.problem), None)
            path.write_bytes(before)
            assert found is not None, path
            assert found.stage == name
    assert problems(done) == []


def test_wrong_numbers_in_the_summary_are_found(done, folder):
    store = Store(folder / "other")
    shutil.copytree(folder / "store", folder / "other", dirs_exist_ok=True)
    run = open_run(recipe(folder), store)
    artifact = run.artifact("summary")
    report = artifact.json("summary.json")
    report["one"]["against"]["initial"]["dpo"]["win_rate"]["low"] += 1
    (artifact.path / "summary.json").write_text(json.dumps(report))
    assert [finding.what for finding in problems(run)] == ["files", "dpo against initial on one"]
    report = done.artifact("summary").json("summary.json")
    domain = next(iter(report["two"]["by_domain"]["unm-wr"]))
    report["two"]["by_domain"]["unm-wr"][domain]["reward_difference"]["high"] += 0.001
    report["two"]["selected"] = "nobody"
    (artifact.path / "summary.json").write_text(json.dumps(report))
    found = [finding.what for finding in problems(open_run(recipe(folder), store))]
    assert found == ["files", f"unm-wr in {domain} on two", "selection on two"]


# --- What is redone, and what is not --------------------------------------------------------------


def keys(folder, **changes):
    run = open_run(recipe(folder, **changes), Store(folder / "store"))
    return {name: stage.key for name, stage in run.stages.items()}


def changed(folder, **changes):
    before, after = keys(folder), keys(folder, **changes)
    return {name.split("[")[0] for name in before if before[name] != after.get(name)}


def test_a_change_redoes_what_depends_on_it(folder):
    after_policies = {"policy", "generation", "judgement", "summary"}
    training = {"updates": 3, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
    assert changed(folder, training=training) == after_policies  # pilots have their own budget
    assert changed(folder, compute={"token_budget": 128}) == set()
    assert changed(folder, pilots={"folds": 2, "updates": 3}) == {"pilot", "oof", "scale", *after_policies}
    assert changed(folder, name="another", description="words") == set()
    without = keys(folder, evaluation=None)
    assert all(keys(folder)[name] == key for name, key in without.items())  # evaluating retrains nothing
    assert changed(folder, seed=1) == {"pilot", "oof", "scale", *after_policies}


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
    forced = events(run, until="oof", force=["reference"])
    assert [name for name, what in forced if what == "finished"] == [
        "reference",
        "pilot[0]",
        "pilot[1]",
        "oof",
    ]
    with pytest.raises(UserError, match=r"inputs of policy\[unm-wr\] are not finished"):
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
    settings = run.artifact("policy[wr]").json("scale/scale.json")["settings"]
    assert (settings["placement"], settings["tau"]) == ("wr", 0.25)


def test_a_try_that_ended_before_the_rename_leaves_no_trace(folder, tmp_path, monkeypatch):
    run = open_run(recipe(folder), Store(tmp_path / "store"))
    rename = Path.rename
    monkeypatch.setattr(
        Path, "rename", lambda self, target: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(UserError, match="No space left"):
        execute(run, until="comparisons")
    monkeypatch.setattr(Path, "rename", rename)
    execute(run, until="comparisons")
    assert run.artifact("comparisons").damage() == []


# --- Plans and leftovers --------------------------------------------------------------------------


def test_a_plan_knows_what_is_there_and_what_the_rest_costs(done, folder, tmp_path):
    later = recipe(folder, training={"updates": 4, "batch": 8, "learning_rate": 1e-3, "warmup": 1})
    planned = plan(open_run(later, Store(folder / "store")))
    costs = {cost.stage: cost for cost in planned.costs}
    assert costs["pilot[0]"].cached
    assert not costs["policy[dpo]"].cached
    assert planned.assumed == []  # the data has been encoded
    notes = done.artifact("policy[dpo]").manifest["notes"]  # two updates there, four here
    assert costs["policy[dpo]"].flops == pytest.approx(2 * notes["flops"], rel=0.2)
    assert costs["policy[dpo]"].tokens == pytest.approx(2 * notes["tokens"], rel=0.2)
    assert 0 < planned.pilot_share < 1
    assert planned.seconds(1e9) > 0
    nowhere = plan(open_run(recipe(folder), Store(tmp_path / "none")))
    assert nowhere.assumed == ["10,000 comparisons", "lengths of HelpSteer3's shape"]
    assert not (tmp_path / "none").exists()


def test_packaged_recipes_can_be_planned_offline(tmp_path):
    run = open_run(load_recipe("hs3-1b"), Store(tmp_path / "none"))
    planned = plan(run, "h200")
    hours = planned.seconds(useful_rate("h200")) / 3600
    assert 2 < hours < 4
    assert useful_rate("a100") < useful_rate("h200")
    costs = {cost.stage: cost for cost in planned.costs}
    assert 40 < costs["policy[dpo]"].memory / 2**30 < 46  # 43.5 were measured
    assert costs["policy[beta-dpo]"].flops == pytest.approx(4 / 3 * costs["policy[dpo]"].flops)
    with pytest.raises(UserError, match="unknown device 'tpu'"):
        useful_rate("tpu")


def test_needs_are_told_for_each_kind_of_gpu(tmp_path):
    """Llama 8B with its optimizer does not fit one GPU; the paper used four A100."""
    found = {need.device: need for need in needs(open_run(load_recipe("hs3-8b-centering"), Store(tmp_path)))}
    assert found["a100"].gpus == 4
    assert found["h200"].gpus == 2
    assert found["a100"].hours > 3 * found["h200"].hours > 3
    assert found["a100"].memory < 80e9
    small = needs(open_run(load_recipe("hs2-1b-margins"), Store(tmp_path)))
    assert [need.gpus for need in small] == [1, 1]


def test_what_no_run_refers_to_is_found(folder, tmp_path):
    store = Store(tmp_path / "store")
    run = execute(open_run(recipe(folder), store), until="encoded")
    assert unreferenced(store) == {}
    shutil.rmtree(run.folder)
    (store.root / "artifacts" / "comparisons" / ".DS_Store").write_bytes(b"left by a file browser")
    found = unreferenced(store)
    assert found.keys() == {run.stages[name].place for name in ("comparisons", "encoded")}
    assert all(size > 0 for size in found.values())
    shell = CliRunner()
    assert "2 artifacts" in shell.invoke(app, ["gc", "--store", str(store.root)]).output
    assert "removed" in shell.invoke(app, ["gc", "--store", str(store.root), "--delete"]).output
    assert unreferenced(store) == {}


def test_what_is_damaged_and_set_aside_is_found(folder, tmp_path):
    store, shell = Store(tmp_path / "store"), CliRunner()
    run = execute(open_run(recipe(folder), store), until="comparisons")
    damaged = run.store.root / "artifacts" / run.stages["comparisons"].place / "train.parquet"
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    with pytest.raises(UserError, match="quarantine"):
        Artifact(damaged.parent).file(damaged.name)
    named = shell.invoke(app, ["gc", "--store", str(store.root)]).output
    assert "quarantine/comparisons-" in named
    assert "1 artifacts" in named
    shell.invoke(app, ["gc", "--store", str(store.root), "--delete"])
    assert [*(store.root / "quarantine").iterdir()] == []


# --- Interruptions --------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    "target", ["unmdpo.engine.train.Trainer.step", "unmdpo.engine.generate.Generator._batch"]
)
def test_a_stopped_run_goes_on_and_gives_the_same_bytes(done, folder, tmp_path, monkeypatch, target):
    module, _, method = target.rpartition(".")
    from importlib import import_module

    owner = getattr(import_module(module.rpartition(".")[0]), module.rpartition(".")[2])
    original, calls = getattr(owner, method), []

    def stopping(self, *arguments):
        calls.append(1)
        if len(calls) % 3 == 0:
            raise Stop
        return original(self, *arguments)

    store = Store(tmp_path / "store")
    small = recipe(folder, compute={"checkpoint_minutes": 1e-9})  # a checkpoint after every update
    monkeypatch.setattr(owner, method, stopping)
    for _ in range(40):
        try:
            run = execute(open_run(small, store))
            break
        except Stop:
            continue
    assert len(calls) > 3
    for name in done.stages:
        ours, theirs = run.artifact(name).manifest["files"], done.artifact(name).manifest["files"]
        skipped = {"throughput.jsonl"}  # times differ
        assert {k: v for k, v in ours.items() if k not in skipped} == {
            k: v for k, v in theirs.items() if k not in skipped
        }, name


# --- Side by side ---------------------------------------------------------------------------------


def test_two_jobs_give_what_one_gives(done, folder, tmp_path):
    run = open_run(recipe(folder), Store(tmp_path / "store"))
    seen = events(run, jobs=2)
    assert ("policy[dpo]", "finished") in seen
    assert any(name == "policy[dpo]" and "loss" in text for name, text in seen)
    for name in done.stages:
        ours, theirs = run.artifact(name).manifest["files"], done.artifact(name).manifest["files"]
        assert ours.keys() == theirs.keys()
    assert problems(run) == []


def test_a_failed_stage_names_itself_and_leaves_the_others(folder, tmp_path):
    evaluation = judged_by("broken_judge")
    run = open_run(recipe(folder, evaluation=evaluation), Store(tmp_path / "store"))
    stream = io.StringIO()
    with pytest.raises(
        UserError,
        match=r"judgement\[dpo,one\]: the judge failed: RuntimeError: out of order "
        r"\(.*pipeline_world.py:\d+\)[\s\S]*not started, because",
    ):
        execute(run, jobs=2, view=Lines(stream))
    assert "policy[ulnm-wr]" in run.finished
    assert "generation[dpo,one]" in run.finished
    assert "summary" not in run.finished
    assert "judgement[dpo,one]: failed" in stream.getvalue()


def test_a_killed_process_is_told(folder, tmp_path):
    evaluation = judged_by("deadly_judge")
    small = recipe(folder, evaluation=evaluation, policies={"dpo": {"objective": "dpo"}}, scales={})
    run = open_run(small, Store(tmp_path / "store"))
    with pytest.raises(UserError, match=r"judgement\[dpo,one\]: its process was killed by signal 9"):
        execute(run, jobs=2)
    assert "generation[dpo,one]" in run.finished


def test_two_ranks_share_a_model(done, folder, tmp_path):
    """`compute.ranks: 2`: reference, pilots and policies are sharded over two processes each."""
    policies = {"dpo": {"objective": "dpo"}, "joint": {"objective": "unm-ao", "scale": "joint"}}
    scales = {"joint": {"estimator": "joint"}}
    both = [
        execute(
            open_run(
                recipe(folder, compute={"ranks": ranks}, policies=policies, scales=scales, evaluation=None),
                Store(tmp_path / f"{ranks}"),
            )
        )
        for ranks in (1, 2)
    ]
    assert both[1].artifact("policy[joint]").manifest["ranks"] == 2
    for name in policies:
        one, two = (load_file(run.policy(name) / "model.safetensors") for run in both)
        assert all(torch.allclose(one[key], two[key], atol=1e-4) for key in one)
    lora = {"dpo": {"objective": "dpo", "training": {"adapter": {"rank": 2}}}}
    refused = recipe(folder, compute={"ranks": 2}, policies=lora, scales={}, evaluation=None)
    with pytest.raises(UserError, match="an adapter is trained on one GPU"):
        execute(open_run(refused, Store(tmp_path / "2")))


# --- Commands -------------------------------------------------------------------------------------


def test_from_python(done, folder, tmp_path):
    import unmdpo

    file = tmp_path / "recipe.yaml"
    file.write_text(recipe(folder).to_yaml())
    run = unmdpo.run(file, store=folder / "store")
    rows = run.table()
    assert len(rows) == 2 * (2 + 3)  # two panels: two policies against dpo, three against the initial model
    assert {"policy", "win_rate", "win_rate_low", "reward_difference", "length_ratio_high"} <= rows[0].keys()
    made = run.generations("dpo", "one")
    assert len(made) == 3
    assert made[0]["score"] == float(len(made[0]["text"].split()))
    direct, back = run.compare("unm-wr", "ulnm-wr", "one"), run.compare("ulnm-wr", "unm-wr", "one")
    assert direct.win_rate.value == 100 - back.win_rate.value
    reported = run.summary["one"]["against"]["dpo"]["unm-wr"]["win_rate"]["value"]
    assert run.compare("unm-wr", "dpo", "one").win_rate.value == reported
    known = run.scale("ln").known()
    assert known["q"].to_pylist() == sorted(known["q"].to_pylist())
    texts = known["prompt"].to_pylist()[:5]
    domains = dict(zip(known["prompt_hash"].to_pylist(), known["domain"].to_pylist(), strict=True))
    again = run.scale("ln").predict([prompt_of(text) for text in texts], domains)
    assert again.tolist() == pytest.approx(known["q"].to_pylist()[:5], abs=1e-5)
    assert AutoModelForCausalLM.from_pretrained(run.policy("ulnm-wr")).config.hidden_size == 32
    with pytest.raises(UserError, match=r"no stage 'scale.sqe.'; did you mean 'scale.seq.'"):
        run.scale("sqe")


def test_the_documented_recipe_and_python_run_as_printed(folder, tmp_path, monkeypatch, capsys):
    """`docs/pipeline.md` with a small model, judge and file in the places of the ones it names."""
    text = (Path(__file__).parents[1] / "docs" / "pipeline.md").read_text("utf-8")
    (yaml,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.S)
    (python,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    yaml = yaml.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(folder / "model"))
    yaml = yaml.replace("path: my/reward-model", "function: tests.pipeline_world:longest")
    yaml = yaml.replace("size: 200", "size: 2").replace("seed: 1}}", "seed: 1}}, max_new_tokens: 4")
    yaml = yaml.replace("policies:", "training: {batch: 4}\npilots: {updates: 1}\npolicies:")
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(yaml)
    rows = [
        {"prompt": f"w{i} w{i + 1}", "chosen": f"w{i} w3 w4", "rejected": "w9", "strength": 1 + i % 3}
        for i in range(40)
    ]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    exec(python, {})
    assert "ulnm-wr" in capsys.readouterr().out


def test_the_commands(done, folder, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe(folder).to_yaml())
    shell = CliRunner()
    ran = shell.invoke(app, ["run", str(file), "--store", str(folder / "store")])
    assert ran.exit_code == 0, ran.output
    assert "one: 3 prompts, against dpo" in ran.output
    assert "ulnm-wr" in ran.output
    checked = shell.invoke(app, ["verify", str(file), "--store", str(folder / "store")])
    assert checked.exit_code == 0
    assert "all hold" in checked.output
    planned = shell.invoke(app, ["plan", str(file), "--store", str(folder / "store")])
    assert planned.exit_code == 0, planned.output
    assert "policy[dpo]" in planned.output
    assert "pilots take" in planned.output
    direct = shell.invoke(app, ["compare", str(file), "unm-wr", "initial", "--store", str(folder / "store")])
    assert "two: 2 prompts, against initial" in direct.output
    out = tmp_path / "q.parquet"
    for extra in ([], ["--data", str(folder / "data.jsonl")]):
        wrote = shell.invoke(
            app, ["scale", str(file), "seq", "--out", str(out), "--store", str(folder / "store"), *extra]
        )
        assert wrote.exit_code == 0, wrote.output
        assert pq.read_table(out).num_rows > 10
    broken = shell.invoke(app, ["verify", str(file), "--store", str(tmp_path / "empty")])
    assert broken.exit_code == 2
    assert "nothing of this recipe is in" in broken.output
    nowhere = shell.invoke(
        app,
        ["scale", str(file), "seq", "--out", str(tmp_path / "no" / "q"), "--store", str(folder / "store")],
    )
    assert nowhere.exit_code == 2
    assert "cannot be written" in nowhere.output
    unknown = shell.invoke(
        app, ["plan", str(file), "evaluation.judge.function=no_such:judge", "--store", str(tmp_path)]
    )
    assert unknown.exit_code == 2
    assert "importable from the current folder" in unknown.output
    assert shell.invoke(app, ["gc", "--store", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("model.path", {"model": {"path": "./no/such/model"}}),
        ("data.path", {"data": {"source": "helpsteer3", "path": "nowhere.jsonl"}}),
        ("pilots.model.path", {"pilots": {"model": {"path": "/no/such/proxy"}}}),
    ],
)
def test_places_that_are_not_there_are_told_before_any_work(folder, tmp_path, key, changes):
    run = open_run(recipe(folder, **changes), Store(tmp_path / "store"))
    with pytest.raises(UserError, match=f"{key}: there is no file or folder"):
        execute(run)
    assert not (tmp_path / "store").exists()


def test_a_stage_that_began_nothing_leaves_nothing(folder, tmp_path):
    run = open_run(recipe(folder, evaluation=judged_by("broken_judge")), Store(tmp_path / "store"))
    with pytest.raises(UserError, match="out of order"):
        execute(run)
    assert [*(tmp_path / "store" / "work").iterdir()] == []
