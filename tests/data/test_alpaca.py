"""Reading and writing AlpacaEval's files."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.worlds.length_control import EXPECTED, world
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.data.alpaca import read_annotations, read_gamed, write_outputs


def annotation(preference=1.5, **changes):
    return {
        "instruction": "Say hi", "output_1": "hello", "output_2": "hi there", "generator_1": "base",
        "generator_2": "mine", "preference": preference,
    } | changes  # fmt: skip


def test_preferences_and_lengths(write):
    path = write([annotation(1.25), annotation(0), annotation(None), annotation(2)])
    found = read_annotations(path_of(path))
    assert found.preference[[0, 1, 3]].tolist() == [0.25, 0.5, 1.0]
    assert np.isnan(found.preference[2])
    assert found.win_rate == pytest.approx(100 * 1.75 / 3)
    assert (found.baseline, found.model) == ("base", "mine")
    assert found.baseline_length.tolist() == [5.0] * 4
    assert found.model_length.tolist() == [8.0] * 4
    assert found.index.tolist() == [0, 1, 2, 3]


def path_of(text):
    from pathlib import Path

    return Path(text)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (annotation(3), "'preference' should be from 1 to 2"),
        (annotation(True), "'preference' should be from 1 to 2"),
        (annotation("1.5"), "'preference' should be from 1 to 2"),
        (annotation(output_2=None), "'output_2' should be text, not NoneType"),
        (annotation(index="a"), "'index' should be a whole number"),
    ],
)
def test_bad_rows_are_named(write, row, problem):
    path = write([annotation(), row])
    with pytest.raises(UserError, match=rf"row 2: .*{problem}"):
        read_annotations(path_of(path))


def test_several_generators_are_refused(write):
    path = write([annotation(), annotation(generator_2="other")])
    with pytest.raises(UserError, match=r"generator_2 should be the same in every row, .*: mine, other"):
        read_annotations(path_of(path))


def test_the_command_gives_the_reference_packages_number(write, tmp_path):
    preference, baseline, model, difficulty, gamed = world(0)
    rows = [
        annotation(1 + p, output_1="x" * int(a), output_2="y" * int(b))
        for p, a, b in zip(preference.tolist(), baseline, model, strict=True)
    ]
    # difficulties are looked up by instruction number; the first 240 rows also belong to the gamed baseline
    table = tmp_path / "gamed.csv"
    with table.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["preference", "std_delta_len", "instruction_difficulty", "index", "model"])
        for i in range(240):
            lines.writerow([gamed.preference[i], gamed.length_difference[i], gamed.difficulty[i], 1000 + i, "m"])
    known = read_gamed(table)
    assert known.by_index[1000] == gamed.difficulty[0]
    with table.open("a", newline="") as file:  # rows that do not affect the fit: NaN preferences are left out
        lines = csv.writer(file)
        for i, value in enumerate(difficulty.tolist()):
            lines.writerow(["" if i % 2 else "nan", 0.0, value, i, "m"])
    result = CliRunner().invoke(app, ["alpaca", write(rows), "--gamed", str(table)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert f"{EXPECTED[0][0]:.2f} ± {EXPECTED[0][1]:.2f}" in result.output
    assert result.output.split()[-1] == f"{model.astype(int).mean():.0f}"  # mean characters
    strange = [annotation(generator_2="[bold]m\x1b[2J"), annotation(None, generator_2="[bold]m\x1b[2J")]
    shown = CliRunner().invoke(app, ["alpaca", write(strange, "strange.jsonl")], env={"COLUMNS": "200"}).output
    assert "[bold]m\\x1b[2J" in shown
    assert "1 (1 not judged)" in shown
    missing = CliRunner().invoke(app, ["alpaca", write([annotation(index=5000)]), "--gamed", str(table)])
    assert missing.exit_code == 2
    assert "the difficulty of instructions [5000] is not known" in missing.output


def test_broken_tables_are_named(tmp_path):
    table = tmp_path / "gamed.csv"
    table.write_text("preference,std_delta_len,index\n0.5,0.1,3\n")
    with pytest.raises(UserError, match=r"gamed.csv, line 2: no number in column 'instruction_difficulty'"):
        read_gamed(table)
    with pytest.raises(UserError, match="cannot be read"):
        read_gamed(tmp_path / "none.csv")


def test_outputs_are_written_as_alpaca_eval_reads_them(tmp_path):
    path = tmp_path / "outputs.json"
    write_outputs(path, "mine", [("Say hi", "hi"), ("And bye", "bye")], dataset="helpful_base")
    assert json.loads(path.read_text())[1] == {
        "instruction": "And bye", "output": "bye", "generator": "mine", "dataset": "helpful_base",
    }  # fmt: skip
