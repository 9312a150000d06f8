"""Plans, and artifacts that no run uses."""

import shutil

import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe
from unmdpo.cli import app
from unmdpo.errors import UserError
from unmdpo.pipeline.executors import execute
from unmdpo.pipeline.garbage import unreferenced
from unmdpo.pipeline.plan import needs, plan, useful_rate
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.store import Artifact, Store
from unmdpo.recipe import load_recipe

pytestmark = pytest.mark.xdist_group("pipeline")  # they share one small world


def test_a_plan_knows_what_is_there_and_what_the_rest_costs(done, folder, tmp_path):
    later = recipe(folder, training={"updates": 4, "batch": 8, "learning_rate": 1e-3, "warmup": 1})
    planned = plan(open_run(later, Store(folder / "store")))
    cached = {stage.stage: stage.cached for stage in planned.stages}
    costs = {stage.stage: stage.cost for stage in planned.stages}
    assert cached["pilot[0]"]
    assert not cached["policy[dpo]"]
    assert planned.assumed == []  # the data has been encoded
    notes = done.artifact("policy[dpo]").manifest["notes"]  # two updates there, four here
    assert costs["policy[dpo]"].flops == pytest.approx(2 * notes["flops"], rel=0.2)
    assert costs["policy[dpo]"].tokens == pytest.approx(2 * notes["tokens"], rel=0.2)
    assert 0 < planned.pilot_share < 1
    assert planned.seconds(1e9) > 0
    nowhere = plan(open_run(recipe(folder), Store(tmp_path / "none")))
    assert nowhere.assumed == ["10,000 comparisons", "lengths as in HelpSteer3"]
    assert not (tmp_path / "none").exists()


def test_packaged_recipes_can_be_planned_offline(tmp_path):
    run = open_run(load_recipe("hs3-1b"), Store(tmp_path / "none"))
    planned = plan(run, "h200")
    hours = planned.seconds(useful_rate("h200")) / 3600
    assert 2 < hours < 4
    assert useful_rate("a100") < useful_rate("h200")
    costs = {stage.stage: stage.cost for stage in planned.stages}
    assert 40 < costs["policy[dpo]"].memory / 2**30 < 46  # 43.5 was measured
    assert costs["policy[beta-dpo]"].flops == pytest.approx(4 / 3 * costs["policy[dpo]"].flops)
    with pytest.raises(UserError, match="unknown device 'tpu'"):
        useful_rate("tpu")


def test_needs_are_told_for_each_kind_of_gpu(tmp_path):
    """Llama 8B with its optimizer does not fit on one GPU; the paper used four A100s."""
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
