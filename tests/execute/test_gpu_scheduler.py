"""Which stages fit beside each other on GPUs, and what happens to one that does not fit after all."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.pipeline import events, recipe
from unmdpo.core.errors import OutOfMemory
from unmdpo.execute import execute, local
from unmdpo.execute.gpu_scheduler import FULL, Attempt, GpuScheduler, Memory, Need, fraction, need_of
from unmdpo.recipe import load_recipe
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

POLICIES = {"dpo": {"objective": "dpo"}, "unm-wr": {"objective": "unm-wr", "scale": "seq"}}
LARGE, SMALL = Need(60e9, 1.0), Need(10e9, 0.5)


def test_stages_fill_a_gpu_but_not_more():
    room = GpuScheduler([125e9])
    assert room.take("a", LARGE) == (0,)
    assert room.take("b", LARGE) == (0,)  # while one writes, the other computes
    assert room.take("c", SMALL) is None  # the arithmetic is spoken for
    assert room.take("data", Need()) == (0,)  # needs nothing of it
    room.release("a")
    assert room.take("c", SMALL) == (0,)


def test_memory_limits_too_but_an_empty_gpu_takes_anything():
    room = GpuScheduler([40e9])
    assert room.take("a", LARGE) == (0,)
    assert room.take("b", SMALL) is None


def test_several_gpus_are_filled_evenly():
    room = GpuScheduler([125e9, 125e9])
    assert [room.take(name, SMALL)[0] for name in "abcd"] == [0, 1, 0, 1]
    assert room.take("two", Need(10e9, 0.5, devices=2)) == (0, 1)
    assert GpuScheduler([1.0]).take("more than there are", Need(devices=2)) == (0,)  # which the stage itself will tell


def test_a_stage_that_wants_to_be_alone_is():
    room = GpuScheduler([125e9])
    room.take("a", SMALL)
    assert room.take("b", SMALL, alone=True) is None
    room.release("a")
    assert room.take("b", SMALL, alone=True) == (0,)
    assert room.take("c", SMALL) is None
    assert room.take("data", Need()) == (0,)  # needs nothing of it, and waits for nobody


def test_what_needs_no_gpu_does_not_keep_others_from_being_alone():
    room = GpuScheduler([125e9])
    assert room.take("data", Need()) == (0,)
    assert room.take("b", SMALL, alone=True) == (0,)


@given(st.lists(st.tuples(st.floats(0, 2e11), st.floats(0, 1)), max_size=20), st.integers(1, 4))
def test_no_gpu_is_ever_overfull(wanted, gpus):
    room, held = GpuScheduler([1e11] * gpus), dict[int, list[Need]]()
    for number, (memory, share) in enumerate(wanted):
        need = Need(memory, share)
        taken = room.take(str(number), need)
        if taken is not None:
            held.setdefault(taken[0], []).append(need)
    for stages in held.values():
        assert len(stages) == 1 or sum(need.memory for need in stages) <= 1e11
        assert sum(need.share for need in stages[:-1]) < FULL or stages[-1].share == 0


def test_out_of_memory_is_tried_alone_and_then_smaller():
    need = Need(1e9, 0.5, tokens=65_536)
    trying, seen = Attempt(), []
    while trying is not None:
        seen.append((trying.alone, trying.tokens(need)))
        trying = trying.next(need)
    assert seen == [(False, None), (True, None), (True, 32_768), (True, 16_384)]
    assert Attempt(alone=True).next(Need()) is None  # there is nothing to make smaller


def test_fractions_of_a_gpu_for_ray():
    assert fraction(Need(9e9, 0.3), 100e9) == 0.2
    assert fraction(Need(45e9, 0.3), 100e9) == 0.5
    assert fraction(Need(500e9, 1.0), 100e9) == 1.0


def test_needs_follow_the_model_and_the_gpu(tmp_path):
    run = open_run(
        load_recipe("hs3-8b", ["model.path=meta-llama/Llama-3.2-1B-Instruct"]), Store(tmp_path), planning=True
    )
    policy, data = (need_of(run, run.stages[name], 150e9) for name in ("policy[dpo]", "comparisons"))
    assert data == Need()
    assert 30e9 < policy.memory < 141e9
    assert policy.tokens == 24_576
    assert need_of(run, run.stages["generation[dpo,eval400]"], 141e9).memory < policy.memory


FULL_AT_FIRST = """
import pathlib, torch
from transformers import LlamaForCausalLM
class Llama(LlamaForCausalLM):
    def forward(self, *given, **more):
        count = pathlib.Path({counter!r})
        tried = int(count.read_text()) if count.exists() else 0
        if tried < {times}:
            count.write_text(str(tried + 1))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return super().forward(*given, **more)
"""


def hungry(folder, tmp_path, times):
    """A model whose own code runs out of memory a few times; the reference stage is the first to use it."""
    import shutil

    place = tmp_path / "hungry"
    shutil.copytree(folder / "model", place)
    (place / "llama.py").write_text(FULL_AT_FIRST.format(counter=str(tmp_path / "tried"), times=times))
    config = json.loads((place / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "llama.Llama"}}
    (place / "config.json").write_text(json.dumps(config))
    model = {"path": str(place), "trust_remote_code": True}
    return open_run(recipe(folder, model=model, evaluation=None), Store(tmp_path / "store"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_stage_out_of_memory_is_tried_again(folder, tmp_path, jobs):
    run = hungry(folder, tmp_path, times=1)
    seen = events(run, jobs=jobs, until="reference")
    assert any(name == "reference" and "retrying" in text for name, text in seen)
    assert "reference" in run.finished
    assert Path(tmp_path / "tried").read_text() == "1"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_stage_that_never_fits_fails_with_the_way_out(folder, tmp_path, jobs):
    run = hungry(folder, tmp_path, times=99)
    with pytest.raises(OutOfMemory if jobs == 1 else Exception, match=r"reference: out of GPU memory.*token_budget"):
        execute(run, jobs=jobs, until="reference")


def test_a_whole_run_finds_its_room(folder, tmp_path, monkeypatch):
    """As on a machine with one GPU, which is told of but not there: stages wait for room, and workers are kept."""
    monkeypatch.setattr(local, "gpu_names", lambda: ["0"])
    monkeypatch.setattr(local, "gpu_memory", lambda *_: [Memory(2e10, 1.5e11)])
    small = recipe(folder, evaluation=None, scales={"seq": {"estimator": "pooled"}}, policies=POLICIES)
    run = open_run(small, Store(tmp_path / "store"))
    assert need_of(run, run.stages["pilot[0]"], 1.5e11).memory > 0
    seen = events(run, jobs=3)
    assert {name for name, what in seen if what == "finished"} == {*run.stages}
