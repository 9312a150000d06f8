"""Loss and accuracy on the validation data during training."""

import json

import pytest
import torch

from tests.worlds.pipeline import recipe, world
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.engine.models import load_model
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.training.loop import Patience
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.stages.shared.files import COMPARISONS, METRICS, PAIRS, REFERENCE
from unmdpo.store.store import Store

POLICIES = {
    "dpo": {"objective": "dpo"},
    "simpo": {"objective": "simpo"},
    "beta-dpo": {"objective": "beta-dpo"},
    "pooled": {"objective": "unm-wr", "scale": "pooled"},
    "of-pairs": {"objective": "unm-ao", "scale": "of-pairs"},
    "one": {"objective": "ulnm-wr", "scale": "one"},
    "joint": {"objective": "unm-ao", "scale": "joint"},
}
SCALES = {
    "pooled": {"estimator": "pooled"},
    "of-pairs": {"estimator": "pooled", "unit": "pair"},
    "one": {"estimator": "constant"},
    "joint": {"estimator": "joint"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("validated"))


def described(folder, policies=POLICIES, **training):
    values = recipe(folder).training.model_dump() | training
    used = {policy.get("scale") for policy in policies.values()}
    scales = {name: scale for name, scale in SCALES.items() if name in used}
    return recipe(folder, training=values, policies=policies, scales=scales, evaluation=None)


@pytest.fixture(scope="module")
def run(folder):
    return execute(open_run(described(folder, validate_updates=2), Store(folder / "store")))


def metrics(run, policy):
    return METRICS.load(run.artifact(f"policy[{policy}]"))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_objective_is_watched(run, policy):
    rows = metrics(run, policy)
    last = rows[-1]["update"]
    assert [row["update"] for row in rows if "eval_loss" in row] == [
        n for n in range(1, last + 1) if n in (2, 4, last)
    ]
    assert all(f"eval_{name}" in rows[-1] for name in rows[-1] if name.startswith(("rewards/", "logps/")))
    assert all(torch.isfinite(torch.tensor(row["eval_loss"])) for row in rows if "eval_loss" in row)


def test_the_last_loss_is_that_of_the_policy_on_validation_data(run):
    """DPO's loss by hand, from the exported policy."""
    pairs = PAIRS.load(run.artifact("encoded[validation]"))
    rows = COMPARISONS.load(run.artifact("comparisons[validation]")).without_ties()
    assert len(rows) == len(pairs) > 0
    assert not {row.prompt_hash for row in rows} & {row.prompt_hash for row in run.comparisons()}
    source = ModelSource(path=str(run.policy("dpo")))
    logps = score(PairScorer(load_model(source, device=torch.device("cpu"))), pairs)
    gap = (logps - REFERENCE.load(run.artifact("reference[validation]"))) @ torch.tensor([1.0, -1.0])
    valid = torch.from_numpy(pairs.valid)
    loss = -torch.nn.functional.logsigmoid(run.recipe.beta * gap[valid]).mean()
    assert metrics(run, "dpo")[-1]["eval_loss"] == pytest.approx(loss.item(), abs=1e-5)


def test_watching_changes_nothing_else(run, folder):
    alone = {name: POLICIES[name] for name in ("dpo", "joint")}
    other = execute(open_run(described(folder, alone), Store(folder / "other")))
    assert run.stages["pilot[0]"].key == open_run(described(folder), Store(folder / "other")).stages["pilot[0]"].key
    for name in alone:
        weights = [one.policy(name) / "model.safetensors" for one in (run, other)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        assert not any("eval_loss" in row for row in metrics(other, name))


def test_a_scale_of_another_run_predicts_nothing(run, folder):
    made = described(folder, {"wr": {"objective": "unm-wr", "scale": "pooled"}}, validate_updates=2).model_dump()
    made["scales"]["pooled"]["run"] = run.recipe.name
    with pytest.raises(UserError, match=r"leave out training\.validate_updates"):
        open_run(type(run.recipe).model_validate(made), run.store)


def scored(path, gaps):
    rows = [
        {"prompt": f"w{number % 60} w{number // 60}", "chosen": "w1 w2", "rejected": "w3", "margin": gap}
        for number, gap in enumerate(gaps)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_strengths_are_cut_where_those_of_the_training_data_were(folder, tmp_path):
    """Margins of one size in the validation data would all be the strongest, or the weakest, among themselves."""
    data = {
        "path": scored(tmp_path / "train.jsonl", [1.0, 2.0, 3.0] * 10),
        "validation": {"path": scored(tmp_path / "validation.jsonl", [2.0, 2.5, 9.0, 0.0, 0.5])},
        "max_length": 64,
    }
    made = described(folder, {"dpo": {"objective": "dpo"}}, validate_updates=2).model_dump() | {"data": data}
    run = open_run(type(described(folder)).model_validate(made), Store(tmp_path / "store"))
    execute(run, until="comparisons[validation]")
    rows = COMPARISONS.load(run.artifact("comparisons[validation]"))
    assert [row.strength for row in rows.without_ties()] == [2, 3, 3, 1]
    assert len(rows) == 5  # panels take any prompt
    notes = run.artifact("comparisons[validation]").manifest["notes"]
    assert (notes["comparisons"], notes["ties"]) == (4, 1)
    assert notes["quantiles"] == run.artifact("comparisons").manifest["notes"]["quantiles"]


@pytest.mark.parametrize(
    ("losses", "lost"),
    [([3.0, 2.0, 1.0], False), ([1.0, 2.0], False), ([1.0, 2.0, 1.0], True), ([3.0, 1.0, 2.0, 0.9], False)],
)
def test_patience_ends_after_two_losses_that_are_not_smaller(losses, lost):
    assert Patience(2, losses).worn_out is lost
    assert not Patience(None, losses).worn_out


def test_training_ends_when_validation_does_not_get_better(folder, tmp_path):
    """And again, from its checkpoint, at the same update."""
    made = described(
        folder, {"dpo": {"objective": "dpo"}}, updates=12, learning_rate=0.3, validate_updates=1, patience=2
    )
    run = open_run(made, Store(tmp_path))
    with pytest.warns(UnmdpoWarning, match=r"policy\[dpo\]: training ended after \d+ of 12 updates"):
        execute(run)
    losses = [row["eval_loss"] for row in metrics(run, "dpo")]
    assert 2 < len(losses) < 12
    assert min(losses[-2:]) >= min(losses[:-2])
    assert run.artifact("policy[dpo]").manifest["notes"]["updates"] == len(losses)


def test_patience_needs_something_to_watch(folder):
    with pytest.raises(ValueError, match="patience needs validate_updates"):
        described(folder, patience=2)
