"""Judges, measured on labelled pairs and on RewardBench 2."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe, world
from unmdpo.cli import app
from unmdpo.core.errors import DataError, UserError
from unmdpo.data import Comparison
from unmdpo.data.comparison import Origin
from unmdpo.data.identity import Message
from unmdpo.data.reward_bench import is_reward_bench, read_reward_bench
from unmdpo.engine.inference.judges import EndpointSettings
from unmdpo.engine.inference.pairwise import PairwiseJudge, candidate_is_first
from unmdpo.execute import execute
from unmdpo.recipe.pairs import judge_of
from unmdpo.results.run import open_run
from unmdpo.stages.measured import _gaps, measure_on_reward_bench
from unmdpo.stages.shared.files import MEASURED
from unmdpo.stages.shared.judge_measure import Measured
from unmdpo.stats.reward_bench import Answered, best_of, ties
from unmdpo.store.store import Store

LONGEST = "tests.worlds.judges:longest"


def compared(chosen, rejected, strength=1, domain=""):
    prompt = (Message("user", f"{chosen}?"),)
    return Comparison(prompt, chosen, rejected, strength, Origin("here", 1), domain=domain)


def test_accuracy_by_strength_and_domain():
    rows = [compared("long one", "b", 1, "x"), compared("a", "longer", 2, "x"), compared("a", "longer", 2, "y")]
    found = Measured.of(np.array([1.0, -1.0, 0.0]), rows)
    assert (found.every.judge, found.every.length) == pytest.approx((0.5, 1 / 3))
    assert {name: part.judge for name, part in found.by_strength.items()} == {"1": 1.0, "2": 0.25}
    assert {name: part.judge for name, part in found.by_domain.items()} == {"x": 0.5, "y": 0.5}
    assert [*found.table] == ["all", "strength 1", "strength 2", "x", "y"]
    assert Measured.of(np.ones(2), [compared("a", "b", 0.3), compared("a", "b", 1.7)]).by_strength == {}


class Leaning(PairwiseJudge):
    """Prefers the longer response, and the one that is shown first."""

    def __init__(self, towards_first):
        super().__init__(EndpointSettings(endpoint="http://x/v1", model="m"))
        self.towards_first = towards_first

    def answers(self, questions, seed):
        for place, one in enumerate(questions):
            sign = 1 if candidate_is_first(one.prompt_hash, seed) else -1
            odds = (len(one.candidate) - len(one.baseline)) / 10 + sign * self.towards_first
            yield place, 1 / (1 + np.exp(-odds))


def test_a_judge_of_pairs_is_asked_in_both_orders(tmp_path):
    rows = [compared("x" * (10 + i), "y" * 10) for i in range(1, 9)]
    gaps, position = _gaps(Leaning(0.0), rows, 1, print, tmp_path)
    assert (position.first, position.changed) == (0.5, 0.0)
    leaning, position = _gaps(Leaning(0.35), rows, 1, print, tmp_path / "other")
    assert leaning == pytest.approx(gaps)  # what the place does is taken out
    assert position.changed == 3 / 8  # longer by 1, 2 or 3
    assert position.first == 0.5 + 3 / 16


def test_by_command(write, tmp_path):
    rows = [
        {
            "prompt": f"q{i}",
            "chosen": "a long answer" if i % 4 else "a",
            "rejected": "two words",
            "strength": 1 + i % 3,
        }
        for i in range(12)
    ]
    out = tmp_path / "found.json"
    command = ["judge", "test", LONGEST, write(rows), "--with", "tests.worlds.judges:shortest", "--out", str(out)]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "75.0 %" in found.output
    assert "do not judge by it" in found.output  # it is length
    written = json.loads(out.read_text())
    assert written["all"] == {"pairs": 12, "judge": 0.75, "length": 0.75}
    assert written["agreement"] == 0.0


def bench_row(id, subset, right, wrong):
    return {
        "id": id,
        "subset": subset,
        "prompt": "why?",
        "chosen": right,
        "rejected": wrong,
        "num_correct": len(right),
    }


def test_best_of_four_by_hand():
    rows = [Answered([3.0], [1.0, 2.0, 0.0]), Answered([3.0], [3.0, 2.0, 3.0]), Answered([1.0], [2.0, 0.0, 0.0])]
    assert best_of(rows) == pytest.approx((1 + 1 / 3 + 0) / 3)


def test_ties_by_hand():
    reference = {"1": Answered([4.0], [1.0]), "2": Answered([0.0], [1.0])}
    tied = {"1": Answered([5.0, 4.0], [2.0, 1.0]), "2": Answered([5.0, 1.0], [0.0])}
    # right: both tied, one reference; gaps 2 and 1 against spreads 1 and 4; hard: min(2, 3), min(1, -1)
    margin = (np.tanh(2 / 1 - 1) + np.tanh(-1 / 4 - 1)) / 2
    assert ties(reference, tied) == pytest.approx(0.3 * 1 + 0.3 * 0.5 + 0.2 * 0.5 + 0.2 * 0.5 + 0.01 * margin)
    same = {"1": Answered([1.0, 1.0], [1.0])}
    assert np.isfinite(ties({"1": Answered([1.0], [1.0])}, same))


def test_on_reward_bench_by_command(write):
    rows = [
        bench_row("1", "Math", ["one two three"], ["a", "b b", "c c"]),
        bench_row("2", "Math", ["no"], ["a", "b b", "c c"]),
        bench_row("ref:1", "Ties", ["one two three"], ["one"]),
        bench_row("tied:1", "Ties", ["one two three", "four five six"], ["a", "b"]),
    ]
    path = write(rows)
    assert is_reward_bench(Path(path))
    found = CliRunner().invoke(app, ["judge", "test", LONGEST, path])
    assert found.exit_code == 0, found.output
    # ties: both right; of equal length, so right ones are not told apart, and the margin is as large as can be
    assert "Math: 50.0" in found.output
    assert "Ties: 101.0" in found.output
    assert "mean: 75.5" in found.output


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (bench_row("1", "Math", ["a", "b"], ["c"]), "2 right responses"),
        (bench_row("1", "Ties", ["a"], ["c"]), "'ref:' or 'tied:'"),
        (bench_row("1", "Math", [], ["c"]), "list of texts"),
    ],
)
def test_rows_that_are_none_of_it(write, row, says):
    with pytest.raises(DataError, match=says):
        read_reward_bench(Path(write([row])))


def test_pairs_are_no_reward_bench(write, tmp_path):
    assert not is_reward_bench(
        Path(write([{"id": "1", "subset": "x", "prompt": "q", "chosen": "a", "rejected": "b"}]))
    )
    assert not is_reward_bench(tmp_path)
    judge = tmp_path / "judge.yaml"
    judge.write_text("endpoint: http://localhost:1/v1\nmodel: m\n")
    path = Path(write([bench_row("1", "Math", ["a"], ["b"])]))
    with pytest.raises(UserError, match="compares two"):
        measure_on_reward_bench(path, judge_of(str(judge)), print)


def test_judges_are_measured_in_a_run(tmp_path):
    folder = world(tmp_path)
    rows = [{"prompt": f"w{i}", "chosen": "w1 w2" if i % 4 else "w1", "rejected": "w3 w4 w5"} for i in range(8)]
    labelled = folder / "labelled.jsonl"
    labelled.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = recipe(folder).model_dump()["evaluation"] | {
        "judge": None, "labelled": str(labelled), "initial": False,
        "judges": {"long": {"function": LONGEST}, "short": {"function": "tests.worlds.judges:shortest"}},
    }  # fmt: skip
    policies = {"dpo": {"objective": "dpo"}, "simpo": {"objective": "simpo"}}
    made = recipe(folder, evaluation=evaluation, policies=policies, scales={})
    run = execute(open_run(made, Store(folder / "store")))
    assert run.judge_lines == [
        "measured[long]: 0.0 % accuracy on 8 labelled pairs; preferring the longer response gets 0.0 %: "
        "do not judge by it",
        "measured[short]: 100.0 % accuracy on 8 labelled pairs; preferring the longer response gets 0.0 %: "
        "too few to rely on",
    ]
    few = "a judge measured on only 8 pairs"
    assert run.judge_marks == {"long": "a judge that is no better than length", "short": few}
    assert MEASURED.load(run.artifact("measured[short]"))["all"] == {"pairs": 8, "judge": 1.0, "length": 0.0}


def test_a_measurement_belongs_to_the_labels_in_the_file(folder, tmp_path):
    path = tmp_path / "labelled.jsonl"
    keys = []
    for answer in ("a", "b"):
        path.write_text(json.dumps({"prompt": "Q", "chosen": answer * 3, "rejected": "c", "strength": 1}) + "\n")
        judged = {"judge": {"function": LONGEST}, "panels": {"one": {"size": 2, "seed": 1}}}
        evaluation = judged | {"baseline": "dpo", "labelled": str(path)}
        run = open_run(recipe(folder, evaluation=evaluation), Store(tmp_path / answer))
        keys.append(next(stage.key for name, stage in run.stages.items() if stage.kind.name == "measured"))
    assert keys[0] != keys[1]
