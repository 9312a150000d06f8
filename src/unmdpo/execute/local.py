"""Runs stages on this machine: one after another in this process, or several at once in processes of their own, as
many as fit on the GPUs."""

import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from unmdpo.core.errors import OutOfMemory, Stopped, UnmdpoWarning, UserError
from unmdpo.core.processes import cores
from unmdpo.engine.cost import USABLE, available
from unmdpo.execute.gpu_scheduler import Attempt, GpuScheduler, Memory, Need, gpu_memory, gpu_names, need_of
from unmdpo.execute.mps import shared_gpus
from unmdpo.execute.progress import View
from unmdpo.execute.ranks import run_stage
from unmdpo.execute.workers import Message, Worker, Workers, free_memory
from unmdpo.stages.pipeline import Pipeline

POLL = 0.05  # seconds
PER_GPU = 8  # stages at once, at most


def default_jobs(run: Pipeline) -> int:
    """The most stages at once: several on each GPU, as far as they fit; without GPUs, one on each core, but no more
    than fit into memory if all were as large as the largest; divided by the ranks of a stage."""
    compute, gpus = run.recipe.compute, torch.cuda.device_count()
    ranks = max([compute.ranks, *compute.ranks_of.values()])
    if gpus:
        return max(2, PER_GPU * gpus // ranks)
    memory, pair = available(torch.device("cpu")), 2 * run.recipe.data.max_length
    largest = max(need_of(run.with_microbatch(pair), stage, memory).memory for stage in run.stages.values())
    return max(1, min(cores() // ranks, int(USABLE * memory // max(1.0, largest))))


def one_by_one(run: Pipeline, missing: Sequence[str], view: View) -> None:
    """Runs the missing stages; one that runs out of memory is run again with smaller microbatches."""
    for name in missing:
        stage, attempt, need, began = run.stages[name], Attempt(alone=True), Need(), time.monotonic()
        if run.find(stage) is not None:  # its inputs were made again and came out the same
            view.cached(name)
            continue
        view.started(name)
        while True:
            try:
                run_stage(run.with_microbatch(attempt.tokens(need)), stage, partial(view.progress, name))
                break
            except OutOfMemory:
                need = need_of(run, stage, _memory())
                following = attempt.next(need)
                if following is None:
                    raise
                attempt = following
            free_memory()  # after the error, which holds on to what was on the device
            view.retried(name, attempt.why)
        view.finished(name, time.monotonic() - began)


def _memory() -> float:
    return float(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else float("inf")


def side_by_side(run: Pipeline, missing: Sequence[str], jobs: int, view: View) -> None:
    """Runs the missing stages, each as soon as its inputs are finished and there is room for it. If one fails, those
    that do not need it continue, and all failures are reported at the end."""
    crew = _Crew(run, missing, jobs, view)
    with shared_gpus(wanted=crew.has_gpus) as environment, crew.workers.stopped_at_the_end():
        crew.find_gpus(environment)
        try:
            crew.work()
        except (KeyboardInterrupt, Stopped):
            view.noted("stopping: running stages save their progress")
            raise
    raise_failures(crew.failures, crew.waiting)


def raise_failures(failures: Mapping[str, str], waiting: Sequence[str]) -> None:
    """Raises an error if any stage failed, and says what was not started because of it."""
    if waiting and not failures:
        raise UserError(f"the inputs of {', '.join(waiting[:4])} are not finished; run without --only")
    if failures:
        lines = [f"{name}: {problem}" for name, problem in failures.items()]
        left = f"\nnot started, because they need what failed: {', '.join(waiting)}" if waiting else ""
        raise UserError("\n".join(lines) + left)


class _Crew:
    """The stages of a run and the workers that do them."""

    def __init__(self, run: Pipeline, missing: Sequence[str], jobs: int, view: View) -> None:
        self.run, self.jobs, self.view, self.waiting = run, jobs, view, list(missing)
        self.failures, self.attempts, self._needs = dict[str, str](), dict[str, Attempt](), dict[str, Need]()
        gpus = gpu_names()
        self.has_gpus, self.workers = bool(gpus), Workers(run, jobs, gpus)
        self._total, self.gpus = float("inf"), GpuScheduler([float("inf")])

    def work(self) -> None:
        while self.waiting or self.workers.busy:
            self.start_what_fits()
            self.receive()
            self.notice_dead_workers()
            if self.stuck:
                return  # the remaining stages need one that failed
            time.sleep(POLL)

    def find_gpus(self, environment: Mapping[str, str]) -> None:
        """Finds out how much memory they have, and whether workers can use them in this environment."""
        if self.has_gpus and self.waiting:
            memory = self._ask_gpus(environment)
            if memory is None:  # perhaps only no fork can use them
                self.workers.spawn_from_now_on()
                memory = self._ask_gpus(environment)
            if memory is None:
                raise UserError("the GPUs do not answer; `nvidia-smi` may say why")
            self._total = max(gpu.total for gpu in memory)
            self.gpus = GpuScheduler([USABLE * gpu.free for gpu in memory])

    def _ask_gpus(self, environment: Mapping[str, str]) -> list[Memory] | None:
        for self.workers.environment in (environment, {}) if environment else ({},):
            memory = gpu_memory(self.workers.context, self.workers.environment)
            if memory is not None:
                return memory
        return None

    @property
    def ready(self) -> list[str]:
        """Those whose inputs are finished, and whose inputs' workers have said so: an end is shown before what follows
        begins."""
        busy = {worker.stage for worker in self.workers.busy}
        return [name for name in self.waiting if name not in self.failures and self._is_ready(name, busy)]

    def _is_ready(self, name: str, busy: set[str | None]) -> bool:
        needed = {stage.name for stage in self.run.stages[name].inputs.values()}
        return not needed & busy and self.run.is_ready(name)

    @property
    def stuck(self) -> bool:
        return bool(self.waiting) and not self.workers.busy and not self.ready

    def start_what_fits(self) -> None:
        for name in self.ready:
            if name not in self.attempts and self.run.find(self.run.stages[name]) is not None:
                self.waiting.remove(name)  # its inputs were made again and came out the same
                self.view.cached(name)
        ready = sorted(
            self.ready, key=lambda name: not self._attempt(name).alone
        )  # who needs the GPU alone goes first
        clearing = False  # for one that waits to be alone, and would have to wait longer for others
        for name in ready:
            if len(self.workers.busy) == self.jobs:
                return
            if clearing and not self._need(name).free:
                continue
            attempt = self._attempt(name)
            devices = self.gpus.take(name, self._need(name), alone=attempt.alone)
            if devices is not None:
                self._start(name, devices, attempt)
            clearing |= devices is None and attempt.alone

    def _attempt(self, name: str) -> Attempt:
        return self.attempts.get(name, Attempt())

    def _need(self, name: str) -> Need:
        if name not in self._needs:
            stage = self.run.stages[name]
            self._needs[name] = need_of(self.run, stage, self._total) if self.has_gpus else Need()
        return self._needs[name]

    def _start(self, name: str, devices: tuple[int, ...], attempt: Attempt) -> None:
        self.waiting.remove(name)
        if attempt.alone:
            self.workers.end_idle(devices)
        needed = self.has_gpus and not self._need(name).free  # a worker that has used a GPU holds a little of it
        worker = self.workers.worker_for(devices if needed else ())
        worker.start(name, self.workers.threads[name], attempt.tokens(self._need(name)), time.monotonic())
        if name not in self.attempts:
            self.view.started(name)

    def receive(self) -> None:
        for message in self.workers.messages():
            if message.kind == "warning":
                warnings.warn(message.text, UnmdpoWarning, stacklevel=2)
            elif message.kind == "progress":
                self.view.progress(message.stage, message.text)
            else:
                self._ended(message)

    def _ended(self, message: Message) -> None:
        worker = next((each for each in self.workers.busy if each.stage == message.stage), None)
        if worker is None:
            return
        if message.kind == "done":
            self._release(worker)
            self.view.finished(message.stage, time.monotonic() - worker.began)
            return
        self.workers.remove(worker)
        self._release(worker)
        attempt = self._attempt(message.stage).next(self._need(message.stage))
        if attempt is None or message.kind != "out of memory":
            self._fail(message.stage, message.text)
            return
        self.attempts[message.stage] = attempt
        self.waiting.append(message.stage)
        self.view.retried(message.stage, attempt.why)

    def notice_dead_workers(self) -> None:
        for worker in [each for each in self.workers.all if not each.process.is_alive()]:
            self.receive()
            if worker not in self.workers.all:
                continue
            self.workers.remove(worker)
            if worker.stage is None:
                continue
            name, code = worker.stage, worker.process.exitcode
            self._release(worker)
            if self.run.find(self.run.stages[name]) is not None:
                self.view.finished(name, time.monotonic() - worker.began)
                continue
            killed = f"its process was killed by signal {-code}" if code and code < 0 else None
            self._fail(name, killed or f"its process ended with code {code}")

    def _release(self, worker: Worker) -> None:
        assert worker.stage is not None
        self.gpus.release(worker.stage)
        worker.stage = None

    def _fail(self, name: str, problem: str) -> None:
        self.failures[name] = problem
        self.view.failed(name, problem)
