"""Every causal language model that Transformers registers: scored as it would score itself, or refused."""

import warnings

import numpy as np
import pytest
import torch

from tests.worlds.families import NAMES, VARIANTS, WINDOW, build, some_now
from tests.worlds.models import one_by_one, pair
from unmdpo.core.errors import UserError
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs

PAIRS = [pair(5, 7, 4, 1), pair(1, 1, 9, 2), pair(12, 3, 20, 3), pair(3, 8, 8, 4), pair(14, 30, 20, 5)]
ENCODED = EncodedPairs.of(PAIRS)
assert max(len(p.prompt) + len(p.chosen) for p in PAIRS) > 2 * WINDOW

# People ask for these: they must take the fast path.
PACKED = [
    "llama", "llama4", "llama4_text", "mllama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "ministral",
    "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "phi3", "phimoe", "granite", "granitemoe",
    "cohere", "cohere2", "olmo2", "olmo3", "smollm3", "deepseek_v2", "deepseek_v3", "gpt_oss", "glm4", "glm4_moe",
    "starcoder2", "minicpm3", "nemotron", "falcon", "gpt2", "opt", *VARIANTS,
]  # fmt: skip
DYNAMIC = "llama, dynamic rope"  # remembers the longest sequence, so it is tested by itself


def proven(scorer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prove(scorer, ENCODED)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the models' own code
@pytest.mark.parametrize("name", some_now(name for name in NAMES if name != DYNAMIC))
def test_log_probabilities_and_gradients_are_the_models_own(name):
    model = build(name)
    scorer = PairScorer(model)
    proof = proven(scorer)
    assert name not in PACKED or proof.layout == "packed", proof
    weights = torch.linspace(-1, 1, 10).view(5, 2)
    expected = one_by_one(model, PAIRS)
    (weights * expected).sum().backward()
    plain = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    size = torch.stack([gradient.norm() for gradient in plain.values()]).norm()
    for layout in {proof.layout, "padded" if proof.layout == "packed" else "single"}:
        model.zero_grad()
        scorer.use(layout)
        for members in scorer.packing.groups(ENCODED.lengths, 256).all:
            found = scorer(scorer.prepare([PAIRS[i] for i in members], 256))
            assert torch.allclose(found, expected[members], atol=2e-3), (layout, proof)
            (weights[members] * found).sum().backward()
        gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        assert gradients.keys() >= plain.keys()
        for key in plain:
            assert (gradients[key] - plain[key]).norm() <= 2e-4 * size, (layout, key)


@pytest.mark.parametrize("name", some_now(name for name in PACKED if name not in ("gemma2",)))
def test_the_fast_path_works_with_fused_attention_too(name):
    model = build(name)
    if not model._supports_sdpa:
        pytest.skip("without fused attention")
    model = build(name, "sdpa")
    assert proven(PairScorer(model)).layout == "packed"


def test_one_sequence_at_a_time_when_nothing_else_agrees():
    model = build("llama")
    scorer, own = PairScorer(model), model.forward

    def doubled(*args, **kwargs):
        made = own(*args, **kwargs)
        made.logits = made.logits + made.logits.cumsum(dim=1) / 50  # no head does this
        return made

    model.forward = doubled
    with pytest.warns(Warning, match=r"LlamaForCausalLM is not packed .* each sequence goes through the model alone"):
        proof = prove(scorer, ENCODED)
    assert proof.layout == "single"
    assert set(proof.passed_over) == {"packed", "padded", "masked"}
    model.forward = own
    assert torch.allclose(scorer(scorer.prepare(PAIRS, 64)), one_by_one(model, PAIRS), atol=1e-4)


def test_a_model_that_changes_its_mind_is_refused():
    model = build("llama")
    model.register_forward_hook(lambda _, __, made: setattr(made, "logits", made.logits + torch.randn(64)))
    with pytest.raises(UserError, match="does not give the same log-probabilities twice"):
        proven(PairScorer(model))


def test_a_model_that_gives_nan_is_refused():
    model = build("llama")
    model.model.norm.weight.data[3] = torch.nan
    with pytest.raises(UserError, match="are not finite, for example of comparisons"):
        proven(PairScorer(model))


def test_sequences_beyond_the_ropes_length_go_alone():
    scorer = PairScorer(build("phi3, longrope"))
    proven(scorer)
    groups = scorer.packing.groups(ENCODED.lengths, 256)
    assert groups.together == [[0, 1, 3]]
    assert groups.single == [[2], [4]]


def test_dynamic_rope_does_not_remember():
    """The plain way has a fresh model for each sequence; ours the same one for all, longest first."""
    scorer = PairScorer(build(DYNAMIC))
    assert proven(scorer).layout == "packed"
    for members in reversed(scorer.packing.groups(ENCODED.lengths, 256).all):
        found = scorer(scorer.prepare([PAIRS[i] for i in members], 256))
        for place, own in zip(members, found, strict=True):
            one = PAIRS[place]
            for response, log_prob in zip((one.chosen, one.rejected), own, strict=True):
                apart = EncodedPair(one.prompt, response, response[:1], valid=True)
                assert torch.allclose(log_prob, one_by_one(build(DYNAMIC), [apart])[0, 0], atol=1e-3)


def test_dropout_that_is_read_from_the_configuration():
    model = build("falcon", hidden_dropout=0.5, attention_dropout=0.5)
    scorer = PairScorer(model)
    assert proven(scorer).layout != "single"
    model.train()
    first, second = (scorer(scorer.prepare(PAIRS, 256)) for _ in range(2))
    assert torch.equal(first, second)


def test_a_head_with_a_bias():
    model = build("llama")
    model.lm_head = torch.nn.Linear(32, 64, bias=True)
    scorer = PairScorer(model)
    assert proven(scorer).layout == "packed"
    (scorer(scorer.prepare(PAIRS, 256)).sum()).backward()
    found = model.lm_head.bias.grad.clone()
    model.zero_grad()
    one_by_one(model, PAIRS).sum().backward()
    assert torch.allclose(found, model.lm_head.bias.grad, atol=1e-3)


def test_a_tokenizer_larger_than_the_head_is_refused():
    strange = EncodedPairs.of([EncodedPair(*(np.array([3, 70], dtype=np.int32) for _ in range(3)), valid=True)])
    with pytest.raises(UserError, match=r"gives token 70, but the model knows only 64: use the tokenizer that came"):
        prove(PairScorer(build("llama")), strange)


def test_a_head_larger_than_the_tokenizer_and_tied_weights_after_adding_tokens():
    model = build("llama, tied")
    model.resize_token_embeddings(80)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    scorer = PairScorer(model)
    assert proven(scorer).layout == "packed"
    assert torch.allclose(scorer(scorer.prepare(PAIRS, 256)), one_by_one(model, PAIRS), atol=1e-3)


def test_longer_than_a_table_of_positions_is_refused():
    long = EncodedPairs.of([pair(40, 30, 5)])
    with pytest.raises(UserError, match=r"a pair has 70 tokens, but the model takes 64: lower max_length"):
        prove(PairScorer(build("gpt2")), long)
