"""A whole run inside a `torchrun` job, with every model shared by two ranks, equals one process."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.worlds.pipeline import problems, recipe
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.stages.shared.files import EMBEDDINGS
from unmdpo.store.store import Store

pytestmark = [pytest.mark.timeout(1800)]
POLICIES = {
    "dpo": {"objective": "dpo"},
    "lora": {"objective": "dpo", "training": {"adapter": {"rank": 4}, "learning_rate": 1e-2}},
    "merged": {"objective": "dpo", "training": {"adapter": {"rank": 4, "merge": True}, "learning_rate": 1e-2}},
    "unm": {"objective": "unm-wr", "scale": "seq"},
}
EVERYWHERE = {"ranks": 2, "ranks_of": {"features": 2, "generation": 2, "judgement": 2}}


def reward_model(folder, base):
    torch.manual_seed(3)
    config = AutoConfig.from_pretrained(base, num_labels=1)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return str(folder)


@pytest.mark.soak  # tests/engine/test_ranks.py compares two ranks with one, test_orphans.py starts ranks in a run
def test_two_ranks_do_everything(folder, tmp_path):
    judge = {"path": reward_model(tmp_path / "judge", folder / "model")}
    evaluation = {"baseline": "dpo", "panels": {"one": {"size": 5, "seed": 1}}, "judge": judge, "max_new_tokens": 6}
    scales = {"seq": {"estimator": "pooled"}}
    made = {
        name: recipe(folder, compute=compute, policies=POLICIES, scales=scales, evaluation=evaluation)
        for name, compute in (("one", {}), ("two", EVERYWHERE))
    }
    one = execute(open_run(made["one"], Store(tmp_path / "one")))
    path = tmp_path / "two.yaml"
    path.write_text(made["two"].to_yaml())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "unmdpo", "run", str(path), "--store", str(tmp_path / "two")]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.count("one: 5 prompts") == 1  # one rank speaks for both
    two = open_run(made["two"], Store(tmp_path / "two"))
    assert problems(two) == []
    assert two.artifact("generation[dpo,one]").manifest["ranks"] == 2
    found, expected = (EMBEDDINGS.load(run.artifact("features")) for run in (two, one))
    assert torch.allclose(found, expected, atol=1e-5)
    for policy in POLICIES:
        answers, known = (run.generations(policy, "one") for run in (two, one))
        assert [row["text"] for row in answers] == [row["text"] for row in known], policy
        assert [row["score"] for row in answers] == pytest.approx([row["score"] for row in known], abs=1e-3)
    compare_weights(one, two)


def compare_weights(one, two):
    for policy in ("dpo", "merged", "unm"):
        ours, theirs = (load_file(run.policy(policy) / "model.safetensors") for run in (two, one))
        assert ours.keys() == theirs.keys()  # the tied head is written once
        assert all(torch.allclose(ours[key], theirs[key], atol=1e-4) for key in ours)
    adapters = [load_file(run.policy("lora") / "adapter_model.safetensors") for run in (two, one)]
    assert all(torch.allclose(adapters[0][key], adapters[1][key], atol=1e-4) for key in adapters[1])
    assert one.artifact("policy[merged]").manifest["notes"]["merge_rounding"] < 1e-3
    alone, merged = (AutoModelForCausalLM.from_pretrained(one.policy(name)) for name in ("lora", "merged"))
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.allclose(alone(ids).logits, merged(ids).logits, atol=1e-3)
    assert (one.artifact("policy[merged]").path / "adapter" / "adapter_config.json").is_file()
