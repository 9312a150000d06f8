"""The one driver of a run: what is ready, what runs, what is tried again, what failed. Where a stage runs is up to a
pool: processes of this machine (`local`), or tasks of a Ray cluster (`ray`)."""

import concurrent.futures
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from typing import Literal, NamedTuple, Protocol

from unmdpo.core.errors import OutOfMemory, UnmdpoWarning, UserError
from unmdpo.execute.costs import usual_microbatch
from unmdpo.execute.progress import View
from unmdpo.execute.ranks import Report, run_stage
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.base import Stage

POLL_SECONDS = 0.05  # between two looks at what workers say
TAKEN_SECONDS = 5.0  # between two looks at a stage that another run works on
SMALLEST_PART = 4  # of the usual microbatch: a fourth of it is the last try


class Attempt(NamedTuple):
    """How a stage is tried: at first beside others, then alone, then with half and a fourth of the microbatch."""

    alone: bool = False
    part: int = 1  # what the usual microbatch is divided by

    def next(self, stage: Stage) -> "Attempt | None":
        """After running out of memory; None if nothing is left to try."""
        if not self.alone:
            return Attempt(alone=True)
        has_microbatches = stage.kind.uses_model and hasattr(stage.settings, "model")
        return Attempt(alone=True, part=2 * self.part) if has_microbatches and self.part < SMALLEST_PART else None

    @property
    def why(self) -> str:
        return f"out of GPU memory; retrying {'alone' if self.part == 1 else 'with smaller microbatches'}"


class Outcome(NamedTuple):
    """What became of a stage."""

    problem: str | None = None
    out_of_memory: bool = False
    taken: bool = False  # another run works on it
    seconds: float = 0.0


class Message(NamedTuple):
    """What a worker says while it is at work."""

    kind: Literal["started", "progress", "warning"]
    stage: str
    text: str = ""


class Pool(Protocol):
    def has_room(self, stage: Stage, attempt: Attempt) -> bool: ...

    def submit(self, stage: Stage, attempt: Attempt) -> "Future[Outcome]":
        """Starts a stage for which there is room."""

    def messages(self) -> Iterable[Message]:
        """What has arrived. Raises `Stopped` if somebody wants to stop."""

    @property
    def queues(self) -> bool:
        """Whether a stage that is submitted may have to wait, and says itself when it starts."""

    @property
    def runs_alone(self) -> bool:
        """Whether there is never more than one stage at work."""


