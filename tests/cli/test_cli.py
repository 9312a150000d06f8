"""How the command behaves: quick help, exit codes, messages without tracebacks."""

import json
import os
import subprocess
import sys
import warnings

import pytest
from typer.testing import CliRunner

import unmdpo
from tests.worlds.rows import helpsteer3_row
from unmdpo.cli import app
from unmdpo.recipe import packaged


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


COMMANDS_ON_RECIPES = {
    "run": [],
    "plan": [],
    "verify": [],
    "report": [],
    "table": [],
    "compare": ["a", "b"],
    "scale": ["a"],
    "chat": ["a"],
    "answers": ["a", "b"],
    "export": ["a", "folder"],
}


def test_version():
    assert run("--version").output == f"unmdpo {unmdpo.__version__}\n"


@pytest.mark.parametrize("command", [[], ["run"], ["audit", "support"], ["theory"]])
def test_short_help(command):
    done = CliRunner().invoke(app, [*command, "-h"])
    assert done.exit_code == 0
    assert "--help" in done.output


def test_help_imports_little():
    """What it imports is what it takes: a limit in seconds would fail on a slower machine."""
    script = (
        "import sys\n"
        "from unmdpo.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'pandas', 'pydantic', 'scipy', 'numpy'}\n"
        "print('HEAVY', sorted(heavy & sys.modules.keys()))\n"
        "print('MODULES', len(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "recipes" in done.stdout
    assert "HEAVY []" in done.stdout
    assert int(done.stdout.split()[-1]) < 400  # 193 with typer 0.29


def test_a_wrong_recipe_is_refused_before_anything_heavy_is_imported(tmp_path):
    """So that its mistakes are known in a second."""
    path = tmp_path / "wrong.yaml"
    path.write_text("name: wrong\n")
    commands = [[name, str(path), *more] for name, more in COMMANDS_ON_RECIPES.items()]
    script = (
        "import sys\n"
        "from unmdpo.cli import app\n"
        f"for command in {commands}:\n"
        "    try: app(command)\n"
        "    except SystemExit as ended: print(ended.code, *command[:1], {'torch', 'scipy'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"2 {name} set()" for name in COMMANDS_ON_RECIPES]
    assert done.stderr.count("model is missing") == len(COMMANDS_ON_RECIPES)


def test_unknown_command_and_option_exit_2():
    assert run("trian").exit_code == 2
    assert run("audit", "support").exit_code == 2
    assert run("audit", "support", "x.jsonl", "--spit", "train").exit_code == 2


def test_user_errors_are_one_message_without_traceback(tmp_path):
    result = run("audit", "support", str(tmp_path / "missing.jsonl"))
    assert result.exit_code == 2
    assert "missing.jsonl: no such file or folder" in result.output
    assert "Traceback" not in result.output


def test_debug_shows_the_exception(tmp_path):
    result = run("--debug", "audit", "support", str(tmp_path / "missing.jsonl"))
    assert result.exception is not None
    assert type(result.exception).__name__ == "UserError"


def test_recipes_are_listed_and_shown():
    listed = run("recipes").output
    assert "hs3-1b" in listed
    assert "hs2-1b" in listed
    shown = run("recipes", "show", "hs3-1b", "training.updates=7").output
    assert shown.startswith("# digest: ")
    assert "updates: 7" in shown
    assert json.loads(run("recipes", "schema").output)["title"] == "Recipe"


def test_recipe_mistakes_exit_2():
    result = run("recipes", "show", "hs3-1b", "training.upates=7")
    assert result.exit_code == 2
    assert "did you mean 'updates'?" in result.output


def test_support_audit_prints_and_writes(write, tmp_path):
    out = tmp_path / "support.json"
    path = write([helpsteer3_row(), helpsteer3_row("Other?", label=0)])
    result = run("audit", "support", path, "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "margin-contrast condition holds" in result.output
    assert result.output.startswith("read as 'helpsteer3'; strengths as they are given\n")
    assert result.output.splitlines()[-2].startswith("No prompt's comparisons could identify a scale of its own.")
    found = json.loads(out.read_text())
    assert (found["rows"], found["ties"], found["prompts_one_pair"]) == (1, 1, 1)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_strength_audit_prints_and_writes(write, tmp_path):
    out = tmp_path / "strength.json"
    path = write([helpsteer3_row(f"Question {i}?") for i in range(30)])
    result = run("audit", "strength", path, "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "prespecified criterion: fail" in result.output  # every vote agrees, so there is no contrast
    assert "It cannot be seen here whether stronger preferences predict agreement" in " ".join(result.output.split())
    found = json.loads(out.read_text())
    assert found["prompts"] == {"train": 24, "development": 3, "test": 3}
    assert found["passed"] is False


def test_strength_audit_without_votes_says_what_can_be_asked(write):
    one_vote = write([helpsteer3_row(f"Question {i}?", votes=(-2,)) for i in range(3)])
    pairs = write([{"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1.0}], "pairs.jsonl")
    for path, said in ((one_vote, "no comparison has the votes of 3"), (pairs, "read as 'preference', which has no")):
        result = run("audit", "strength", path)
        assert result.exit_code == 2
        assert said in result.output
        assert "`unmdpo audit support`" in result.output
        assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "strengths cut at these quantiles of the margins: 1.66667, 2.33333"),
        (["--thresholds", "1.5,4"], "strengths cut at these margins: 1.5, 4"),
    ],
)
def test_support_audit_says_where_margins_were_cut(write, options, said):
    path = write([{"prompt": f"{m}", "chosen": "b", "rejected": "c", "margin": m} for m in (1.0, 2.0, 3.0)])
    result = run("audit", "support", path, *options)
    assert result.exit_code == 0, result.output
    assert f"read as 'preference'; {said}" in result.output


def test_result_folder_is_checked_before_the_work(write, tmp_path):
    path = write([helpsteer3_row()])
    result = run("audit", "support", path, "--json", str(tmp_path / "nowhere" / "x.json"))
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_skipped_rows_are_reported(write):
    path = write([helpsteer3_row(), helpsteer3_row("B?", overall_preference=9)])
    refused = run("audit", "support", path)
    assert refused.exit_code == 2
    assert "data.jsonl, row 2: 'overall_preference'" in refused.output
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        allowed = run("audit", "support", path, "--max-bad-rows", "1")
    assert allowed.exit_code == 0
    assert "1 of 2 rows is bad, and skipped" in allowed.output
    assert "rows skipped as unreadable" in allowed.output
    for wrong in ("many", "120%"):
        assert "a number of rows or a share" in run("audit", "support", path, "--max-bad-rows", wrong).output
    strict = run("audit", "support", path, "--max-bad-rows", "0")
    assert strict.exit_code == 2


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--pairs", "some", "'all' or 'neighbours'"),
        ("--strength-map", "1,x", "numbers separated by commas"),
        ("--strength-map", "3,2", "must not decrease"),
        ("--strength-map", "nan,nan", "finite"),
        ("--tau", "inf", "a finite number of at least 0"),
        ("--min-gap", "nan", "greater than or equal to 0"),
        ("--thresholds", "1", "need 2 thresholds"),
        ("--thresholds", "nan,nan", "finite"),
        ("--levels", "7", "strength settings do not apply"),
        ("--split", "trian", "there is no split 'trian'"),
        ("--source", "helpstear3", "did you mean 'helpsteer3'?"),
    ],
)
def test_bad_options_exit_2(write, option, value, message):
    result = run("audit", "support", write([helpsteer3_row()]), option, value)
    assert result.exit_code == 2
    assert message in result.output


def test_terminals_without_greek(write):
    path, environment = write([helpsteer3_row()]), os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", "from unmdpo.cli import main; main()", "audit", "support", path]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"margin-contrast condition holds" in done.stdout


@pytest.mark.parametrize("target", [".", "/", ""])
def test_a_folder_is_no_target(write, target):
    result = run("audit", "support", write([helpsteer3_row()]), "--json", target)
    assert result.exit_code == 2
    assert "should go to a file" in result.output


def test_long_target_names_work(write, tmp_path):
    target = tmp_path / f"{'x' * 240}.json"
    assert run("audit", "support", write([helpsteer3_row()]), "--json", str(target)).exit_code == 0
    assert json.loads(target.read_text())["rows"] == 1


def test_strength_audit_tells_what_it_skipped(write):
    rows = [helpsteer3_row(f"{i}?") for i in range(20)] + [helpsteer3_row("bad?", response1=3)]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = run("audit", "strength", write(rows), "--max-bad-rows", "5%")
    assert result.exit_code == 0
    assert "'response1' should be text, not 3 (row 21)" in result.output
    assert "rows skipped: 1" in result.output


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("hs3-1b", "hs3-8b", "smollm2-135m") else pytest.param(name, marks=pytest.mark.soak)
        for name in packaged()
        if not name.startswith("_")
    ],
)
def test_every_packaged_recipe_can_be_planned_offline(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = CliRunner().invoke(app, ["plan", name, "--device", "h200", "--store", str(tmp_path / "store")])
    has_all = "problem: " not in done.output  # some name models and files that are not here
    assert done.exit_code == (0 if has_all else 2), done.output
    assert "left to do: " in done.output
