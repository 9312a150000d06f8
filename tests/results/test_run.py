"""Recipes end to end on a tiny model: nothing redone, nothing lost, from Python and from the command line."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from tests.worlds.pipeline import events, judged_by, problems, recipe, write_model
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.objectives import OBJECTIVES
from unmdpo.results.run import open_run
from unmdpo.stages.shared.files import METRICS, prompt_of
from unmdpo.stages.shared.units import UNKNOWN
from unmdpo.stages.table import STAGES
from unmdpo.store.artifact import MANIFEST
from unmdpo.store.store import Store


def test_everything_is_made_once_and_verified(done, folder):
    not_asked_for = {"judge", "graded", "pairs", "tasks", "measured"}
    assert {stage.kind.name for stage in done.stages.values()} == STAGES.keys() - not_asked_for
    again = events(open_run(recipe(folder), Store(folder / "store")))
    assert {what for _, what in again} == {"cached"}
    assert len(again) == len(done.stages)
    assert problems(done) == []
    assert not list((folder / "store" / "work").iterdir())


@pytest.mark.filterwarnings("ignore")  # bitsandbytes speaks of its kernels
def test_adapters_beside_four_bits(folder, tmp_path):
    """Such a policy starts at a reference of four bits, and its merged weights load as usual."""
    pytest.importorskip("bitsandbytes")
    adapter = {"rank": 4, "four_bit": True}
    policies = {
        "four": {"objective": "dpo", "training": {"adapter": adapter, "learning_rate": 1e-2}},
        "merged": {"objective": "dpo", "training": {"adapter": adapter | {"merge": True}, "learning_rate": 1e-2}},
    }
    evaluation = judged_by("longest") | {"baseline": "four"}
    wide = {"path": str(write_model(tmp_path / "wide", "llama, wide"))}
    small = recipe(folder, policies=policies, scales={}, evaluation=evaluation, model=wide)
    run = execute(open_run(small, Store(tmp_path / "store")))
    assert "reference[4-bit]" in run.stages
    first = METRICS.load(run.artifact("policy[four]"))[0]
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5)
    merged = AutoModelForCausalLM.from_pretrained(run.policy("merged"))
    assert not hasattr(merged.config, "quantization_config")
    answers = [[row["text"] for row in run.generations(name, "one")] for name in policies]
    assert answers[0] == answers[1]


def test_every_objective_and_every_estimator(folder):
    estimators = ["constant", "pooled", "cross-fitted", "entropy", "joint", "ema", "sigmoid-joint"]
    scales = {name: {"estimator": name} for name in estimators}
    scales["pairs"] = {"estimator": "pooled", "unit": "pair", "fit": "ao", "length_normalized": True}
    policies = {
        name: {"objective": name, **({"scale": "pooled"} if spec.scale else {})} for name, spec in OBJECTIVES.items()
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
        weights = "adapter_model.safetensors" if name == "lora" else "model.safetensors"
        assert (run.policy(name) / weights).is_file()
        assert (run.policy(name) / "README.md").is_file()
    beta = json.loads((run.artifact("policy[ulnm-wr]").path / MANIFEST).read_text())["notes"]["settings"]["beta"]
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
    rows = [load_file(done.artifact(f"pilot[{f}]").file("held-out.safetensors"))["rows"].tolist() for f in (0, 1)]
    everyone = sorted(rows[0] + rows[1])
    assert everyone == list(range(done.artifact("comparisons").manifest["notes"]["comparisons"]))


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
    reported = run.summary["one"]["judges"][""]["against"]["dpo"]["unm-wr"]["win_rate"]["value"]
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
    """The recipe and the first lines of Python in docs/reference, with a small model, judge and data file in place of
    the ones they name."""
    pages = Path(__file__).parents[2] / "docs" / "reference"
    yaml, *_ = re.findall(r"```yaml\n(.*?)```", (pages / "recipes.md").read_text("utf-8"), flags=re.S)
    python, *_ = re.findall(r"```python\n(.*?)```", (pages / "python.md").read_text("utf-8"), flags=re.S)
    yaml = yaml.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(folder / "model"))
    yaml = yaml.replace("path: my/reward-model", "function: tests.worlds.judges:longest")
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
    assert "all passed" in checked.output
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
    assert "has no run of this recipe" in broken.output
    nowhere = shell.invoke(
        app, ["scale", str(file), "seq", "--out", str(tmp_path / "no" / "q.parquet"), "--store", str(folder / "store")]
    )
    assert nowhere.exit_code == 2
    assert "does not exist" in nowhere.output
    unknown = shell.invoke(
        app, ["plan", str(file), "evaluation.judge.function=no_such:judge", "--store", str(tmp_path)]
    )
    assert unknown.exit_code == 2
    assert "importable from the current folder" in unknown.output
    assert shell.invoke(app, ["rm", "--unused", "--store", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("model.path", {"model": {"path": "./no/such/model"}}),
        ("data.path", {"data": {"source": "helpsteer3", "path": "nowhere.jsonl"}}),
        ("pilots.model.path", {"pilots": {"model": {"path": "/no/such/proxy"}}}),
    ],
)
def test_places_that_are_not_there_are_reported_before_any_work(folder, tmp_path, key, changes):
    run = open_run(recipe(folder, **changes), Store(tmp_path / "store"))
    with pytest.raises(UserError, match=f"{key}: there is no file or folder"):
        execute(run)
    assert not (tmp_path / "store").exists()


def test_a_stage_that_began_nothing_leaves_nothing(folder, tmp_path):
    run = open_run(recipe(folder, evaluation=judged_by("broken_judge")), Store(tmp_path / "store"))
    with pytest.raises(UserError, match="out of order"):
        execute(run)
    assert [*(tmp_path / "store" / "work").iterdir()] == []


def test_several_ends_with_commas(done):
    names = done.wanted("scale[seq],generation[dpo,one]")
    assert {"scale[seq]", "generation[dpo,one]", "policy[dpo]", "oof"} <= {*names}
    assert "scale[ln]" not in names


def test_a_prompt_without_a_domain_has_no_domain_s_offset(done):
    """Of a scale that knows several domains."""
    scale = done.scale("seq")
    numbers = scale._domain_ids([*done.panel("one").prompts], {})
    assert numbers.tolist() == [UNKNOWN] * len(numbers)
    names = dict.fromkeys(done.panel("one").hashes, "code")
    assert (scale._domain_ids([*done.panel("one").prompts], names) >= 0).all()
