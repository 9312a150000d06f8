"""Which stages are tried how, and which slots of GPUs they get."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.pipeline import events, recipe
from unmdpo.core.errors import OutOfMemory
from unmdpo.execute import execute, local
from unmdpo.execute.driver import Attempt
from unmdpo.execute.gpus import Gpus, Use
from unmdpo.execute.local import LocalPool, Slot, has_small_model
from unmdpo.recipe import load_recipe
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

POLICIES = {"dpo": {"objective": "dpo"}, "unm-wr": {"objective": "unm-wr", "scale": "seq"}}


TRAINS, READS = Use(trains=True), Use(trains=False)


def test_two_stages_train_and_one_reads_on_a_gpu():
    gpus = Gpus(["0", "1"], are_shared=True)
    assert [gpus.take(TRAINS) for _ in range(4)] == [("0",), ("1",), ("0",), ("1",)]
    assert gpus.take(TRAINS) == ()
    assert [gpus.take(READS) for _ in range(3)] == [("0",), ("1",), ()]
    gpus.release(("1",), TRAINS)
    assert gpus.take(TRAINS) == ("1",)


def test_a_large_model_has_a_gpu_alone():
    gpus = Gpus(["0"], are_shared=False)
    assert gpus.take(TRAINS) == ("0",)
    assert (gpus.take(TRAINS), gpus.take(READS)) == ((), ())
    gpus.release(("0",), TRAINS)
    assert gpus.take(READS) == ("0",)


def test_a_stage_that_wants_to_be_alone_gets_a_whole_gpu():
    gpus = Gpus(["0"], are_shared=True)
    alone = TRAINS._replace(alone=True)
    assert gpus.take(READS) == ("0",)
    assert gpus.take(alone) == ()
    gpus.release(("0",), READS)
    assert gpus.take(alone) == ("0",)
    assert (gpus.take(TRAINS), gpus.take(READS)) == ((), ())


def test_ranks_get_whole_gpus_and_no_more_than_there_are():
    gpus = Gpus(["0", "1", "2"], are_shared=True)
    assert gpus.take(READS) == ("0",)
    assert gpus.take(TRAINS._replace(ranks=2)) == ("1", "2")
    assert Gpus(["0"], are_shared=True).take(TRAINS._replace(ranks=2)) == ("0",)  # which the stage itself will tell


@given(st.lists(st.builds(Use, st.booleans(), st.integers(1, 3), st.booleans()), max_size=20), st.integers(1, 4))
def test_no_gpu_is_ever_overfull_and_all_are_free_at_the_end(uses, count):
    gpus = Gpus([*map(str, range(count))], are_shared=True)
    taken = [(gpus.take(use), use) for use in uses]
    for gpu in gpus._gpus.values():
        assert (gpu.training <= 2 and gpu.reading <= 1) if not gpu.is_taken else gpu.load == 1
    for names, use in taken:
        gpus.release(names, use)
    assert all(gpu.load == 0 and not gpu.is_taken for gpu in gpus._gpus.values())


def test_small_models_share_a_gpu(folder, tmp_path):
    assert has_small_model(open_run(recipe(folder), Store(tmp_path)))
    large = load_recipe("hs3-8b", ["model.path=meta-llama/Llama-3.2-1B-Instruct"])
    assert not has_small_model(open_run(large, Store(tmp_path), planning=True))


def test_out_of_memory_is_tried_alone_and_then_smaller(folder, tmp_path):
    stages = open_run(recipe(folder), Store(tmp_path)).stages
    trying, tried = Attempt(), []
    while trying is not None:
        tried.append(trying)
        trying = trying.next(stages["policy[dpo]"])
    assert tried == [Attempt(), Attempt(alone=True), Attempt(alone=True, part=2), Attempt(alone=True, part=4)]
    assert Attempt(alone=True).next(stages["scale[seq]"]) is None  # there is nothing to make smaller


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


def test_a_whole_run_finds_its_slots(folder, tmp_path, monkeypatch):
    """As on a machine with one GPU, which is told of but not there: stages wait for a slot, and processes are kept."""
    started = []
    begin = Slot.__init__

    def noted(self, pool, devices):
        started.append(devices)
        begin(self, pool, devices)

    monkeypatch.setattr(local, "gpu_names", lambda: ["0"])
    monkeypatch.setattr(Slot, "__init__", noted)
    monkeypatch.setattr(Slot, "answers", lambda self: True)
    small = recipe(folder, evaluation=None, scales={"seq": {"estimator": "pooled"}}, policies=POLICIES)
    run = open_run(small, Store(tmp_path / "store"))
    seen = events(run, jobs=3)
    assert {name for name, what in seen if what == "finished"} == {*run.stages}
    assert started.count(("0",)) in (2, 3)  # two that train, and one that reads beside them


def test_a_gpu_is_tried_in_every_way_there_is(folder, tmp_path, monkeypatch):
    """Forked and from nothing, with NVIDIA's service and without."""
    ways = []

    class Deaf:
        def __init__(self, pool, devices):
            ways.append((pool.context.get_start_method(), dict(pool.environment)))

        def answers(self):
            return len(ways) == 4

        def kill(self):
            pass

    monkeypatch.setattr(local, "Slot", Deaf)
    pool = object.__new__(LocalPool)
    pool.context, pool._slots = SimpleNamespace(get_start_method=lambda: "forkserver"), []
    pool._find_out_how_to_start("0", {"PIPES": "here"})
    assert ways == [(start, more) for more in ({"PIPES": "here"}, {}) for start in ("forkserver", "spawn")]
    assert len(pool._slots) == 1
