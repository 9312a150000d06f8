"""Our kernels and FlashAttention, against PyTorch in float32."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.worlds.models import TINY, pair
from unmdpo.engine.pairs import flash, logprobs
from unmdpo.engine.pairs.masks import CannotPack
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer, compile_layers
from unmdpo.engine.text.encoded import EncodedPairs

pytestmark = pytest.mark.filterwarnings("ignore")  # compilers warn about themselves


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "words"), [(1, 7), (300, 128_256), (33, 4096), (5, 4097)])
def test_sums_over_the_vocabulary(tokens, words, dtype, softcap):
    kernels = pytest.importorskip("unmdpo.engine.pairs.kernels")
    rng = torch.Generator("cuda").manual_seed(0)
    logits = (4 * torch.randn(tokens, words, device="cuda", generator=rng)).to(dtype)
    logits[0, 0] = 80.0  # far above the others
    target = torch.randint(0, words, (tokens,), device="cuda", generator=rng)
    gradient = torch.randn(tokens, device="cuda", generator=rng)
    logit, normalizer = logprobs._measure(logits, target, softcap)
    found = kernels.measure(logits, target, softcap)
    assert torch.allclose(found[0], logit, atol=1e-4)
    assert torch.allclose(found[1], normalizer, atol=1e-4)
    expected = logprobs._differentiate(logits, target, normalizer, gradient, softcap)
    made = kernels.differentiate(logits, target, normalizer, gradient, softcap)
    assert made.data_ptr() == logits.data_ptr()
    assert torch.allclose(made.float(), expected.float(), atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1e-2)


@pytest.mark.parametrize("size", [1, 4096, 100_003])
def test_sums_of_gradients(size):
    kernels = pytest.importorskip("unmdpo.engine.pairs.kernels")
    total, more = torch.randn(size, device="cuda"), torch.randn(size, device="cuda").bfloat16()
    expected = total + more
    kernels.accumulate(total, more)
    assert torch.equal(total, expected)


@pytest.mark.parametrize("kept", [True, False])
def test_log_probabilities_and_gradients(kept, monkeypatch):
    monkeypatch.setattr(logprobs, "KEPT_SHARE", 1.0 if kept else 0.0)
    monkeypatch.setattr(logprobs, "CHUNK", 100)
    rng = torch.Generator("cuda").manual_seed(0)
    hidden, weight = (torch.randn(n, 64, device="cuda", generator=rng) / 8 for n in (250, 1000))
    target = torch.randint(0, 1000, (250,), device="cuda", generator=rng)
    leaves = [values.requires_grad_() for values in (hidden, weight)]
    found = logprobs.token_log_probs(hidden, weight, target)
    expected = torch.log_softmax(hidden @ weight.T, dim=1).gather(1, target[:, None]).squeeze(1)
    assert torch.allclose(found, expected, atol=1e-4)
    by = [torch.autograd.grad((made * torch.arange(250, device="cuda")).sum(), leaves) for made in (found, expected)]
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-2) for a, b in zip(*by, strict=True))


def llama(**changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**(TINY | sizes | {"max_position_embeddings": 4096} | changes))
    return LlamaForCausalLM._from_config(config, dtype=torch.float32).to("cuda", torch.bfloat16)


SIZES = [(300, 200, 100), (5, 700, 30), (1, 1, 1), (200, 3, 400), (90, 130, 129)]


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("window", [None, 1, 2, 64, 500])
def test_flash_attention_sees_what_it_should(window, head_dim):
    pairs = [pair(*size, number) for number, size in enumerate(SIZES)]
    batch = PackedBatch.of(pairs, sum(map(sum, SIZES)), sequences=True).to(torch.device("cuda"))
    sequences, mask = batch.sequences._replace(window=window), batch.dense_mask(window)
    flash.check_kernel(llama(head_dim=head_dim), sequences, mask)
    wrong = batch.dense_mask(None if window == 500 else 1 if window is None else window + 1)
    with pytest.raises(CannotPack, match="off by"):
        flash.check_kernel(llama(head_dim=head_dim), sequences, wrong)


def test_flash_attention_is_chosen_and_scores_as_flex_attention_does():
    rng = np.random.default_rng(0)
    pairs = EncodedPairs.of([pair(*rng.integers(5, 300, 3).tolist(), number) for number in range(40)])
    found = []
    for layout in ("flash", "packed"):
        scorer = PairScorer(llama())
        if layout == "flash":
            assert prove(scorer, pairs).layout == "flash"
        scorer.use(layout)
        scorer.proven = True
        compile_layers(scorer)
        found.append(score(scorer, pairs, 4096))
    assert torch.allclose(*found, atol=0.5)
