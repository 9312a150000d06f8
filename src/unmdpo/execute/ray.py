"""The pool of a Ray cluster: stages are tasks, as many at once as the cluster has room for, tried again when a worker
dies. A stage shared by several ranks (`compute.ranks`) is a Ray Train job, and its ranks may be on several nodes.

Every node must be able to see the store. `RAY_ADDRESS` names the cluster; without it, Ray starts one on this machine.
"""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from unmdpo.core.errors import Stopped, UserError
from unmdpo.core.extras import needed
from unmdpo.engine.training.loop import StopRequests
from unmdpo.execute.driver import Attempt, Message, Outcome
from unmdpo.execute.local import CHECKPOINT_SECONDS, has_small_model
from unmdpo.execute.ray_tasks import RETRIES, Ear, Task, work, work_together
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.base import Stage

LISTEN_SECONDS = 0.5  # between two looks at what tasks say
ANSWER_SECONDS = 10.0  # that a cluster may take to answer
TRAINING_SHARE, READING_SHARE = 0.4, 0.2  # of a GPU, as in `gpus`: two that train, and one that reads
GIB = 2**30


class RayPool:
    queues = True
    runs_alone = False

    def __init__(self, run: Pipeline) -> None:
        with needed("the Ray executor", "ray"):
            import ray  # noqa: PLC0415 - an extra
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        if not ray.is_initialized():
            # Ray gives its workers the lowest priority, and on a machine that does anything else they hardly move
            os.environ.setdefault("RAY_worker_niceness", "0")
            check_answers(os.environ.get("RAY_ADDRESS", ""))
            environment = run.recipe.compute.ray.runtime_env or None
            ray.init(log_to_driver=False, include_dashboard=False, runtime_env=environment)
        self._ray: Any = ray
        self._run = run
        self._has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        self._are_shared = self._has_gpus and has_small_model(run)
        self._references: dict[Future[Outcome], Any] = {}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self._ear: Any = ray.remote(num_cpus=0)(Ear).options(scheduling_strategy=here).remote()
        self._heard_at = 0.0
        self._stop = StopRequests()  # a signal within Ray's own code would end in a traceback

    def __enter__(self) -> Self:
        self._stop.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Interrupts what is at work as Ctrl-C would, and gives it time to write its checkpoints."""
        self._stop.__exit__(kind, error, trace)
        running = [*self._references.values()]
        for reference in running:
            self._ray.cancel(reference)
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=CHECKPOINT_SECONDS)

    def has_room(self, stage: Stage, how: Attempt) -> bool:
        return True  # Ray lets it wait

    def submit(self, stage: Stage, how: Attempt) -> Future[Outcome]:
        wanted = self._run.recipe.compute.ray
        task = Task(
            run=self._run.folder.name,
            root=str(self._run.store.root.resolve()),
            stage=stage.name,
            here=str(Path.cwd()),
            how=how,
            on_gpus=self._has_gpus,
        )
        options: dict[str, Any] = {"num_cpus": wanted.cpus, "name": stage.name}
        remote = work
        if self._run.ranks(stage) > 1:  # its ranks ask for what they need themselves
            remote = work_together
            options["num_cpus"] = 0
        else:
            if wanted.memory is not None:
                options["memory"] = wanted.memory * GIB
            if wanted.labels:
                options["label_selector"] = wanted.labels
            if self._has_gpus and stage.uses_gpu:
                is_shared = self._are_shared and not how.alone
                options["num_gpus"] = 1.0 if not is_shared else TRAINING_SHARE if stage.kind.trains else READING_SHARE
                if wanted.gpu_type:
                    options["accelerator_type"] = wanted.gpu_type
        function = self._ray.remote(max_retries=RETRIES, retry_exceptions=False)(remote)
        reference = function.options(**options).remote(task, self._ear)
        future = Future[Outcome]()
        reference.future().add_done_callback(lambda done: future.set_result(self._outcome(done)))
        self._references[future] = reference
        return future

    def _outcome(self, done: "Future[Outcome]") -> Outcome:
        error = done.exception()
        if error is None:
            return done.result()
        return Outcome(f"its worker died {RETRIES + 1} times: {str(error).splitlines()[0]}")

    def messages(self) -> Iterator[Message]:
        if self._stop.asked is not None:
            raise Stopped(self._stop.asked)
        ended = [future for future in self._references if future.done()]
        if not ended and time.monotonic() - self._heard_at < LISTEN_SECONDS:
            return
        for future in ended:  # what its task said is heard before its outcome
            del self._references[future]
        self._heard_at = time.monotonic()
        yield from self._ray.get(self._ear.take.remote())


def check_answers(address: str) -> None:
    """Ray itself waits for minutes without a word, where nothing answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, or none: Ray looks on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"RAY_ADDRESS={address}: nothing answers there ({error.strerror or error}). Is the cluster up? `ray "
            "status` asks it; without RAY_ADDRESS, a run starts a cluster on this machine"
        ) from error
