"""Kills, stops, full and read-only disks, damage, two runs at once. `make soak` does the same for longer."""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError
from typer.testing import CliRunner

from tests.worlds.faults import Command, contents, disturbed, disturbed_at, same_as, small_recipe
from unmdpo.cli import app
from unmdpo.core.errors import UserError
from unmdpo.execute import execute
from unmdpo.recipe import load_recipe
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

ONE = ("--jobs", "1")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return small_recipe(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def undisturbed(path):
    """The bytes of an undisturbed run, and how long it takes."""
    command = Command(path, path.parent / "undisturbed", ONE)
    assert command.wait() == 0, command.said
    return contents(command.store), command.seconds


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.soak) for number in (signal.SIGTERM, signal.SIGINT))],
    ids=lambda n: n.name,
)
def test_a_run_that_is_disturbed_ends_with_the_same_bytes(path, undisturbed, tmp_path, number):
    moment = random.Random(int(number)).uniform(0.3, 0.8) * undisturbed[1]
    disturbed(path, tmp_path / "store", number, moment, ONE)
    same_as(undisturbed[0], tmp_path / "store")


@pytest.mark.parametrize(
    ("event", "stage", "number"),
    [
        pytest.param("started", "oof", signal.SIGKILL, marks=pytest.mark.soak),
        pytest.param("finished", "pilot[1]", signal.SIGINT, marks=pytest.mark.soak),
        ("finished", "policy[dpo]", signal.SIGTERM),
    ],
)
def test_a_run_cut_between_stages_ends_with_the_same_bytes(path, undisturbed, tmp_path, event, stage, number):
    disturbed_at(path, tmp_path / "store", event, stage, number, ONE)
    same_as(undisturbed[0], tmp_path / "store")


def test_two_runs_at_once_give_one_result(path, undisturbed, tmp_path):
    both = [Command(path, tmp_path / "store", ONE) for _ in range(2)]
    assert [command.wait() for command in both] == [0, 0], both[0].said + both[1].said
    same_as(undisturbed[0], tmp_path / "store")


@pytest.mark.soak  # a run that is killed and goes on takes it over too
def test_the_lock_of_a_killed_run_is_taken_over(path, undisturbed, tmp_path):
    holder = Command(path, tmp_path / "store", ONE)
    time.sleep(0.4 * undisturbed[1])
    waiting = Command(path, tmp_path / "store", ONE)
    time.sleep(0.2 * undisturbed[1])
    holder.signal(signal.SIGKILL).wait()
    assert waiting.wait() == 0, waiting.said
    same_as(undisturbed[0], tmp_path / "store")


# --- Disks ----------------------------------------------------------------------------------------


def outcome(child):
    """What a forked child wrote, and its exit code."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        try:
            code, text = child()
            os.write(writes, text.encode()[:60_000])
            os._exit(code)
        finally:
            os._exit(99)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def command_in(path, store, prepare):
    """Runs the command in a child process that first calls `prepare`."""

    def child():
        prepare()
        done = CliRunner().invoke(app, ["run", str(path), "--store", str(store), *ONE])
        return done.exit_code, done.output

    return outcome(child)


def nobody():
    """Root may write everywhere, so switch to another user."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def test_a_file_that_cannot_grow_is_reported_and_the_run_goes_on_later(path, undisturbed, tmp_path):
    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    code, said = command_in(path, tmp_path / "store", small_files_only)
    assert code == 2, said
    assert "error: " in said
    assert "finished work is kept" in said
    assert str(tmp_path / "store") in said
    again = Command(path, tmp_path / "store", ONE)
    assert again.wait() == 0, again.said
    same_as(undisturbed[0], tmp_path / "store")


