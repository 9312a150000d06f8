"""Runs stages as Ray tasks: as many at once as the cluster has room for, retried when a worker dies.

A stage shared by several ranks (`compute.ranks`) is a Ray Train job, and its ranks may be on several nodes.

Every node must be able to see the store. `RAY_ADDRESS` names the cluster; without it, Ray starts one on this machine.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmdpo.core.errors import Stopped
from unmdpo.core.extras import needed
from unmdpo.engine.training.loop import StopRequests
from unmdpo.execute.gpu_scheduler import Attempt, Need, fraction, need_of
from unmdpo.execute.local import raise_failures
from unmdpo.execute.progress import View, expected_seconds
from unmdpo.execute.ray_nodes import Gpus, check_answers, look_at_nodes, most_suitable
from unmdpo.execute.ray_tasks import RETRIES, Ear, Outcome, Task, work, work_together
from unmdpo.execute.workers import PATIENCE
from unmdpo.stages.pipeline import Pipeline

STEP = 0.5  # seconds between two looks at what tasks say, and at whether somebody wants to stop
AGAIN = 5.0  # seconds between two looks at a stage that another run works on
GIB = 2**30


def work_on_ray(run: Pipeline, missing: Sequence[str], view: View) -> None:
    """Runs the missing stages, each as soon as its inputs are finished."""
    with needed("the Ray executor", "ray"):
        import ray  # noqa: PLC0415 - an extra
    if not ray.is_initialized():
        # Ray gives its workers the lowest priority, and on a machine that does anything else they hardly move
        os.environ.setdefault("RAY_worker_niceness", "0")
        check_answers(os.environ.get("RAY_ADDRESS", ""))
        environment = run.recipe.compute.ray.runtime_env or None
        ray.init(log_to_driver=False, include_dashboard=False, runtime_env=environment)
    gpus = look_at_nodes(run.store.root.resolve(), run.recipe.compute.ray.gpu_type)
    if len(gpus) > 1:
        view.noted("GPUs: " + ", ".join(f"{g.count:g} × {g.kind} of {g.memory / GIB:.0f} GiB" for g in gpus))
    driver = _Driver(run, missing, view, gpus)
    with StopRequests() as stop:  # a signal within Ray's own code would end in a traceback
        while driver.waiting or driver.running:
            driver.submit_what_is_ready()
            if not driver.running and not driver.later:
                break  # the remaining stages need one that failed
            driver.receive()
            if stop.asked is not None:
                _cancel([*driver.running])
                raise Stopped(stop.asked)
    raise_failures(driver.failures, driver.waiting)


class _Driver:
    """The stages of a run, and the tasks that do them."""

    def __init__(self, run: Pipeline, missing: Sequence[str], view: View, gpus: list[Gpus]) -> None:
        import ray  # noqa: PLC0415 - an extra
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        self.run, self.view, self.gpus, self.waiting = run, view, gpus, list(missing)
        self.running, self.failures = dict[Any, str](), dict[str, str]()
        self.later = dict[str, float]()  # stages that another run works on: when to look again
        self.attempts, self.given = dict[str, Attempt](), dict[str, tuple[Gpus, float]]()
        self.began = set[str]()  # stages that have started, here or there
        self._expected = not view.wants_estimates
        self._run, self._root = run.folder.name, str(run.store.root.resolve())
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self._ear: Any = ray.remote(num_cpus=0)(Ear).options(scheduling_strategy=here).remote()
        retried = ray.remote(max_retries=RETRIES, retry_exceptions=False)
        self._alone, self._shared = retried(work), retried(work_together)

    def submit_what_is_ready(self) -> None:
        now = time.monotonic()
        for name in [name for name, when in self.later.items() if when <= now]:
            del self.later[name]
            self.waiting.append(name)
        for name in [name for name in self.waiting if name not in self.failures and self.run.is_ready(name)]:
            self.waiting.remove(name)
            if name not in self.attempts and self.run.find(self.run.stages[name]) is not None:
                self.view.cached(name)  # its inputs were made again and came out the same
                continue
            self.running[self._submit(name)] = name
            if name not in self.attempts and name not in self.began:
                self.view.queued(name)

    def _submit(self, name: str) -> Any:
        need, wanted = self._placed(name), self.run.recipe.compute.ray
        on_gpus, attempt = bool(self.gpus), self.attempts.get(name, Attempt())
        task = Task(self._run, self._root, name, str(Path.cwd()), attempt.tokens(need), on_gpus)
        if self.run.ranks(self.run.stages[name]) > 1:  # its ranks ask for what they need themselves
            return self._shared.options(num_cpus=0, name=name).remote(task, self._ear)
        options: dict[str, Any] = {"num_cpus": wanted.cpus, "name": name}
        if wanted.memory is not None:
            options["memory"] = wanted.memory * GIB
        if wanted.labels:
            options["label_selector"] = wanted.labels
        if name in self.given:
            kind, share = self.given[name]
            options["num_gpus"] = share
            if share and kind.kind is not None and (len(self.gpus) > 1 or wanted.gpu_type):
                options["accelerator_type"] = kind.kind
        return self._alone.options(**options).remote(task, self._ear)

    def _placed(self, name: str) -> Need:
        """Gives the stage its share of a kind of GPU, and returns what it needs there."""
        if not self.gpus:
            return Need()
        stage, attempt = self.run.stages[name], self.attempts.get(name, Attempt())
        needs = {kind.kind: need_of(self.run, stage, kind.memory) for kind in self.gpus}
        chosen = most_suitable(self.gpus, needs)
        need = needs[chosen.kind]
        share = 1.0 if attempt.alone else fraction(need, chosen.memory)
        chosen.load += share * need.devices
        self.given[name] = (chosen, share)
        return need

    def receive(self) -> None:
        """Hears what tasks say, for a moment, and takes what has ended."""
        import ray  # noqa: PLC0415 - an extra

        if not self.running:
            time.sleep(STEP)
            return
        done, _ = ray.wait([*self.running], num_returns=1, timeout=STEP)
        for name, kind, text in ray.get(self._ear.take.remote()):
            self._heard(name, kind, text)
        for reference in done:
            name = self.running.pop(reference)
            if name in self.given:
                kind_of_gpu, share = self.given[name]
                kind_of_gpu.load -= share * self.run.ranks(self.run.stages[name])
            try:
                outcome: Outcome = ray.get(reference)
            except ray.exceptions.RayError as error:
                why = str(error).splitlines()[0]
                outcome = Outcome(f"its worker died {RETRIES + 1} times: {why}")
            self._ended(name, outcome)

    def _heard(self, name: str, kind: str, text: str) -> None:
        if kind == "progress":
            self.view.progress(name, text)
        elif name not in self.began:
            self.began.add(name)
            self.view.started(name, text)
        elif name not in self.attempts:  # those know why already
            self.view.retried(name, f"its worker died; started again on {text}")

    def _ended(self, name: str, outcome: Outcome) -> None:
        if outcome.taken:
            if name not in self.began:
                self.view.progress(name, "another run works on it")
            self.later[name] = time.monotonic() + AGAIN
            return
        if outcome.full and self.gpus:
            need = need_of(self.run, self.run.stages[name], self.given[name][0].memory)
            following = self.attempts.get(name, Attempt()).next(need)
            if following is not None:
                self.attempts[name] = following
                self.waiting.append(name)
                self.view.retried(name, following.why)
                return
        problem = outcome.problem
        if problem is None and self.run.find(self.run.stages[name]) is None:
            problem = "its artifact is not in the store: do all nodes see the same files under the same paths?"
        if problem is not None:
            self.failures[name] = problem
            self.view.failed(name, problem)
            return
        self.view.finished(name, outcome.seconds)
        if not self._expected:
            left = [*self.waiting, *self.running.values(), *self.later]
            seconds = expected_seconds(self.run, left)
            self._expected = bool(seconds)
            self.view.expected(seconds)


def _cancel(running: list[Any]) -> None:
    """Interrupts what is at work as Ctrl-C would, and gives it time to write its checkpoints."""
    import ray  # noqa: PLC0415 - an extra

    for reference in running:
        ray.cancel(reference)
    ray.wait(running, num_returns=len(running), timeout=PATIENCE)
