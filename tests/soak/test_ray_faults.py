"""A mistake that shows up only inside a Ray Train job is reported once, although Ray restarts its workers."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worlds.pipeline import judged_by_function, world
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]


def test_a_fault_inside_ray_train_is_reported(cluster, tmp_path):
    folder = world(tmp_path)
    path = folder / "model" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 3e38)
    save_file(weights, path, metadata={"format": "pt"})
    described = judged_by_function(folder, "tests.worlds.judges:longest", compute={"ranks": 2})
    with pytest.raises(
        UserError, match=r"reference: the log-probabilities that LlamaForCausalLM gives are not finite"
    ):
        execute(open_run(described, Store(tmp_path / "ray")), until="reference", executor="ray")
    assert not [*(tmp_path / "ray").glob(".ray-*")]
