"""Pilots that pass over the data once: what they met, when, and what becomes of it."""

import pytest
import torch

from tests.worlds.pipeline import problems, recipe
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.stages.shared.files import COMPARISONS, EVIDENCE, PASS_LOGPS, REFERENCE, Evidence
from unmdpo.stages.shared.units import PromptIndex
from unmdpo.store.store import Store

TWICE = {"evidence": "two-passes", "learning_rate": 0.01}


@pytest.fixture(scope="module")
def run(folder):
    policies = {"unm-wr": {"objective": "unm-wr", "scale": "seq"}}
    chosen = recipe(folder, pilots=TWICE, policies=policies, evaluation=None)
    return execute(open_run(chosen, Store(folder / "store-of-passes")))


def met(run, name):
    return PASS_LOGPS.load(run.artifact(f"pass[{name}]"))


def test_both_passes_meet_every_comparison_once_in_opposite_orders(run):
    forward, backward = met(run, "forward"), met(run, "backward")
    batches = int(forward.update.max()) + 1
    assert batches > 2
    for one in (forward, backward):
        assert torch.bincount(one.update)[:-1].tolist() == [8] * (batches - 1)
        assert one.logps.isfinite().all()
    reversed_rank = len(forward.update) - 1 - _rank(backward)
    assert (_rank(forward) // 8 - reversed_rank // 8).abs().max() <= 1


def _rank(one):
    return one.update.argsort(stable=True).argsort()


def test_comparisons_of_a_prompt_are_met_together(run):
    rows = COMPARISONS.load(run.artifact("comparisons"))
    prompts, update = PromptIndex.of(rows).of_row, met(run, "forward").update
    for prompt in range(int(prompts.max()) + 1):
        own = update[prompts == prompt]
        assert own.max() - own.min() <= 1


def test_the_first_batch_meets_the_reference_and_the_last_a_trained_policy(run):
    reference, one = REFERENCE.load(run.artifact("reference")), met(run, "forward")
    first, last = one.update == 0, one.update == one.update.max()
    assert torch.allclose(one.logps[first], reference[first], atol=1e-4)
    assert (one.logps[last] - reference[last]).abs().mean() > 0.01


def test_evidence_is_from_the_later_meeting(run):
    evidence, reference = EVIDENCE.load(run.artifact("oof")), REFERENCE.load(run.artifact("reference"))
    forward, backward = met(run, "forward"), met(run, "backward")
    latest = forward.update >= backward.update
    for one, chosen in ((forward, latest), (backward, ~latest)):
        ratio = (one.logps - reference)[:, 0] - (one.logps - reference)[:, 1]
        counted = chosen & evidence.valid
        assert counted.any()
        assert (evidence.evidence[counted].sign() == ratio[counted].sign()).all()
    assert problems(run) == []


def test_one_pass_is_the_first_of_two(run, folder):
    once = TWICE | {"evidence": "one-pass"}
    alone = open_run(recipe(folder, pilots=once, policies=run.recipe.policies, evaluation=None), run.store)
    assert alone.stages["pass[forward]"].key == run.stages["pass[forward]"].key
    assert "pass[backward]" not in alone.stages


def test_seeds_are_averaged_where_they_have_evidence():
    valid = [torch.tensor([True, True, False]), torch.tensor([True, False, False])]
    seeds = [
        Evidence(torch.tensor(values), torch.tensor(values), mask, torch.ones(3), torch.ones(()))
        for values, mask in zip(([1.0, 2.0, 9.0], [3.0, 9.0, 9.0]), valid, strict=True)
    ]
    mean = Evidence.mean(seeds)
    assert mean.evidence[:2].tolist() == mean.evidence_ln[:2].tolist() == [2.0, 2.0]
    assert mean.valid.tolist() == [True, True, False]


def test_too_few_comparisons_for_a_pass_are_reported(folder, tmp_path):
    few = {"updates": 2, "batch": 20, "learning_rate": 1e-3, "warmup": 1}
    chosen = recipe(
        folder,
        pilots=TWICE,
        training=few,
        policies={"unm-wr": {"objective": "unm-wr", "scale": "seq"}},
        evaluation=None,
    )
    with pytest.raises(UserError, match="are met before pilots have learned anything; set pilots"):
        execute(open_run(chosen, Store(tmp_path)), until="oof")


def test_dropout_would_blur_what_is_met(folder, tmp_path):
    blurred = TWICE | {"adapter": {"rank": 2, "dropout": 0.1}}
    with pytest.raises(UserError, match=r"set adapter\.dropout to 0"):
        open_run(recipe(folder, pilots=blurred, evaluation=None), Store(tmp_path))


def test_a_pass_is_one_epoch(folder):
    with pytest.raises(ValueError, match="leave out updates and epochs"):
        recipe(folder, pilots={"evidence": "one-pass", "updates": 20})
