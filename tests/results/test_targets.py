"""What commands write takes no place of anything else."""

import pytest
from typer.testing import CliRunner

from unmdpo.cli import app
from unmdpo.core.files import replacing, write_text


@pytest.fixture
def commands(done):
    run = str(done.folder)
    return {
        "answers": ["answers", run, "dpo", "one"],
        "report": ["report", run],
        "table": ["table", run],
        "scale": ["scale", run, "seq"],
        "judge": ["judge", "test", "tests.worlds.judges:longest", str(done.recipe.data.path)],
    }


@pytest.mark.parametrize("name", ["answers", "report", "table", "scale", "judge"])
def test_a_folder_is_never_replaced_by_a_file(commands, tmp_path, name):
    kept = tmp_path / "mine" / "recipe.yaml"
    kept.parent.mkdir()
    kept.write_text("mine")
    data = tmp_path / "data.yaml"
    data.write_text("mine")
    for out, says in (
        (kept.parent, "not the folder"),
        (data, "should end in"),
        ("/dev/full", "could be written over"),
    ):
        said = CliRunner().invoke(app, [*commands[name], "--out", str(out)])
        assert said.exit_code == 2, said.output
        assert says in " ".join(said.output.split())
    assert kept.read_text() == data.read_text() == "mine"


def test_nothing_is_written_into_a_store(commands, done):
    inside = done.policy("dpo") / "page.html"
    said = CliRunner().invoke(app, [*commands["report"], "--out", str(inside)])
    assert said.exit_code == 2
    assert "where only runs may write" in " ".join(said.output.split())
    assert not inside.exists()


def test_answers_write_over_a_file_only_when_asked(commands, tmp_path):
    out = tmp_path / "data.jsonl"
    out.write_text("mine")
    words = [*commands["answers"], "--format", "jsonl", "--out", str(out)]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 2
    assert out.read_text() == "mine"
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
    assert out.read_text() != "mine"


def test_only_a_folder_takes_a_folder_s_place(tmp_path):
    place = tmp_path / "place"
    (place / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="something that is no file is there already"):
        write_text(place, "text")
    assert (place / "inside").is_dir()
    with replacing(place) as aside:
        aside.mkdir()
    assert not (place / "inside").exists()
