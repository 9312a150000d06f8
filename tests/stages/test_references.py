"""References other than the initial model, strengths that are real numbers, and weights, in whole runs."""

import json
import math
import random

import pytest
import torch

import unmdpo
from tests.worlds.models import tiny, word_tokenizer
from tests.worlds.pipeline import problems, recipe, world
from unmdpo.core.errors import UserError
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.stages.shared.files import COMPARISONS, METRICS, PAIRS, REFERENCE, SCALES


def test_another_reference_or_none(tmp_path):
    """With none, log-probabilities take the place of log-ratios; with another model, its own are subtracted."""
    place = world(tmp_path)
    other = tiny("llama, tied", "sdpa", torch.float32)
    torch.nn.init.normal_(other.lm_head.weight, generator=torch.Generator().manual_seed(3))
    other.save_pretrained(tmp_path / "other")
    word_tokenizer().save_pretrained(tmp_path / "other")
    found = {}
    for name, given in {"itself": None, "none": "none", "other": {"path": str(tmp_path / "other")}}.items():
        described = recipe(place, policies={"dpo": {"objective": "dpo"}}, scales={}, evaluation=None)
        run = unmdpo.run(described.model_dump(mode="json") | {"reference": given}, store=tmp_path / "store")
        found[name] = REFERENCE.load(run.artifact("reference"))
        pairs = PAIRS.load(run.artifact("encoded"))
        first = json.loads((run.artifact("policy[dpo]").path / "metrics.jsonl").read_text().splitlines()[0])
        if name == "itself":
            assert first["loss"] == pytest.approx(math.log(2), rel=1e-5)
        else:
            assert abs(first["loss"] - math.log(2)) > 1e-3
    assert not found["none"].any()
    expected = score(PairScorer(other), pairs, 512)
    assert torch.allclose(found["other"], expected, atol=1e-4)


def test_a_reference_with_other_tokens_is_refused(tmp_path):
    place = world(tmp_path)
    tiny("llama, tied", "sdpa", torch.float32).save_pretrained(tmp_path / "other")
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(tmp_path / "other")
    described = recipe(place).model_dump(mode="json") | {"reference": {"path": str(tmp_path / "other")}}
    with pytest.raises(UserError, match="a reference needs the same"):
        unmdpo.run(described, store=tmp_path / "store")


def test_continuous_strengths_and_weights_reach_losses_and_scales(tmp_path):
    place, rng = world(tmp_path), random.Random(1)
    rows = [
        {
            "prompt": f"w{n % 20}", "chosen": f"w{rng.randrange(60)} w3", "rejected": f"w{rng.randrange(60)}",
            "margin": rng.random() * 4, "weight": 1 + n % 2,
        }
        for n in range(60)
    ]  # fmt: skip
    found = {}
    for name, changes in {"weighed": {}, "plain": {"weight": None}}.items():
        text = "".join(json.dumps({k: v for k, v in (row | changes).items() if v is not None}) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
        described = recipe(place, evaluation=None).model_dump(mode="json")
        data = {"source": "preference", "path": str(tmp_path / f"{name}.jsonl"), "strength": {"continuous": True}}
        described["data"] = data | {"validation": {"fraction": 0.25}}
        run = unmdpo.run(described, store=tmp_path / "store")
        kept = COMPARISONS.load(run.artifact("comparisons"))
        assert all(isinstance(row.strength, float) and not row.strength.is_integer() for row in kept)
        found[name] = SCALES.load(run.artifact("scale[seq]")).q, METRICS.load(run.artifact("policy[unm-wr]"))[-1]
        assert not problems(run)
    for one, other in zip(found["weighed"], found["plain"], strict=True):
        assert one != other
