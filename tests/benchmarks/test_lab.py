"""Sweeps: every point is a separate run, means have Student's interval, charts show the numbers."""

import json
import sys
from dataclasses import replace

import pytest
from benchmarks.lab.__main__ import main
from benchmarks.lab.charts import write_sweep
from benchmarks.lab.sweep import BUDGET, SMALL, Result, sweep
from benchmarks.lab.table import EXPERIMENTS, Point, experiment

from unmdpo.core.errors import UserError
from unmdpo.lab.demo import demo_recipe

TINY = (
    "training.updates=3", "training.batch=8", "training.warmup=1", "pilots.updates=1", "pilots.folds=2",
    "evaluation.panels.held-out.size=10", "evaluation.max_new_tokens=4",
)  # fmt: skip

DPO_ALONE = "policies={dpo: {objective: dpo}}"


def test_means_have_students_interval():
    found = Result(Point("a"), "chart", "series", [1.0, 2.0, 3.0]).estimate
    assert found.value == 2
    assert found.high - found.value == pytest.approx(4.302653 / 3**0.5)  # t(0.975, 2) · s / √n, s = 1
    alone = Result(Point("a"), "chart", "series", [1.5]).estimate
    assert (alone.value, alone.low, alone.high) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_point_is_a_recipe(name, tmp_path):
    chosen = EXPERIMENTS[name]
    for point in chosen.points:
        knobs = replace(SMALL, **{**chosen.knobs, **point.knobs, "prompts": 100})
        demo_recipe(tmp_path, knobs, [*BUDGET, *chosen.overrides, *point.overrides])


@pytest.mark.filterwarnings("ignore:.*nothing beats:unmdpo.core.errors.UnmdpoWarning")
@pytest.mark.parametrize(
    "name", ["joint", *(pytest.param(name, marks=pytest.mark.soak) for name in ("better", "ceiling"))]
)
def test_an_experiment_end_to_end(name, tmp_path):
    """Scales and policies on the smallest world; then again, reusing the results."""
    chosen = replace(EXPERIMENTS[name], points=EXPERIMENTS[name].points[-1:])
    arguments = (chosen, tmp_path, [0], 1, replace(SMALL, prompts=100), TINY, lambda text: None)
    results = list(sweep(*arguments))
    assert {(r.chart, r.series) for r in results} == {
        (chart, series) for chart, measures in chosen.measures.items() for series in measures
    }
    assert list(sweep(*arguments)) == results
    written = write_sweep(chosen, name, results, tmp_path / "out")
    assert len(written) == 1 + len(chosen.measures)
    assert [row["values"] for row in json.loads(written[0].read_text())] == [r.values for r in results]
    for path in written[1:]:
        assert path.read_text("utf-8").startswith("<svg")


@pytest.mark.soak
def test_runs_side_by_side_give_the_same_numbers(tmp_path):
    measures = {"chart": {"comparisons": lambda run: len(run.comparisons())}}
    chosen = replace(EXPERIMENTS["ceiling"], points=EXPERIMENTS["ceiling"].points[1:3], until="comparisons")
    chosen, told = replace(chosen, measures=measures), []

    def values(folder, jobs):
        found = sweep(chosen, tmp_path / folder, [0, 1], jobs, replace(SMALL, prompts=100), TINY, told.append)
        return [(result.point.label, result.series, result.values) for result in found]

    assert values("at once", 2) == values("one by one", 1)
    assert [text.split(":")[0] for text in told[:4]] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]


@pytest.mark.soak  # as in tests/execute/test_local.py
def test_a_failed_run_is_reported(tmp_path):
    chosen = replace(
        EXPERIMENTS["ceiling"], points=EXPERIMENTS["ceiling"].points[1:3],
        overrides=("evaluation.judge={function: 'tests.worlds.judges:deadly_judge'}", DPO_ALONE),
    )  # fmt: skip
    with pytest.raises(UserError, match="ended its process with exit code -9"):
        list(sweep(chosen, tmp_path, [0], 2, replace(SMALL, prompts=100), TINY, lambda text: None))


def test_all_experiments_can_be_listed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks.lab"])
    main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*EXPERIMENTS]


def test_choices_are_drawn_as_rows(tmp_path):
    chosen = EXPERIMENTS["pilots"]
    results = [
        Result(point, chart, series, [0.1, 0.3])
        for point in chosen.points
        for chart, measures in chosen.measures.items()
        for series in measures
    ]
    drawn = write_sweep(chosen, "pilots", results, tmp_path)[1].read_text("utf-8")
    for point in chosen.points:
        assert point.label in drawn


def test_an_unknown_experiment_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'noise'"):
        experiment("nose")
