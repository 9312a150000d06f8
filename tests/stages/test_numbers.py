"""Values that are not finite, and sizes at their limits: defined behavior, or an error that names the problem."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worlds.judges import longest
from tests.worlds.pipeline import recipe, world, write_data
from unmdpo.core.errors import UserError
from unmdpo.data.table import prompt_of
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.scale import Rows, Units, make_estimator
from unmdpo.stats.evaluation import Judged, Resamples, compare
from unmdpo.store.store import Store


def run(folder, **changes):
    return execute(open_run(recipe(folder, **changes), Store(folder / "store")))


def evaluation(folder, **changes):
    return recipe(folder).evaluation.model_dump() | changes


@pytest.fixture
def folder(tmp_path):
    return world(tmp_path)


def change_weights(folder, name, change):
    path = folder / "model" / "model.safetensors"
    weights = load_file(path)
    weights[name] = change(weights[name])
    save_file(weights, path, metadata={"format": "pt"})


def spoil(weight):
    weight[0] = torch.inf
    return weight


def test_weights_that_are_not_finite_are_named(folder):
    change_weights(folder, "model.layers.1.mlp.up_proj.weight", spoil)
    with pytest.raises(UserError, match=r"weights 'model\.layers\.1\.mlp\.up_proj\.weight' of .*not all finite"):
        run(folder)


def test_log_probabilities_that_are_not_finite_are_named(folder):
    """The weights are finite, but so large that the logits overflow."""
    change_weights(folder, "model.norm.weight", lambda weight: torch.full_like(weight, 3e38))
    with pytest.raises(UserError, match=r"LlamaForCausalLM gives are not finite, .* comparisons \[\d+, \d+"):
        run(folder, scales={}, policies={"dpo": {"objective": "dpo"}})
    with pytest.raises(UserError, match="the embedding of prompt 0 is not finite"):
        run(folder)


def test_scores_that_are_not_finite_are_named(folder):
    judge = {"function": "tests.worlds.judges:not_a_number"}
    with pytest.raises(UserError, match=r"scores of prompts \[1\] are not finite"):
        run(folder, evaluation=evaluation(folder, judge=judge))


def test_all_equal_scores_are_ties(folder):
    done = run(folder, evaluation=evaluation(folder, judge={"function": "tests.worlds.judges:all_equal"}))
    for row in done.table():
        assert (row["win_rate"], row["win_rate_low"], row["win_rate_high"]) == (50, 50, 50)
        assert row["reward_difference"] == 0


def test_every_pair_too_long_is_reported(folder):
    data = recipe(folder).data.model_copy(update={"max_length": 2}).model_dump()
    with pytest.raises(UserError, match=r"none of the .* comparisons .*2 tokens.*data\.max_length"):
        run(folder, data=data)


def test_batches_of_one_pair(folder):
    training = {"updates": 3, "batch": 1, "learning_rate": 1e-3, "warmup": 1}
    policies = {name: {"objective": name} for name in ("dpo", "beta-dpo", "gamma-po", "mixdpo", "simpo", "mmpo")}
    done = run(folder, training=training, policies=policies, scales={})
    assert len(done.table()) == 2 * (5 + 6)


def test_a_batch_larger_than_the_data_is_reported(folder):
    training = {"updates": 2, "batch": 4096, "learning_rate": 1e-3, "warmup": 1}
    with pytest.raises(UserError, match=r"batch.*4,?096"):
        run(folder, training=training)


def test_folds_of_one_prompt_and_too_many_folds(tmp_path):
    world(tmp_path)
    write_data(tmp_path / "data.jsonl", prompts=6)
    small = {"updates": 2, "batch": 1, "learning_rate": 1e-3, "warmup": 1}
    panels = {"one": {"size": 1, "seed": 1}}
    given = {"training": small, "evaluation": evaluation(tmp_path, panels=panels)}
    done = run(tmp_path, pilots={"folds": 2, "updates": 2}, **given)
    assert done.artifact("oof").manifest["notes"]["valid"] > 0
    with pytest.raises(UserError, match=r"pilots\.folds: 50 folds, and 4 prompts"):
        run(tmp_path, pilots={"folds": 50, "updates": 2}, **given)


def test_a_domain_that_only_validation_has(folder):
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    held_out = folder / "held-out.jsonl"
    held_out.write_text("".join(json.dumps(row | {"domain": "stem"}) + "\n" for row in rows[:12]))
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[12:]))
    data = recipe(folder).data.model_dump() | {"validation": {"path": str(held_out)}}
    done = run(folder, data=data)
    assert done.summary["one"]["judges"][""]["by_domain"]["unm-wr"].keys() == {"stem"}
    prompts = [row["prompt"] for row in done.generations("unm-wr", "one")]
    q = done.scale("seq").predict(prompts, {})
    assert q.isfinite().all()


@pytest.mark.parametrize("domains", [True, False])
def test_prompts_that_a_scale_knows_are_predicted_as_they_were_fitted(folder, domains):
    """Also where all count as one domain: that one has a term too."""
    scales = {"seq": {"estimator": "pooled", "domains": domains}}
    policies = {"dpo": {"objective": "dpo"}, "wr": {"objective": "unm-wr", "scale": "seq"}}
    opened = open_run(recipe(folder, scales=scales, policies=policies, evaluation=None), Store(folder / "store"))
    fitted = execute(opened, until="scale").scale("seq")
    known = fitted.known()
    named = dict(zip(known["prompt_hash"].to_pylist(), known["domain"].to_pylist(), strict=True)) if domains else {}
    found = fitted.predict([prompt_of(text) for text in known["prompt"].to_pylist()], named)
    assert found.tolist() == pytest.approx(known["q"].to_pylist(), abs=1e-6)


@pytest.mark.parametrize("name", ["pooled", "cross-fitted"])
def test_constant_embeddings_give_one_scale_for_all(name):
    count = 40
    folds = torch.arange(count) % 5
    units = Units(torch.full((count, 64), 3.25), torch.zeros(count, dtype=torch.long), folds)
    evidence = torch.randn(count, generator=torch.Generator().manual_seed(0))
    estimator = make_estimator(name, {})
    estimator.fit(units, Rows(torch.arange(count), evidence, torch.ones(count)))
    assert torch.allclose(estimator.q_, torch.ones(count), atol=1e-4)


def test_empty_answers_are_answers():
    """They have a score like any other; a mean length of zero counts as one character, so ratios are defined."""
    silent, talking = Judged(np.zeros(4), np.zeros(4)), Judged(np.ones(4), np.full(4, 8.0))
    resamples = Resamples.draw(4, seed=0)
    assert compare(silent, silent, resamples).length_ratio.value == 1
    assert compare(talking, silent, resamples).length_ratio.value == 8
    assert compare(silent, talking, resamples).win_rate.value == 0
    assert longest([()], [""]) == [0.0]
