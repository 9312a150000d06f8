"""`unmdpo run` in a process of its own, to be killed or stopped, and what it leaves compared byte by byte."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import unmdpo.pipeline.run
import unmdpo.pipeline.workers  # noqa: F401
from tests.pipeline_world import recipe, world
from unmdpo.cli import main
from unmdpo.pipeline.store import TIMINGS
from unmdpo.pipeline.view import Lines

LINE = "stopped; what is done is kept, and the same command goes on from there"
EARLY = 1.0  # seconds
VOLATILE = ("started", "seconds", "seal")


def small_recipe(folder, **changes):
    """Six updates with a checkpoint after each, so that a kill falls between checkpoints."""
    world(folder)
    training = {"updates": 6, "batch": 8, "learning_rate": 1e-3, "warmup": 1}
    given = {"training": training, "compute": {"checkpoint_minutes": 1e-6}} | changes
    described = recipe(folder, **given)
    path = folder / "small.yaml"
    path.write_text(described.to_yaml())
    return path


def contents(store):
    """Every finished artifact: name → digest of its bytes, without what tells times."""
    found = {}
    for path in sorted((store / "artifacts").rglob("*")):
        if path.is_dir() or path.name == TIMINGS:
            continue
        data = path.read_bytes()
        if path.name == "manifest.json":
            said = {key: value for key, value in json.loads(data).items() if key not in VOLATILE}
            said["files"].pop(TIMINGS, None)
            data = json.dumps(said, sort_keys=True).encode()
        found[path.relative_to(store).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


@dataclass
class Command:
    """One `unmdpo run`, started at once."""

    recipe: Path
    store: Path
    options: tuple[str, ...] = ()
    deadly: tuple[str, str, int] = ("", "", 0)  # an event and a stage at which it signals itself, and how
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.faults"])
        self.log = self.store.with_name(f"{self.store.name}-{time.monotonic_ns()}.log")
        given = ["run", str(self.recipe), "--store", str(self.store), *self.options]
        self.process = context.Process(target=_work, args=(given, str(self.log), self.deadly))
        self.process.start()

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return self

    def wait(self, seconds=240):
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    with Path(log).open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    event, stage, number = deadly
    if event:
        usual = getattr(Lines, event)

        def die(self, name, *rest):
            if name == stage:
                os.kill(os.getpid(), number)
            usual(self, name, *rest)

        setattr(Lines, event, die)
    sys.argv = ["unmdpo", *given]
    main()


def same_as(undisturbed, store):
    """Nothing missing, nothing more, every byte equal, nothing left half-made."""
    found = contents(store)
    assert found.keys() == undisturbed.keys()
    assert found == undisturbed, [name for name in found if found[name] != undisturbed[name]]
    assert list((store / "work").iterdir()) == []


def ended_as_asked(command, code, number):
    """By the signal itself, or with its exit code and one line."""
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
    """Sends a signal after so many seconds and runs again; how the first try ended."""
    first = Command(path, store, options)
    time.sleep(moment)
    code = first.signal(number).wait()
    if first.said and code != 0:
        ended_as_asked(first, code, number)
    elif code != 0:
        assert moment < EARLY  # Python itself had not begun yet
    goes_on(path, store, options)
    return code


def disturbed_at(path, store, event, stage, number, options):
    """The same at a boundary: a signal just before or just after a stage."""
    first = Command(path, store, options, (event, stage, number))
    ended_as_asked(first, first.wait(), number)
    goes_on(path, store, options)