class Driver:
    def __init__(self, run: Pipeline, missing: Sequence[str], pool: Pool, view: View) -> None:
        self.run = run
        self.pool = pool
        self.view = view
        self.waiting = list(missing)
        self.running: dict[Future[Outcome], str] = {}
        self.failures: dict[str, str] = {}
        self._attempts: dict[str, Attempt] = {}  # of stages that ran out of memory
        self._started: set[str] = set()
        self._taken_until: dict[str, float] = {}  # stages that another run works on: when to look again

    def work(self) -> None:
        """Runs each stage as soon as its inputs are finished and there is room for it. If one fails, those that do not
        need it continue, and all failures are reported at the end."""
        while self.waiting or self.running:
            self._submit_what_is_ready()
            if not self.running and not self._taken_until:
                break  # the remaining stages need one that failed
            self._receive()
        if self.failures:
            raise UserError(self._said())
        if self.waiting:
            name = self.waiting[0]
            inputs = self.run.stages[name].inputs.values()
            missing = next(needed.name for needed in inputs if self.run.find(needed) is None)
            raise UserError(f"'{name}' needs '{missing}', which is not finished; run without --only")

    def _said(self) -> str:
        """All failures, and what was not started because of them."""
        lines = [f"{name}: {problem}" for name, problem in self.failures.items()]
        left = f"not started, because they need what failed: {', '.join(self.waiting)}"
        return "\n".join([*lines, *([left] if self.waiting else [])])

    def _submit_what_is_ready(self) -> None:
        now = time.monotonic()
        self._taken_until = {name: when for name, when in self._taken_until.items() if when > now}
        # a stage that wants to be alone goes first, and others that would keep it waiting do not start
        ready = sorted(self._ready(), key=lambda name: not self._attempt(name).alone)
        is_clearing = False
        for name in ready:
            stage = self.run.stages[name]
            if name not in self._attempts and self.run.find(stage) is not None:
                self.waiting.remove(name)  # its inputs were made again and came out the same
                self.view.cached(name)
                continue
            if is_clearing and stage.uses_gpu:
                continue
            how = self._attempt(name)
            if not self.pool.has_room(stage, how):
                is_clearing = is_clearing or how.alone
                continue
            self.waiting.remove(name)
            self._announce(name)
            self.running[self.pool.submit(stage, how)] = name

    def _announce(self, name: str) -> None:
        if name in self._started:
            return
        if self.pool.queues:
            self.view.queued(name)
        else:
            self._started.add(name)
            self.view.started(name)

    def _ready(self) -> list[str]:
        return [name for name in self.waiting if name not in self._taken_until and self.run.is_ready(name)]

    def _attempt(self, name: str) -> Attempt:
        return self._attempts.get(name, Attempt(alone=self.pool.runs_alone))

    def _receive(self) -> None:
        """Hears what workers say, for a moment, and takes what has ended."""
        ended, _ = concurrent.futures.wait([*self.running], timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        if not self.running:
            time.sleep(POLL_SECONDS)
        for message in self.pool.messages():
            self.hear(message)
        for future in ended:
            self._ended(self.running.pop(future), future.result())

    def hear(self, message: Message) -> None:
        name = message.stage
        if message.kind == "warning":
            warnings.warn(message.text, UnmdpoWarning, stacklevel=2)
        elif name not in self.running.values():
            return  # late words of a stage that has ended
        elif message.kind == "progress":
            self.view.progress(name, message.text)
        elif name not in self._started:
            self._started.add(name)
            self.view.started(name, message.text)
        elif name not in self._attempts:  # those know why already
            self.view.retried(name, f"its worker died; started again on {message.text}")

    def _ended(self, name: str, outcome: Outcome) -> None:
        stage = self.run.stages[name]
        if outcome.taken:
            if name not in self._started:
                self.view.progress(name, "another run works on it")
            self._taken_until[name] = time.monotonic() + TAKEN_SECONDS
            self.waiting.append(name)
            return
        following = self._attempt(name).next(stage) if outcome.out_of_memory else None
        if following is not None:
            self._attempts[name] = following
            self.waiting.append(name)
            self.view.retried(name, following.why)
            return
        problem = outcome.problem
        if problem is None and self.run.find(stage) is None:
            problem = "its artifact is not in the store: do all nodes see the same files under the same paths?"
        if problem is not None:
            self.failures[name] = problem
            self.view.failed(name, problem)
            return
        self.view.finished(name, outcome.seconds)


def with_part(run: Pipeline, stage: Stage, how: Attempt) -> Pipeline:
    """The run with the microbatches of this attempt."""
    if how.part == 1:
        return run
    return run.with_microbatch(usual_microbatch(stage, run.recipe.compute, run.ranks(stage)) // how.part)


def outcome_of(run: Pipeline, stage: Stage, how: Attempt, report: Report, devices: Sequence[str] = ()) -> Outcome:
    """Runs a stage whose inputs are finished, in a process of its own: whatever goes wrong is said to the driver. A
    stage of several ranks has each on one of the `devices`."""
    began = time.monotonic()
    try:
        run_stage(with_part(run, stage, how), stage, report, devices)
    except OutOfMemory as error:
        return Outcome(str(error), out_of_memory=True)
    except UserError as error:
        return Outcome(str(error))
    except Exception:
        return Outcome(traceback.format_exc())
    return Outcome(seconds=time.monotonic() - began)