@pytest.mark.soak  # a file that cannot grow is quicker
def test_a_disk_that_is_full_and_then_has_room(path, undisturbed, tmp_path):
    """Uses a small separate file system, if the system lets us mount one."""
    store = tmp_path / "store"
    store.mkdir()
    command = f"{sys.executable} -c 'from unmdpo.cli import main; main()' run {path} --store {store} --jobs 1"
    script = f"""
        mount -t tmpfs -o size=400k tmpfs {store} || exit 77
        {command} > {tmp_path}/first.log 2>&1; echo $? > {tmp_path}/first.code
        mount -o remount,size=64m {store}
        {command} > {tmp_path}/second.log 2>&1; echo $? > {tmp_path}/second.code
        cp -r {store}/artifacts {store}/work {tmp_path}/kept/
    """
    (tmp_path / "kept").mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], check=False, capture_output=True, text=True)
    if not (tmp_path / "first.code").exists():
        pytest.skip(f"no file system of one's own here: {done.stderr[-200:]}")
    first, second = ((tmp_path / f"{which}.log").read_text() for which in ("first", "second"))
    assert (tmp_path / "first.code").read_text() == "2\n", first
    assert re.search(r"error: .*No space left on device.*run the same command again", first), first
    assert "Traceback" not in first
    assert (tmp_path / "second.code").read_text() == "0\n", second
    same_as(undisturbed[0], tmp_path / "kept")


ALL_IN_TURN = """
import json, os
from typer.testing import CliRunner
from unmdpo.cli import app
done = {name: CliRunner().invoke(app, words) for name, words in json.loads(os.environ["GIVEN"]).items()}
codes, said = ({name: getattr(one, what) for name, one in done.items()} for what in ("exit_code", "output"))
print(json.dumps([codes, said]))
"""


@pytest.mark.soak
def test_a_store_that_is_read_only_can_be_looked_at(path, undisturbed, tmp_path):
    """Mounted read-only, if the system lets us: `run` refuses, commands that only read still work."""
    store, html = path.parent / "undisturbed", tmp_path / "page.html"
    commands = {
        "run": ["run", path],
        "verify": ["verify", path],
        "report": ["report", path],
        "elsewhere": ["report", path, "--out", html],
        "compare": ["compare", path, "dpo", "unm-wr"],
    }
    given = {name: [*map(str, words), "--store", str(store)] for name, words in commands.items()}
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    script = f'mount --bind {store} {store} && mount -o remount,ro,bind {store} && exec $PYTHON -c "$ALL"'
    environment = os.environ | {"PYTHON": sys.executable, "ALL": ALL_IN_TURN, "GIVEN": json.dumps(given)}
    command = ["unshare", "-rm", "sh", "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if not done.stdout:
        pytest.skip(f"no mounts of one's own here: {done.stderr[-200:]}")
    codes, said = json.loads(done.stdout)
    assert codes == {"run": 2, "verify": 0, "report": 2, "elsewhere": 0, "compare": 0}, said
    assert f"{store}: cannot keep a store here: it is not writable" in said["run"]
    assert re.search(r"report\.html: Read-only file system", said["report"]), said["report"]
    assert html.exists()


def test_a_store_nobody_may_write_to_is_reported():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)

        def child():
            nobody()
            try:
                Store(Path(folder)).make("policy/1", {}, lambda folder: {})
            except UserError as error:
                return 2, str(error)
            return 0, "written"

        assert outcome(child) == (2, f"{folder}: cannot keep a store here: Permission denied")


def test_a_store_where_a_file_is(path, tmp_path):
    (tmp_path / "store").write_text("")
    done = CliRunner().invoke(app, ["run", str(path), "--store", str(tmp_path / "store")])
    assert done.exit_code == 2
    assert "cannot keep a store here" in done.output


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: no space (os error 28)")]
)
def test_a_full_disk_is_reported_with_the_way_out(tmp_path, error):
    def work(folder):
        raise error

    with pytest.raises(UserError, match=r"(?i)no space.*run the same command again"):
        Store(tmp_path).make("policy/1", {}, work)


@pytest.mark.soak  # files are renamed everywhere
def test_hard_links_are_not_needed(path, undisturbed, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refused)
    execute(open_run(load_recipe(str(path)), Store(tmp_path / "store")))
    assert contents(tmp_path / "store").keys() == undisturbed[0].keys()


