"""`unmdpo run` in a separate process, to be killed or stopped; what it leaves is compared byte by byte."""

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from pathlib import Path

from tests.worlds.pipeline import recipe, world
from unmdpo.cli import main
from unmdpo.engine.training.loop import THROUGHPUT
from unmdpo.execute.progress import Lines
from unmdpo.store.artifact import DAMAGED

LINE = "stopped; finished work is kept, and the same command continues from there"
EARLY = 1.0  # seconds
VOLATILE = ("started", "seconds", "seal")
CHANGE = "change"  # an event of `Command.deadly`: the place among all changes stands for the stage
CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
UNTIL = ("--until", "pilot[0]", "--jobs", "1")


def small_recipe(folder, **changes):
    """Six updates with a checkpoint after each, so a kill falls between checkpoints."""
    world(folder)
    training = {"updates": 6, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
    given = {"training": training, "compute": {"checkpoint_minutes": 1e-6}} | changes
    described = recipe(folder, **given)
    path = folder / "small.yaml"
    path.write_text(described.to_yaml())
    return path


def contents(store):
    """Every finished artifact: name → digest of its bytes, leaving out recorded times and what was found damaged."""
    found = {}
    for path in sorted((store / "artifacts").rglob("*")):
        if path.is_dir() or path.name == THROUGHPUT or DAMAGED in path.as_posix():
            continue
        data = path.read_bytes()
        if path.name == "manifest.json":
            said = {key: value for key, value in json.loads(data).items() if key not in VOLATILE}
            said["files"].pop(THROUGHPUT, None)
            data = json.dumps(said, sort_keys=True).encode()
        found[path.relative_to(store).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


@dataclass
class Command:
    """One `unmdpo run`, started immediately."""

    recipe: Path
    store: Path
    options: tuple[str, ...] = ()
    deadly: tuple[str, str, int] = ("", "", 0)  # the event and stage at which it signals itself, and the signal
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.worlds.faults"])
        self.log = self.store.with_name(f"{self.store.name}-{time.monotonic_ns()}.log")
        given = ["run", str(self.recipe), "--store", str(self.store), *self.options]
        self.process = context.Process(target=_work, args=(given, str(self.log), self.deadly))
        self.process.start()

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return self

    def wait(self, seconds=600):
        """The exit code, negative for a signal."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"still running after {seconds} s:\n{self.said}")
        self.seconds = time.monotonic() - self.began
        return self.process.exitcode

    @property
    def said(self):
        return self.log.read_text("utf-8") if self.log.exists() else ""


def _work(given, log, deadly):
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
    with Path(log).open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    event, stage, number = deadly
    if event == CHANGE:
        _dies_before_change(Path(given[given.index("--store") + 1]), int(stage), number, Path(f"{log}.changes"))
    elif event:
        usual = getattr(Lines, event)

        def die(self, name, *rest):
            if name == stage:
                os.kill(os.getpid(), number)
            usual(self, name, *rest)

        setattr(Lines, event, die)
    sys.argv = ["unmdpo", *given]
    main()


def _dies_before_change(store, place, number, counted):
    """Sends a signal just before one of the changes of the store's files, counted from 1; and writes how many there
    were, if it lives to the end. Locks do not count."""
    changes, inside = itertools.count(1), f"{store.resolve()}{os.sep}"

    def heard(event, arguments):
        writes = event in CHANGES and (event != "open" or (arguments[2] or 0) & WRITING)
        if writes and any(_is_kept(one, inside) for one in arguments) and next(changes) == place:
            os.kill(os.getpid(), number)

    sys.addaudithook(heard)
    Finalize(None, lambda: counted.write_text(str(next(changes) - 1)), exitpriority=1)


def _is_kept(path, inside):
    return str(path).startswith(inside) and not str(path).startswith(f"{inside}locks")


def same_as(undisturbed, store):
    """Nothing missing, nothing extra, every byte equal, nothing left unfinished."""
    found = contents(store)
    assert found.keys() == undisturbed.keys()
    assert found == undisturbed, [name for name in found if found[name] != undisturbed[name]]
    assert list((store / "work").iterdir()) == []


def ended_as_asked(command, code, number):
    """Killed by the signal itself, or ended with its exit code and one line."""
    if number == signal.SIGKILL:
        assert code == -number, command.said
        return
    assert code == 128 + number, (code, command.said)
    assert command.said.splitlines()[-1] == LINE
    assert "Traceback" not in command.said


def goes_on(path, store, options):
    again = Command(path, store, options)
    assert again.wait() == 0, again.said


def disturbed(path, store, number, moment, options=()):
    """Sends a signal after `moment` seconds and runs again; returns how the first attempt ended."""
    first = Command(path, store, options)
    time.sleep(moment)
    code = first.signal(number).wait()
    if first.said and code != 0:
        ended_as_asked(first, code, number)
    elif code != 0:
        assert moment < EARLY  # Python itself had not started yet
    goes_on(path, store, options)
    return code


def disturbed_at(path, store, event, stage, number, options):
    """The same at a stage boundary: a signal just before or just after a stage."""
    first = Command(path, store, options, (event, stage, number))
    ended_as_asked(first, first.wait(), number)
    goes_on(path, store, options)


def two_ranks(folder, minutes):
    compute = {"checkpoint_minutes": 1e-6, "ranks": 2, "rank_minutes": minutes}
    return small_recipe(folder, compute=compute, pilots={"folds": 2, "updates": 20})


def ranks_at_work(folder):
    """Process ids of the ranks whose command names a store in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "unmdpo.execute.ranks" in words and "torch.distributed.run" not in words:
            found += [int(path.parent.name)] if any(str(folder) in word for word in words) else []
    return found


def wait_for_training(folder):
    """Waits until both ranks are training the pilot and its first checkpoint is written."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if list((folder / "store" / "work").glob("*/state/checkpoints/*")) and len(ranks_at_work(folder)) == 2:
            return ranks_at_work(folder)
        time.sleep(0.05)
    raise TimeoutError("no checkpoint")


def loses_a_rank(folder, harm, minutes):
    """Kills or freezes one of two ranks while they train: this is reported in one line, and the next run finishes."""
    path = two_ranks(folder, minutes)
    command = Command(path, folder / "store", UNTIL)
    os.kill(wait_for_training(folder)[1], harm)
    assert command.wait(600) == 2, command.said
    told = command.said.splitlines()[-1]
    assert "one of 2 ranks was lost" in told
    assert "the same command continues from there" in told
    assert "Traceback" not in command.said
    assert not ranks_at_work(folder)
    again = Command(path, folder / "store", UNTIL)
    assert again.wait(600) == 0, again.said
    return path
