"""Output that nobody reads, long errors, and names that a shell would read otherwise."""

import json
import subprocess

import yaml
from rich.text import Text
from typer.testing import CliRunner

from tests.worlds.pipeline import WAIT, small_run
from unmdpo.cli import SCREEN, app
from unmdpo.cli.output import cell, say


def test_a_run_goes_on_when_its_reader_leaves(folder, tmp_path):
    """As in `unmdpo run x 2>&1 | head -1`."""
    with subprocess.Popen(small_run(folder, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        assert run.stdout.readline()
        run.stdout.close()
        assert run.wait(WAIT) == 0
    assert [*(tmp_path / "store" / "artifacts" / "policy").glob("*/manifest.json")]


def test_a_run_without_streams(folder, tmp_path):
    quoted = subprocess.list2cmdline(small_run(folder, tmp_path))
    assert subprocess.run(["sh", "-c", f"{quoted} >&- 2>&- <&-"], timeout=WAIT, check=False).returncode == 0
    assert [*(tmp_path / "store" / "artifacts" / "policy").glob("*/manifest.json")]


def test_errors_fit_on_a_screen(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(yaml.safe_dump({"x" * 100_000: 1}))
    done = CliRunner().invoke(app, ["plan", str(path)])
    assert done.exit_code == 2
    assert len(done.output) < SCREEN + 200


def test_the_next_command_can_be_pasted(folder, tmp_path):
    out = tmp_path / "my recipe; rm -rf x.yaml"
    words = ["init", str(folder / "data.jsonl"), "--model", str(folder / "model"), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"next: unmdpo plan '{out}' && unmdpo run '{out}'" in done.output


def test_text_from_outside_is_harmless_on_a_terminal(capsys):
    say("name\x1b[31m\x07 [bold]")
    assert capsys.readouterr().out == r"name\x1b[31m\x07 [bold]" + "\n"
    assert Text.from_markup(cell("name\x1b[2J [bold]")).plain == r"name\x1b[2J [bold]"


def test_names_of_files_and_columns_obey_no_terminal(tmp_path):
    row = {"chosen": "a", "rejected": "b", "strength": 1, "col\x1b[31m": 1, "domain": "d\x1b[2J"}
    path = tmp_path / "named\x1b[31m.jsonl"
    path.write_text("".join(json.dumps(row | {"prompt": f"q{i}"}) + "\n" for i in range(9)))
    said = CliRunner().invoke(app, ["look", str(path)])
    assert said.exit_code == 0, said.output
    assert "\x1b" not in said.output
