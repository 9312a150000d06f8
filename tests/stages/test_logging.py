"""`logging` in a recipe reaches the trainings of pilots and policies, and no result."""

import json

import pytest

from tests.worlds.pipeline import recipe
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

SMALL = {"policies": {"dpo": {"objective": "dpo"}, "unm-wr": {"objective": "unm-wr", "scale": "seq"}}}


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_a_folder_for_every_training(folder, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = tmp_path / "board"
    logged = recipe(folder, **SMALL, logging={"tensorboard": str(board)})
    run = execute(open_run(logged, Store(tmp_path / "store")), until="policy")
    assert {path.name for path in board.iterdir()} == {"pilot[0]", "pilot[1]", "policy[dpo]", "policy[unm-wr]"}
    lines = (run.artifact("policy[dpo]").path / "metrics.jsonl").read_text().splitlines()
    shown = EventAccumulator(str(board / "policy[dpo]")).Reload().Scalars("loss")
    assert [event.value for event in shown] == pytest.approx([json.loads(line)["loss"] for line in lines], rel=1e-6)
    plain = open_run(recipe(folder, **SMALL), Store(tmp_path / "store"))
    assert set(run.finished) == set(plain.finished)  # the same results, not made again


def test_wandb_without_a_login_is_reported_before_any_work(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    run = open_run(recipe(folder, logging={"wandb": {"project": "mine"}}), Store(tmp_path / "store"))
    with pytest.raises(UserError, match="wandb login"):
        execute(run)
    assert not (tmp_path / "store").exists()
