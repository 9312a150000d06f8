"""On a GPU, families with different heads, windows and layers are proven, through FlashAttention where it can be."""

import pytest
import torch

from tests.worlds.families import build
from tests.worlds.models import pair
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.text.encoded import EncodedPairs

pytestmark = pytest.mark.filterwarnings("ignore")  # compilers warn about themselves
PAIRS = EncodedPairs.of([pair(50, 70, 40, 1), pair(1, 1, 90, 2), pair(120, 30, 200, 3), pair(30, 80, 80, 4)])
# FlexAttention's smallest heads, and room for the pairs
LARGER = {"hidden_size": 64, "head_dim": 16, "max_position_embeddings": 512, "n_positions": 512}
EXPECTED = {
    "llama": "flash",
    "llama4_text": "padded",  # FlexAttention's mask is counted for windows, not for chunks
    "llama4_text, wide chunks": "flash",
    "qwen3_moe": "flash",
    "mistral": "flash",
    "gemma2": "packed",  # FlashAttention 2 does not cap attention scores
    "gemma3_text": "flash",
    "phi3": "flash",
    "granite, scaled": "flash",
    "cohere2": "flash",
    "qwen3_next": "padded",
    "gpt2": "padded",  # learned positions
    "bert": "single",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_families(name):
    scorer = PairScorer(build(name, attention=None, **LARGER).to("cuda", torch.bfloat16))
    proof = prove(scorer, PAIRS)
    assert proof.layout == EXPECTED[name], proof
    slow = PairScorer(build(name, attention="eager", **LARGER).to("cuda", torch.float32))
    slow.use("single")
    slow.proven = True
    assert torch.allclose(score(scorer, PAIRS), score(slow, PAIRS), atol=4.0, rtol=0.01), proof
