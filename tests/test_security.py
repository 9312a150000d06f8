"""What SECURITY.md promises: no pickle, no foreign code, no secrets, no network, and text stays text."""

import io
import json
import os
import pickle
import re
import socket
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.worlds.judges import NASTY
from tests.worlds.pipeline import recipe, world
from unmdpo.cli import app
from unmdpo.core.errors import UserError, printable
from unmdpo.data import load_comparisons
from unmdpo.execute import execute
from unmdpo.recipe import load_recipe
from unmdpo.report.page import write_report
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

SOURCES = Path(__file__).parent.parent / "src" / "unmdpo"
SECRETS = {"OPENAI_API_KEY": "sk-very-secret", "HF_TOKEN": "hf_very_secret", "WANDB_API_KEY": "very-secret-too"}


def whole_run(folder, store="store", **changes):
    return execute(open_run(recipe(folder, **changes), Store(folder / store)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world(tmp_path_factory.mktemp("security"))


def test_a_whole_run_resumed_and_read_needs_no_pickle(folder, monkeypatch):
    """Uses every reader, with everything that unpickles made to fail."""

    def refused(*_, **__):
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refused)
    run = whole_run(folder)
    assert run.table()
    assert len(run.scale("seq").known()) > 0
    write_report(run, folder / "report.html")


def test_nothing_in_the_package_unpickles():
    words = re.compile(
        r"^\s*(import|from) (pickle|joblib|shelve|marshal|dill)\b|torch\.load\(|allow_pickle=True|\bexec\("
    )
    found = {
        path.relative_to(SOURCES).as_posix(): line
        for path in SOURCES.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if words.search(line)
    }
    assert not found


def test_yaml_makes_no_objects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for tag in ("!!python/object/apply:os.system ['touch owned']", "!!python/name:os.system", "!!set {a}"):
        (tmp_path / "r.yaml").write_text(f"name: {tag}\n")
        with pytest.raises(UserError, match=r"r\.yaml:1"):
            load_recipe("r.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.yaml"]


def test_a_models_own_code_runs_only_when_the_recipe_says_so(folder, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.PromptOffsets"}, "architectures": ["PromptOffsets"]}
    (model / "config.json").write_text(json.dumps(config))
    (model / "own.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'owned')!r}).touch()\n")
    with pytest.raises(UserError, match=r"set model\.trust_remote_code=true"):
        whole_run(folder, "other", model={"path": str(model)})
    assert not (tmp_path / "owned").exists()
    assert not recipe(folder).model.trust_remote_code
    with pytest.raises(UserError, match="its own code failed: AttributeError"):  # not a model, but its code ran
        whole_run(folder, "other", model={"path": str(model), "trust_remote_code": True})
    assert (tmp_path / "owned").exists()


def test_secrets_of_the_environment_are_written_nowhere(folder, monkeypatch, tmp_path):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "small.yaml"
    file.write_text(recipe(folder).to_yaml())
    place = ["--store", str(folder / "secrets")]
    said = [
        CliRunner().invoke(app, [command, str(file), *more, *place]).output
        for command, *more in (["run", "--jobs", "1"], ["report"], ["verify"], ["plan"])
    ]
    assert "run: " in said[0]
    written = [path.read_bytes() for path in (folder / "secrets").rglob("*") if path.is_file()]
    for text in [*written, *(line.encode() for line in said)]:
        assert not any(value.encode() in text for value in SECRETS.values())


def test_offline_contacts_nobody_even_for_a_name_on_the_hub(folder, monkeypatch):
    """HF_HUB_OFFLINE is set for all tests; this checks that it works."""
    contacted = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_: contacted.append(given))
    with pytest.raises(UserError, match="nobody/no-such-model"):
        whole_run(folder, "offline", model={"path": "nobody/no-such-model"})
    with pytest.raises(UserError, match="nobody/no-such-data"):
        load_comparisons("nobody/no-such-data", source="preference")
    assert contacted == []


def test_a_password_in_an_endpoint_is_refused(folder):
    judge = {"endpoint": "https://me:secret@example.org/v1", "model": "x"}
    with pytest.raises(ValueError, match="endpoint"):
        recipe(folder, evaluation=recipe(folder).evaluation.model_dump() | {"judge": judge})


def test_a_run_on_local_files_contacts_nobody(folder, monkeypatch):
    contacted = []

    def refused(self, address):
        contacted.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_: contacted.append(given))
    whole_run(folder, "quiet")
    assert contacted == []


def test_control_characters_are_shown_and_not_obeyed(folder, tmp_path):
    assert printable(NASTY) == r"\x1b]0;owned\x07\x1b[2J\u202egnp.exe <script>alert(1)</script>"
    assert printable("τ · q ≡ 1\n\tfine") == "τ · q ≡ 1\n\tfine"
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": [{"role": NASTY, "content": "x"}], "chosen": "a", "rejected": "b"}) + "\n")
    told = CliRunner().invoke(app, ["audit", "support", str(rows)])
    assert told.exit_code == 2
    assert "\x1b]0" not in told.output
    assert "\x07" not in told.output
    file = tmp_path / "nasty.yaml"
    judge = {"function": "tests.worlds.judges:nasty_judge"}
    given = recipe(folder).evaluation.model_dump() | {"judge": judge}
    file.write_text(recipe(folder, evaluation=given).to_yaml())
    judged = CliRunner().invoke(app, ["run", str(file), "--store", str(folder / "store"), "--jobs", "1"])
    assert judged.exit_code == 2
    assert r"cannot judge \x1b]0" in judged.output


def test_names_cannot_leave_their_folder(folder):
    for name in ("../x", "a/b", "/etc/x", "..", "a\\b", ".hidden"):
        with pytest.raises(ValueError, match=r"policies|name"):
            recipe(folder, policies={name: {"objective": "dpo"}})
        with pytest.raises(ValueError, match="name"):
            recipe(folder, name=name)


def test_text_of_models_is_text_in_the_report(folder, tmp_path):
    """`tests/report/test_report.py` checks it in a browser; here, no tag in a response becomes a tag of the page."""
    data = folder / "data.jsonl"
    text = data.read_text()
    assert "<script" not in text
    (tmp_path / "model").symlink_to(folder / "model")
    (tmp_path / "data.jsonl").write_text(text.replace('"w1 ', '"<script>alert(1)</script> w1 '))
    run = execute(open_run(recipe(tmp_path), Store(tmp_path / "store")))
    write_report(run, tmp_path / "report.html")
    assert "<script>alert" not in (tmp_path / "report.html").read_text("utf-8")


def test_readers_take_no_pickled_files(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'owned'}",)

    for name in ("x.jsonl", "x.json", "x.parquet"):
        buffer = io.BytesIO()
        pickle.dump(Evil(), buffer)
        (tmp_path / name).write_bytes(buffer.getvalue())
        with pytest.raises(UserError):
            load_comparisons(str(tmp_path / name))
    assert not (tmp_path / "owned").exists()
