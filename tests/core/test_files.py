"""Small files: what is no such file is a sentence, and nothing waits for ever."""

import os
from pathlib import Path

import pytest

from unmdpo.core import files
from unmdpo.core.files import read_sealed, read_small, read_small_json, sync, with_seal, write_json


def test_what_is_no_small_file(tmp_path, monkeypatch):
    pipe, large, bytes_, deep = (tmp_path / name for name in ("pipe", "large", "bytes", "deep"))
    os.mkfifo(pipe)
    large.write_text("x" * 65)
    bytes_.write_bytes(b"a\xffb")
    deep.write_text("[" * 200_000)
    monkeypatch.setattr(files, "SMALL", 64)
    for path, says in (
        (pipe, "this is not a file"),
        (tmp_path, "this is not a file"),
        (large, "65 bytes are too many"),
        (bytes_, r"not UTF-8 text \(byte 1\)"),
    ):
        with pytest.raises(ValueError, match=says):
            read_small(path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="nested too deeply"):
        read_small_json(deep)
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none")


def test_what_is_sealed_is_exactly_what_was_written(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, with_seal({"a": 1}))
    assert read_sealed(path)["a"] == 1
    path.write_text(path.read_text().replace("1", "2", 1))
    assert read_sealed(path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_sealed(path) is None


def test_every_file_of_a_folder_is_flushed(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / name).write_text("x")
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(str(Path(f"/dev/fd/{handle}").readlink())))
    sync(tmp_path)
    assert {*flushed} == {str(path) for path in [tmp_path, *tmp_path.rglob("*")]}
    assert flushed[-1] == str(tmp_path)  # last, since it names the others
