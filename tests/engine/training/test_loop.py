"""Whole runs in a folder: the same bytes after any interruption, the same numbers in every sink."""

import json
import os
import shutil
import time
from dataclasses import replace

import pytest
import torch

from tests.worlds.engine import encoded, same, trainer, weights, world
from unmdpo.core.errors import UnmdpoWarning
from unmdpo.engine.pairs.score import score
from unmdpo.engine.training import checkpoint
from unmdpo.engine.training.checkpoint import checkpoints
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.loop import LoopSettings, Validation, train
from unmdpo.engine.training.metrics import Progress, TensorBoard, WeightsAndBiases, clock, roughly
from unmdpo.scale import JointScale, Units

EVERY_UPDATE = LoopSettings(checkpoint_updates=1)


class Killed(Exception):
    """Stands in for SIGKILL: nothing runs after it."""


class KillAfter:
    def __init__(self, updates):
        self.updates = updates

    def log(self, update, metrics):
        if update + 1 == self.updates:
            raise Killed

    def close(self):
        pass


def lines(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("objective", "scale", "settings"),
    [
        ("gamma-po", None, replace(EVERY_UPDATE, checkpoint_updates=2)),
        ("unm-ao", JointScale, EVERY_UPDATE),
        pytest.param("gamma-po", None, EVERY_UPDATE, marks=pytest.mark.soak),
        pytest.param("unm-ao", JointScale, replace(EVERY_UPDATE, checkpoint_updates=2), marks=pytest.mark.soak),
    ],
)
def test_killed_after_any_update_the_end_is_the_same(tmp_path, objective, scale, settings):
    whole = trainer(objective, scale)
    train(whole, tmp_path / "whole", settings)
    for stop in range(1, 6):
        folder = tmp_path / f"killed-{stop}"
        with pytest.raises(Killed):
            train(trainer(objective, scale), folder, settings, sinks=[KillAfter(stop)])
        resumed = trainer(objective, scale)
        train(resumed, folder, settings)
        assert same(weights(resumed), weights(whole))
        names = ["metrics.jsonl", *(f"checkpoints/{p.name}" for p in checkpoints(folder / "checkpoints"))]
        for name in names:
            ours, theirs = folder / name, tmp_path / "whole" / name
            files = [ours] if ours.is_file() else sorted(p for p in ours.rglob("*") if p.is_file())
            assert files
            for path in files:
                if path.name in ("throughput.log", "checkpoint.json"):
                    continue  # how fast it went, and its checksum
                twin = theirs if ours.is_file() else theirs / path.relative_to(ours)
                assert path.read_bytes() == twin.read_bytes(), path


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


HARM = {
    "a flipped bit": flip,
    "cut off": cut,
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "something else": lambda path: path.write_text("[]"),
}
FILES = ["model/whole.safetensors", "optimizer/whole.safetensors", "objective.safetensors", "checkpoint.json"]


@pytest.fixture(scope="module")
def whole_and_killed(tmp_path_factory):
    """A finished training, its folder, and that of one that was killed after four updates."""
    whole, folder = trainer("gamma-po"), tmp_path_factory.mktemp("trained")
    train(whole, folder / "whole", EVERY_UPDATE)
    with pytest.raises(Killed):
        train(trainer("gamma-po"), folder / "killed", EVERY_UPDATE, sinks=[KillAfter(4)])
    return whole, folder / "whole", folder / "killed"


