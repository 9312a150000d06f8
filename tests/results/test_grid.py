"""One table of a run, in every form."""

import csv
import io
import json
import shutil

import pytest
from typer.testing import CliRunner

from unmdpo.cli import app
from unmdpo.results.grid import COST, EQUAL, LENGTH, REWARD, WIN, Column, Grid, Number
from unmdpo.results.run import open_run
from unmdpo.store.store import Store


@pytest.fixture(scope="module")
def grid(done):
    return Grid.of({"mine": done})


def test_numbers_are_the_summarys(done, grid):
    baseline = done.recipe.evaluation.baseline
    rows = dict(grid.rows)
    assert next(iter(rows)) == baseline
    for panel, report in done.summary.items():
        assert rows[baseline][Column(panel, WIN)] == Number(50.0)
        for policy, outcome in report["judges"][""]["against"][baseline].items():
            rate = outcome["win_rate"]
            assert rows[policy][Column(panel, WIN)] == Number(rate["value"], rate["low"], rate["high"])
            assert rows[policy][Column(panel, LENGTH)].value == outcome["length_ratio"]["value"]
    seconds = done.finished[f"policy[{baseline}]"].manifest["seconds"]
    assert rows[baseline][Column("", COST)].value == seconds


def test_numbers_are_written_as_in_the_paper():
    assert Number(58.128, 53.25, 62.9).write(WIN) == "58.13 [53.25, 62.90]"
    assert Number(0.3414, -0.2841, 0.9881).write(REWARD) == "+0.341 [-0.284, +0.988]"
    assert Number(1.0742, 1.0, 1.1).write(LENGTH) == "1.074"
    assert Number(50.0).write(EQUAL) == "50.00"


def small(name="a_b|c"):
    first, second = Column("one, by x&y", WIN), Column("one, by x&y", REWARD)
    return Grid(
        [first, second], [(name, {first: Number(51, 49, 53), second: Number(0.5, 0, 1)}), ("d", {})], ["x (bad)"]
    )


def test_latex():
    lines = small().latex().splitlines()
    assert lines[0] == "% x (bad)"
    assert r"a\_b|c & \winci{51.00}{49.00}{53.00} & \winci{+0.500}{+0.000}{+1.000} \\" in lines
    assert r" & \multicolumn{2}{c}{\textbf{one, by x\&y}} \\" in lines
    assert r"d &  &  \\" in lines


def test_markdown_and_csv_and_json():
    text = small().markdown()
    assert text.splitlines()[0] == "| policy | one, by x&y, win % | one, by x&y, ΔR |"
    assert "| a_b\\|c | 51.00 [49.00, 53.00] | +0.500 [+0.000, +1.000] |" in text
    assert text.endswith("\nx (bad)\n")
    rows = list(csv.DictReader(io.StringIO(small().csv())))
    assert [(row["policy"], row["measure"], float(row["low"])) for row in rows] == [
        ("a_b|c", "win %", 49),
        ("a_b|c", "ΔR", 0),
    ]
    assert json.loads(small().json())["rows"][0] == {
        "policy": "a_b|c", "group": "one, by x&y", "measure": "win %", "value": 51, "low": 49, "high": 53,
    }  # fmt: skip


def test_several_runs_stand_below_each_other(done, grid):
    both = Grid.of({"a": done, "b": done})
    assert [name for name, _ in both.rows] == [f"{run}: {name}" for run in "ab" for name, _ in grid.rows]
    assert both.columns == grid.columns


@pytest.mark.parametrize("form", ["text", "latex", "markdown", "csv", "json"])
def test_by_command(done, form):
    found = CliRunner().invoke(app, ["table", str(done.folder), "--format", form], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    assert all(name in found.output for name in done.recipe.policies)


@pytest.mark.parametrize("width", [40, 60])
def test_nothing_is_left_out_on_a_narrow_terminal(done, width):
    narrow, wide = (
        CliRunner().invoke(app, ["table", str(done.folder)], env={"COLUMNS": str(columns)}).output
        for columns in (width, 200)
    )
    assert set(wide.split()) == set(narrow.split())
    assert max(map(len, narrow.splitlines())) <= width < max(map(len, wide.splitlines()))


def test_into_a_file(done, tmp_path):
    found = CliRunner().invoke(app, ["table", str(done.folder), "--format", "latex", "--out", str(tmp_path / "t.tex")])
    assert found.exit_code == 0, found.output
    assert (tmp_path / "t.tex").read_text().endswith("\\end{tabular}\n")


def test_a_damaged_run_has_no_table(done, tmp_path):
    shutil.copytree(done.folder.parents[1], tmp_path / "store")
    folder = tmp_path / "store" / "runs" / done.folder.name
    copy = open_run(done.recipe, Store(tmp_path / "store"))
    (scores,) = [copy.artifact(name).path for name in copy.stages if name.startswith("judgement[")][:1]
    damaged = next(path for path in scores.iterdir() if path.suffix == ".jsonl")
    damaged.chmod(0o644)
    damaged.write_text(damaged.read_text().replace("1", "2", 1))
    found = CliRunner().invoke(app, ["table", str(folder)])
    assert found.exit_code == 2
    assert "checks failed, so there is no table" in found.output
