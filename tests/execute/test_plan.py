"""Plans."""

import re
from statistics import median

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.engine.meta import meta_model
from unmdpo.engine.settings import ModelSource
from unmdpo.execute import execute
from unmdpo.execute.plan import gpus_needed, plan, sizes_of, useful_flops_of
from unmdpo.recipe import load_recipe
from unmdpo.results.run import open_run
from unmdpo.store.store import Store


def test_a_plan_knows_what_is_there_and_what_the_rest_costs(done, folder, tmp_path):
    later = recipe(folder, training={"updates": 4, "batch": 8, "learning_rate": 1e-3, "warmup": 1})
    planned = plan(open_run(later, Store(folder / "store")))
    cached = {stage.name: stage.is_finished for stage in planned.stages}
    costs = {stage.name: stage.cost for stage in planned.stages}
    assert cached["pilot[0]"]
    assert not cached["policy[dpo]"]
    assert planned.assumed == []  # the data has been encoded
    notes = done.artifact("policy[dpo]").manifest["notes"]  # two updates there, four here
    assert costs["policy[dpo]"].flops == pytest.approx(2 * notes["flops"], rel=0.2)
    assert costs["policy[dpo]"].tokens == pytest.approx(2 * notes["tokens"], rel=0.2)
    assert 0 < planned.pilot_share < 1
    assert planned.seconds(1e9) > 0


def test_data_on_this_machine_is_read_for_a_plan(done, folder, tmp_path):
    """Nothing is in the store yet, and nothing comes into it; the numbers are those of the finished run."""
    known = sizes_of(done)
    new = open_run(recipe(folder), Store(tmp_path / "none"))
    read = sizes_of(new)
    assert not (tmp_path / "none").exists()
    assert read.assumed == []
    assert read.prompts == known.prompts
    assert np.array_equal(np.sort(read.lengths, axis=0), np.sort(known.lengths, axis=0))
    half = execute(open_run(recipe(folder), Store(tmp_path / "half")), until="comparisons")
    assert np.array_equal(sizes_of(half).lengths, read.lengths)


def test_what_is_not_on_this_machine_is_assumed(folder, tmp_path):
    elsewhere = recipe(folder, model={"path": "someone/their-model"})
    sizes = sizes_of(open_run(elsewhere, Store(tmp_path / "none")))
    assert sizes.assumed == ["lengths as in HelpSteer3"]  # the data is here
    data = elsewhere.data.model_copy(update={"path": "someone/their-data"})
    sizes = sizes_of(open_run(elsewhere.model_copy(update={"data": data}), Store(tmp_path / "none")))
    assert sizes.assumed == ["10,000 comparisons", "lengths as in HelpSteer3"]


def test_packaged_recipes_can_be_planned_offline(tmp_path):
    run = open_run(load_recipe("hs3-1b"), Store(tmp_path / "none"))
    planned = plan(run, "h200")
    hours = planned.seconds(useful_flops_of("h200")) / 3600
    assert 2 < hours < 4
    assert useful_flops_of("a100") < useful_flops_of("h200")
    costs = {stage.name: stage.cost for stage in planned.stages}
    assert 40 < costs["policy[dpo]"].memory / 2**30 < 46  # 43.5 was measured
    assert costs["policy[beta-dpo]"].flops == pytest.approx(4 / 3 * costs["policy[dpo]"].flops)
    with pytest.raises(UserError, match="unknown device 'tpu'"):
        useful_flops_of("tpu")


def test_what_does_not_train_takes_what_it_took_before(done, folder):
    again = recipe(folder, seed=7)  # nothing of it is finished
    planned = {stage.name: stage for stage in plan(open_run(again, Store(folder / "store"))).stages}
    generation = planned["generation[dpo,one]"]
    assert (generation.is_finished, generation.cost) == (False, None)
    assert generation.earlier_seconds == pytest.approx(
        median(
            artifact.manifest["seconds"] for name, artifact in done.finished.items() if name.startswith("generation")
        ),
        rel=1.0,
    )


def test_how_many_gpus_must_share_a_model(tmp_path):
    """Llama 8B with its optimizer does not fit on one GPU; the paper used four A100s."""
    large, small = (open_run(load_recipe(name), Store(tmp_path)) for name in ("hs3-8b-centering", "hs2-1b-margins"))
    assert [gpus_needed(large, device) for device in ("a100", "h200")] == [4, 2]
    assert gpus_needed(small, "a100") == 1


@pytest.mark.soak  # builds the shapes of large models
def test_seventy_billion_parameters(tmp_path):
    """What is sharded, and never more on a card than it has: or it is said that it does not fit."""
    large = ["model.path=meta-llama/Llama-3.3-70B-Instruct"]
    everything = open_run(load_recipe("hs3-8b", large), Store(tmp_path), planning=True)
    adapted = open_run(load_recipe("hs3-8b", [*large, "training.adapter.rank=64"]), Store(tmp_path), planning=True)
    assert gpus_needed(everything, "h200") == 16
    assert gpus_needed(adapted, "h100") <= 8
    run = open_run(load_recipe("hs3-8b", [*large, "compute.ranks=8"]), Store(tmp_path), planning=True)
    costs = {stage.name: stage.cost for stage in plan(run, "h100").stages}
    assert costs["policy[dpo]"].ranks == 8
    assert costs["policy[dpo]"].memory > 80e9  # all of its weights do not fit on eight
    assert costs["policy[dpo]"].disk > 12 * 70e9
    told = CliRunner().invoke(
        app, ["plan", "hs3-8b", *large, "compute.ranks=8", "--device", "h100", "--store", str(tmp_path / "none")]
    )
    assert re.search(
        r"does not fit: pilot\[0\] needs \d{3} GiB on each of 8 devices; \d+ GPUs per model are enough. More ranks",
        told.output,
    )
    assert "will be proven when the run starts" in told.output


def test_a_small_model_on_this_machine_is_proven_when_planned(folder, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe(folder).to_yaml())
    told = CliRunner().invoke(app, ["plan", str(path), "--store", str(tmp_path / "none")])
    assert "the model is scored packed; largest error of a response:" in told.output


def test_a_model_that_cannot_become_a_judge_is_named(tmp_path):
    from transformers import GraniteConfig

    GraniteConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=64).save_pretrained(tmp_path)
    source = ModelSource(path=str(tmp_path))
    assert meta_model(source).config.model_type == "granite"
    with pytest.raises(UserError, match="cannot become a judge: Transformers has no sequence classifier of its kind"):
        meta_model(source, judge=True)


def test_a_sample_stands_for_all_comparisons(folder, tmp_path, monkeypatch):
    """Of many comparisons a few are tokenized, and their share counts."""
    whole = sizes_of(open_run(recipe(folder), Store(tmp_path / "none")))
    monkeypatch.setattr("unmdpo.execute.plan.SAMPLED_PAIRS", 8)
    sampled = sizes_of(open_run(recipe(folder), Store(tmp_path / "none")))
    assert len(whole.lengths) > 16
    assert len(sampled.lengths) == pytest.approx(len(whole.lengths), rel=0.3)