@pytest.mark.parametrize("file", [*FILES, "metrics.jsonl"])
@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_taken(whole_and_killed, tmp_path, harm, file):
    whole, finished, killed = whole_and_killed
    resumed, folder = trainer("gamma-po"), tmp_path / "killed"
    shutil.copytree(killed, folder)
    newest = checkpoints(folder / "checkpoints")[-1]
    harm(newest / file)
    (folder / "metrics.jsonl").write_text("not even a line")  # what a crash left there is not read
    if (newest / "checkpoint.json").is_file():
        with pytest.warns(UnmdpoWarning, match="is not used: .*goes on from the one before"):
            train(resumed, folder, EVERY_UPDATE)
    else:
        train(resumed, folder, EVERY_UPDATE)  # it is no checkpoint anymore
    assert same(weights(resumed), weights(whole))
    assert (folder / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


def test_all_checkpoints_damaged_means_from_the_beginning(tmp_path):
    whole, resumed = trainer(), trainer()
    train(whole, tmp_path / "whole", EVERY_UPDATE)
    with pytest.raises(Killed):
        train(trainer(), tmp_path / "killed", EVERY_UPDATE, sinks=[KillAfter(4)])
    for path in checkpoints(tmp_path / "killed" / "checkpoints"):
        (path / "stray.safetensors").write_bytes(b"added by nobody")
    with pytest.warns(UnmdpoWarning, match=r"stray\.safetensors is not what was written"):
        train(resumed, tmp_path / "killed", EVERY_UPDATE)
    assert same(weights(resumed), weights(whole))
    assert len(lines(tmp_path / "killed")) == len(lines(tmp_path / "whole"))


def test_checkpoints_can_be_read_by_the_group(tmp_path):
    before = os.umask(0o027)
    try:
        train(trainer(), tmp_path)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    assert modes == {0o640}


def test_a_finished_run_is_not_run_again(tmp_path):
    first = train(trainer(), tmp_path, EVERY_UPDATE)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = trainer()
    assert train(again, tmp_path, EVERY_UPDATE, sinks=[KillAfter(1)]) == first
    assert again.update == 6
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_checkpoints_by_time_and_the_last_ones_kept(tmp_path):
    train(trainer(checkpoint_minutes=1e-9), tmp_path, LoopSettings(keep=3))
    assert [p.name for p in checkpoints(tmp_path / "checkpoints")] == [f"update-0000000{u}" for u in (4, 5, 6)]
    train(trainer(), tmp_path / "never")
    assert [p.name for p in checkpoints(tmp_path / "never" / "checkpoints")] == ["update-00000006"]


def test_every_metric_has_its_name(tmp_path):
    train(trainer("unm-wr"), tmp_path)
    line, pace = lines(tmp_path)[2], lines(tmp_path, "throughput.log")[2]
    assert {
        "loss", "grad_norm", "learning_rate", "epoch", "num_tokens", "rewards/chosen", "rewards/rejected",
        "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected", "pairs/valid",
        "margins/target", "scale/mean", "fill",
    } <= line.keys()  # fmt: skip
    assert line["epoch"] == 1.5  # three updates of 8 in 20 slots: two of them in the first epoch
    timed = {"pairs_per_s", "tokens_per_s", "update_s"}  # how near a CPU is to its peak, nobody knows
    assert pace.keys() == {"update", *(f"throughput/{name}" for name in timed)}
    assert all(value > 0 for name, value in pace.items() if name != "update")
    tokens = [entry["num_tokens"] for entry in lines(tmp_path)]
    assert tokens == sorted(tokens)


# --- Validation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("objective", "scale"), [("mixdpo", None), ("beta-dpo", None), ("unm-wr", JointScale)])
def test_validation_changes_nothing(tmp_path, objective, scale):
    pairs = encoded(6, invalid=(1,))
    held_out = TrainingData(pairs, torch.ones(6), score(trainer().scorer, pairs), unit=torch.arange(6))
    units = Units(torch.randn(6, 6, generator=torch.Generator().manual_seed(3)))
    runs = {}
    for name, validation in (("with", Validation(held_out, units)), ("without", None)):
        one = trainer(objective, scale)
        train(one, tmp_path / name, LoopSettings(validate_updates=2), validation=validation)
        runs[name] = one
    assert same(weights(runs["with"]), weights(runs["without"]))
    looked = lines(tmp_path / "with")
    assert ["eval_loss" in line for line in looked] == [False, True] * 3
    assert looked[1]["eval_loss"] != looked[5]["eval_loss"]
    plain = [{k: v for k, v in line.items() if not k.startswith("eval_")} for line in looked]
    assert plain == lines(tmp_path / "without")


def test_validation_loss_of_an_untrained_policy_is_log_two():
    _, data = world()
    one = trainer("dpo")
    found = Validation(data)(one)
    assert found["eval_loss"] == pytest.approx(0.693147, abs=1e-5)
    assert found["eval_rewards/margins"] == pytest.approx(0, abs=1e-5)


# --- Sinks ----------------------------------------------------------------------------------------


def test_progress_says_what_people_ask_for():
    pace = {"throughput/pairs_per_s": 48.94, "throughput/tokens_per_s": 65_803.2, "throughput/mfu": 0.571}
    said = []
    progress = Progress(150, said.append)
    progress.log(11, {"loss": 0.64213, "rewards/accuracies": 0.7, **pace, "throughput/update_s": 2.6})
    progress.log(12, {"loss": 0.1, "rewards/accuracies": 0.8, "eval_rewards/accuracies": 0.556})
    progress.log(13, {"loss": 0.1, "rewards/accuracies": 0.9})
    assert said == [
        "resumes after update 11 of 150",
        "12/150 · loss 0.6421 · accuracy 0.70 · 48.9 pairs/s · 65,803 tokens/s · MFU 57% · ETA 5:59",
        "13/150 · loss 0.1000 · accuracy 0.80, held out 0.56 · ETA 0:00",
        "14/150 · loss 0.1000 · accuracy 0.90, held out 0.56 · ETA 0:00",
    ]
    assert clock(3661) == "1:01:01"


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_holds_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(trainer(), tmp_path, sinks=[TensorBoard(tmp_path / "board")])
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    assert shown == [(line["update"], pytest.approx(line["loss"], rel=1e-6)) for line in lines(tmp_path)]
    assert "throughput/pairs_per_s" in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_gets_every_update(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    train(trainer(), tmp_path, sinks=[WeightsAndBiases("test", "unmdpo", tmp_path)])
    (record,) = tmp_path.rglob("*.wandb")
    deadline = time.monotonic() + 60  # written by W&B's background process
    while b"rewards/accuracies" not in record.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.2, "about 1 second"), (8.4, "about 8 seconds"), (85, "about 80 seconds"), (95, "about 2 minutes"),
        (12.4 * 60, "about 12 minutes"), (37 * 60, "about 40 minutes"), (3.4 * 3600, "about 3 hours"),
        (18 * 3600, "about 18 hours"), (27.6 * 3600, "about 30 hours"), (3.4 * 86_400, "about 3 days"),
        (4140 * 86_400, "about 4000 days"),
    ],
)  # fmt: skip
def test_estimates_have_no_digits_that_are_not_known(seconds, told):
    assert roughly(seconds) == told


def test_a_checkpoint_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    order, sync, put = [], checkpoint.sync, checkpoint.put_in_place
    monkeypatch.setattr(checkpoint, "sync", lambda folder: (order.append("sync"), sync(folder)))
    monkeypatch.setattr(checkpoint, "put_in_place", lambda *paths: (order.append("rename"), put(*paths)))
    one = trainer()
    one.step()
    checkpoint.save_checkpoint(one, tmp_path)
    assert order == ["sync", "rename"]


def test_a_checkpoint_whose_removal_was_interrupted_no_longer_counts(tmp_path, monkeypatch):
    def killed(folder, **how):
        raise KeyboardInterrupt

    one = trainer()
    one.step()
    checkpoint.save_checkpoint(one, tmp_path, keep=1)
    one.step()
    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save_checkpoint(one, tmp_path, keep=1)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["update-00000002"]
