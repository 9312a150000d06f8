"""A layout is used if it is right, however much the model rounds; and mistakes are found, however small."""

import numpy as np
import pytest
import torch
from benchmarks.layouts import MISTAKES, planted

from tests.worlds.families import build
from tests.worlds.models import one_by_one, pair
from unmdpo.core.errors import UserError
from unmdpo.engine.pairs.proof import FLOORS, prove
from unmdpo.engine.pairs.sample import Sample
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.text.encoded import EncodedPairs

PAIRS = EncodedPairs.of([pair(5 + n % 9, 7 + n % 20, 4 + n % 13, n) for n in range(24)])
pytestmark = pytest.mark.filterwarnings("ignore::unmdpo.core.errors.UnmdpoWarning")


def noisy(dtype):
    """With logits this large, it rounds far more than most models do."""
    model = build("llama").to(dtype)
    with torch.no_grad():
        model.lm_head.weight *= 60
    return model


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planted_mistakes_are_found(mistake, dtype):
    for model in (build("llama").to(dtype), noisy(dtype)):
        with planted(mistake):
            proof = prove(PairScorer(model), PAIRS)
        assert proof.layout not in ("flash", "packed"), proof


@pytest.mark.parametrize(("dtype", "floor"), [(torch.bfloat16, 0.1), (torch.float32, 1e-6)])
def test_a_model_that_rounds_much_is_packed_all_the_same(dtype, floor, monkeypatch):
    """Its own way is off by more than a bound that suits others."""
    monkeypatch.setitem(FLOORS, dtype, floor)
    scorer = PairScorer(noisy(dtype))
    proof, sample = prove(scorer, PAIRS), Sample(PAIRS, scorer.default_budget)
    assert proof.layout == "packed", proof
    assert proof.own_error > floor * float(sample.roots.max())
    assert proof.error < 8 * proof.own_error


def test_the_models_own_error_is_that_of_the_plain_way():
    model = build("llama").to(torch.bfloat16)
    scorer = PairScorer(model)
    proof, sample = prove(scorer, PAIRS), Sample(PAIRS, scorer.default_budget)
    plain = sample.plain(scorer)
    truth = one_by_one(model.float(), sample.compared).detach().double()
    assert proof.own_error == pytest.approx(float((plain - truth).abs().max()), abs=1e-4)


def test_what_goes_by_the_place_in_a_row_is_found():
    """Few pairs would not fill a row as far as the temperature changes; training's rows do."""
    model = build("llama")

    def hotter_later(module, args, kwargs):
        states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        far = (torch.arange(states.shape[1]) >= 300)[None, :, None]
        changed = torch.where(far, 1.01 * states, states)
        return ((changed, *args[1:]), {k: v for k, v in kwargs.items() if k != "hidden_states"})

    model.model.layers[1].register_forward_pre_hook(hotter_later, with_kwargs=True)
    assert prove(PairScorer(model), EncodedPairs.of(PAIRS.select(range(5)))).layout == "packed"
    assert prove(PairScorer(model), PAIRS).layout == "padded"
    assert prove(PairScorer(model), PAIRS, token_budget=256).layout == "packed"


def test_what_only_happens_in_training_is_found():
    model = build("llama")

    def in_training(module, args, made):
        return made + 0.1 * made.flip(dims=(1,)) if module.training else made

    model.model.norm.register_forward_hook(in_training)
    assert prove(PairScorer(model), PAIRS).layout == "single"


def test_rows_are_filled_as_in_training():
    sample = Sample(PAIRS, 300)
    assert len(sample) == 5
    assert 300 <= sample.lengths[1:-4].sum() < 300 + sample.lengths.sum(axis=1).max()
    assert len(Sample(PAIRS, 10**6).pairs) == 24
    assert np.array_equal(sample.compared[0].prompt, PAIRS.pair(sample.places[0]).prompt)


def test_a_model_that_changes_its_mind_a_little_is_refused():
    model = build("llama").to(torch.bfloat16)
    rng = torch.Generator().manual_seed(0)
    model.register_forward_hook(
        lambda _, __, made: setattr(made, "logits", made.logits + torch.randn(64, generator=rng).to(made.logits.dtype))
    )
    with pytest.raises(UserError, match="does not give the same log-probabilities twice"):
        prove(PairScorer(model), PAIRS)


def test_no_room_for_the_sharp_test_is_no_reason_to_refuse(monkeypatch):
    scores = Sample.scores

    def short_of_memory(self, scorer, budget, **more):
        if scorer.model.dtype != torch.bfloat16 and scorer.packing.layout == "packed":
            raise torch.OutOfMemoryError
        return scores(self, scorer, budget, **more)

    monkeypatch.setattr(Sample, "scores", short_of_memory)
    proof = prove(PairScorer(build("llama").to(torch.bfloat16)), PAIRS)
    assert proof.layout == "packed", proof
    assert proof.own_error is not None


def test_the_reason_is_what_the_sharp_test_found():
    with planted(MISTAKES[0]):
        proof = prove(PairScorer(build("llama").to(torch.bfloat16)), PAIRS)
    assert "from the model's own in float64" in proof.passed_over["packed"]