def test_a_clock_that_jumps_back_changes_nothing(tmp_path, monkeypatch):
    clock = iter([2e9, 1e9, 1e9, 1e9])
    monkeypatch.setattr("time.time", lambda: next(clock))
    artifact = Store(tmp_path).make("policy/1", {}, lambda folder: {})
    assert artifact.manifest["seconds"] >= 0


# --- Damage ---------------------------------------------------------------------------------------


def cut(file):
    file.write_bytes(file.read_bytes()[:-7])


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def delete(file):
    file.unlink()


@pytest.mark.parametrize(
    ("stage", "name", "harm"),
    [
        pytest.param("reference", "reference.safetensors", cut, marks=pytest.mark.soak),
        ("policy[dpo]", "model/model.safetensors", flip),
        pytest.param("policy[dpo]", "model/model.safetensors", delete, marks=pytest.mark.soak),
        pytest.param("oof", "manifest.json", flip, marks=pytest.mark.soak),
        pytest.param("oof", "manifest.json", delete, marks=pytest.mark.soak),
    ],
)
def test_damage_is_found_when_it_is_read_and_repaired_by_the_same_command(
    path, undisturbed, tmp_path, stage, name, harm
):
    store = Store(tmp_path / "store")
    goes_well(path, store, "--until", "policy")
    stages = open_run(load_recipe(str(path)), store).stages
    harm(store.root / "artifacts" / stages[stage].place / name)
    if stage == "oof":  # read again only if something that needs it is missing
        store.remove(stages["scale[seq]"].place)
    if stage == "reference":
        store.remove(stages["policy[dpo]"].place)
    if (name, harm) != ("manifest.json", delete):  # without a manifest it does not count as finished
        found = Command(path, store.root, ONE)
        assert found.wait() == 2
        assert re.search(r"damaged: .*kept as .*the same command rebuilds it", found.said), found.said
        assert len([*store.root.glob("artifacts/*/*.damaged")]) == 1
    goes_well(path, store)
    same_as(undisturbed[0], store.root)


def goes_well(path, store, *options):
    command = Command(path, store.root, (*ONE, *options))
    assert command.wait() == 0, command.said


def test_a_half_written_folder_is_not_taken_for_finished(path, undisturbed, tmp_path):
    store = Store(tmp_path / "store")
    stages = open_run(load_recipe(str(path)), store).stages
    folder = store.root / "artifacts" / stages["encoded"].place
    folder.mkdir(parents=True)
    (folder / "pairs.safetensors").write_bytes(b"half")
    goes_well(path, store)
    same_as(undisturbed[0], store.root)


@pytest.mark.soak  # tests/stages/test_keys.py has a quicker one
def test_what_lies_about_in_work_is_no_part_of_a_result(path, undisturbed, tmp_path):
    """Left by a kill just before a rename, by an earlier version, or by somebody."""
    store = Store(tmp_path / "store")
    for stage in open_run(load_recipe(str(path)), store).stages.values():
        work = store.root / "work" / stage.key
        for place in ("", "result", "result/model", "state", "state/checkpoints/update-00000001"):
            (work / place).mkdir(parents=True, exist_ok=True)
            for name in (".prompts.json.4711.partial", ".summary.json.4711", "notes.txt", "manifest.json"):
                (work / place / name).write_text("stray")
        (work / "result" / "link").symlink_to(tmp_path)
        for name in ("part-0", "answers.jsonl", "batches.jsonl"):
            (work / "state" / name).write_bytes(b"\xff\x00 no work of ours")
    goes_well(path, store)
    same_as(undisturbed[0], store.root)
    assert path.exists()  # and nothing was removed behind a link


def test_files_have_the_users_umask(path, tmp_path):
    def child():
        os.umask(0o027)
        done = CliRunner().invoke(app, ["run", str(path), "--store", str(tmp_path / "store"), *ONE])
        modes = {
            oct(file.stat().st_mode & 0o777)
            for file in (tmp_path / "store" / "artifacts").rglob("*")
            if file.is_file()
        }
        return done.exit_code, " ".join(sorted(modes))

    assert outcome(child) == (0, "0o640")
