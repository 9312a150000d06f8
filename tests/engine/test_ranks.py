"""Two ranks that shard a model give the same results as one process, and each can read the other's checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.worlds import ranks
from unmdpo.engine.pairs.layout import Groups
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.training.checkpoint import checkpoints, load_checkpoint

ROOT = Path(__file__).parents[2]


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "tests.worlds.ranks", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def same(one, two, atol):
    return all(torch.allclose(one[name], two[name], atol=atol, rtol=1e-5) for name in one)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One process, then two ranks that also continue from its checkpoint."""
    alone, together = (tmp_path_factory.mktemp(name) for name in ("alone", "together"))
    ranks.main(alone)
    torchrun(together, checkpoints(alone / "beta-dpo")[-1])
    return alone, together


def test_two_ranks_equal_one(folders):
    alone, together = folders
    for objective in [*ranks.OBJECTIVES, *ranks.WAYS, "offloaded, resumed"]:
        if objective == "plain":
            continue
        one, two = (json.loads((f / objective / "lines.json").read_text()) for f in folders)
        assert [line["pairs/valid"] for line in one] == [line["pairs/valid"] for line in two]
        for line in (one[0], two[0]):
            line.pop("rewards/accuracies", None)  # before the first update, the sign of a rounding error
        for a, b in zip(one, two, strict=True):
            assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
        for name, atol in (("gradients", 5e-6), ("weights", 1e-5)):
            file = f"{objective}/{name}.safetensors"
            assert same(load_file(alone / file), load_file(together / file), atol), file


def test_checkpoints_travel_between_one_rank_and_two(folders, tmp_path):
    """β-DPO up to the sixth update: all on one rank; one → two ranks; two → one."""
    _, together = folders
    expected = ranks.make_trainer("beta-dpo")
    lines = list(expected.run())
    found = json.loads((together / "resumed" / "lines.json").read_text())
    for a, b in zip(lines[3:], found, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
    resumed = ranks.make_trainer("beta-dpo")
    load_checkpoint(resumed, checkpoints(together / "beta-dpo")[-1])
    for a, b in zip(lines[3:], resumed.run(), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
    weights = {name: p.detach() for name, p in resumed.masters.named.items()}
    assert same(weights, {name: p.detach() for name, p in expected.masters.named.items()}, 1e-5)
    assert same(weights, load_file(together / "resumed" / "weights.safetensors"), 1e-5)
    for a, b in zip(resumed.adaptive_state, expected.adaptive_state, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_turns_give_every_rank_the_same_number_of_passes():
    groups = Groups([[0, 1], [2], [3]], [[4], [5]])
    first, second = (list(Ranks(rank, 2).turns(groups)) for rank in (0, 1))
    assert first == [([0, 1], True), ([3], True), ([4], True)]
    assert second == [([2], True), ([3], False), ([5], True)]
    assert list(Ranks().turns(groups)) == [(group, True) for group in groups.all]
