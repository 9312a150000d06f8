"""Runs stages as Ray tasks: as many at once as the cluster has room for, retried when a worker dies.

A stage shared by several ranks (`compute.ranks`) is a Ray Train job, and its ranks may be on several nodes.

Every node must be able to see the store. `RAY_ADDRESS` names the cluster; without it, Ray starts one on this machine.
"""

import os
import secrets
import socket
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmdpo.core.errors import OutOfMemory, Stopped, UserError
from unmdpo.engine.training.loop import StopRequests
from unmdpo.execute.gpu_scheduler import Attempt, Need, fraction, need_of
from unmdpo.execute.local import raise_failures
from unmdpo.execute.plan import MEMORY
from unmdpo.execute.progress import View
from unmdpo.execute.ranks import take_part
from unmdpo.execute.workers import PATIENCE
from unmdpo.recipe import Recipe
from unmdpo.stages.pipeline import Pipeline, open_pipeline
from unmdpo.store.store import Store

FULL_GPU = "out of memory: "  # how a rank's problem begins that more room would solve
ANSWER, SEEN = 10.0, 300.0  # seconds that a cluster, and a look at the store, may take
STEP = 0.5  # seconds between two looks at whether somebody wants to stop
RETRIES = 2  # of a stage whose worker died; errors raised by the stage are not retried


def work_on_ray(run: Pipeline, missing: Sequence[str], view: View) -> None:
    """Runs the missing stages, each as soon as its inputs are finished."""
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError("the Ray executor needs Ray: pip install 'unmdpo[ray]'") from error
    if not ray.is_initialized():
        # Ray gives its workers the lowest priority, and on a machine that does anything else they hardly move
        os.environ.setdefault("RAY_worker_niceness", "0")
        _check_answers(os.environ.get("RAY_ADDRESS", ""))
        ray.init(log_to_driver=False, include_dashboard=False)
    _check_seen_everywhere(run.store.root.resolve())
    on_gpus = ray.cluster_resources().get("GPU", 0) >= 1  # type: ignore[no-untyped-call]
    retried = ray.remote(max_retries=RETRIES, retry_exceptions=False)
    alone, shared = retried(_work), retried(_work_together)
    waiting = list(missing)
    running, failures = dict[Any, tuple[str, float]](), dict[str, str]()
    recipe, root, here = run.recipe.model_dump_json(), str(run.store.root.resolve()), str(Path.cwd())
    memory, attempts = _gpu_memory(ray.cluster_resources()), dict[str, Attempt]()  # type: ignore[no-untyped-call]
    needs = {name: need_of(run, run.stages[name], memory) for name in waiting} if on_gpus else {}
    with StopRequests() as stop:  # a signal within Ray's own code would end in a traceback
        while waiting or running:
            for name in [name for name in waiting if name not in failures and run.is_ready(name)]:
                waiting.remove(name)
                need, attempt = needs.get(name, Need()), attempts.get(name, Attempt())
                task = (recipe, root, name, here, attempt.tokens(need))
                if run.ranks(run.stages[name]) > 1:
                    submitted = shared.options(num_cpus=0, name=name).remote(*task, on_gpus)
                else:
                    gpus = (1 if attempt.alone else fraction(need, memory)) if on_gpus else 0
                    submitted = alone.options(num_gpus=gpus, num_cpus=1, name=name).remote(*task)
                running[submitted] = (name, time.monotonic())
                if name not in attempts:
                    view.started(name)
            if not running:
                break  # the remaining stages need one that failed
            done, _ = ray.wait(list(running), num_returns=1, timeout=STEP)
            if stop.asked is not None:
                _cancel([*running])
                raise Stopped(stop.asked)
            for reference in done:
                name, began = running.pop(reference)
                full = False
                try:
                    full, problem = ray.get(reference)
                except ray.exceptions.RayError as error:
                    problem = f"its worker died {RETRIES + 1} times: {str(error).splitlines()[0]}"
                need = needs.get(name, Need())
                following = attempts.get(name, Attempt()).next(need) if full else None
                if following is not None:
                    attempts[name] = following
                    waiting.append(name)
                    continue
                if problem is None and run.find(run.stages[name]) is None:
                    problem = "its artifact is not in the store: do all nodes see the same files under the same paths?"
                if problem is None:
                    view.finished(name, time.monotonic() - began)
                else:
                    failures[name] = problem
                    view.failed(name, problem)
    raise_failures(failures, waiting)


def _check_answers(address: str) -> None:
    """Ray itself waits for minutes without a word, where nothing answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, or none: Ray looks on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except OSError as error:
        raise UserError(
            f"RAY_ADDRESS={address}: nothing answers there ({error.strerror or error}). Is the cluster up? `ray "
            "status` asks it; without RAY_ADDRESS, a run starts a cluster on this machine"
        ) from error


def _check_seen_everywhere(root: Path) -> None:
    """Every node must see the store, under the same path, before hours are spent."""
    import ray  # noqa: PLC0415 - an extra
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    look, word = ray.remote(num_cpus=0)(_reads), secrets.token_hex(8)
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
    with tempfile.NamedTemporaryFile("w", dir=root, prefix=".seen-") as file:
        file.write(word)
        file.flush()
        os.fsync(file.fileno())  # or a shared file system may show the name without the content
        asked = {
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False)).remote(file.name): host
            for name, host in nodes.items()
        }
        answered, silent = ray.wait([*asked], num_returns=len(asked), timeout=SEEN)
        blind = [asked[one] for one in answered if _got(one) != word]
    if silent:
        hosts = ", ".join(sorted(asked[one] for one in silent))
        raise UserError(f"these nodes of the cluster did not answer within {SEEN:.0f} s: {hosts}. Is unmdpo there?")
    if blind:
        raise UserError(
            f"{root}: the store is not seen under this path by {', '.join(sorted(blind))}. It must lie on a file "
            "system that all nodes share, such as NFS or Lustre; object storage is not one"
        )


def _reads(path: str) -> str:
    """What the file says; a shared file system may show it a little later."""
    until, found = time.monotonic() + ANSWER, ""
    while not found and time.monotonic() < until:
        time.sleep(STEP)
        found = Path(path).read_text("utf-8") if Path(path).is_file() else ""
    return found


def _got(reference: Any) -> str | None:
    import ray  # noqa: PLC0415 - an extra

    try:
        return str(ray.get(reference))
    except ray.exceptions.RayError:  # no Python with unmdpo there, or the node is gone
        return None


def _cancel(running: list[Any]) -> None:
    """Interrupts what is at work as Ctrl-C would, and gives it time to write its checkpoints."""
    import ray  # noqa: PLC0415 - an extra

    for reference in running:
        ray.cancel(reference)
    ray.wait(running, num_returns=len(running), timeout=PATIENCE)


def _go(here: str) -> None:
    """Paths in a recipe are relative to the folder that the run was started in, if this node has it."""
    if Path(here).is_dir():
        os.chdir(here)


def _gpu_memory(resources: Mapping[str, float]) -> float:
    """Bytes of the smallest GPU that the cluster names; Ray itself does not count them."""
    kinds = [name.partition(":")[2].lower() for name in resources if name.startswith("accelerator_type:")]
    return min((MEMORY[kind] for kind in kinds if kind in MEMORY), default=MEMORY["a100"])


Outcome = tuple[bool, str | None]  # whether it ran out of memory, and what went wrong, if anything did


def _opened(recipe: str, root: str, here: str, microbatch: int | None) -> Pipeline:
    _go(here)
    return open_pipeline(Recipe.model_validate_json(recipe), Store(Path(root))).with_microbatch(microbatch)


def _work(recipe: str, root: str, name: str, here: str, microbatch: int | None) -> Outcome:
    """Runs a stage on some node."""
    try:
        run = _opened(recipe, root, here, microbatch)
        run.make(run.stages[name], lambda text: None)
    except UserError as error:
        return isinstance(error, OutOfMemory), str(error)
    except Exception:
        return False, traceback.format_exc()
    return False, None


def _work_together(recipe: str, root: str, name: str, here: str, microbatch: int | None, on_gpus: bool) -> Outcome:
    """Runs a stage as a Ray Train job with the recipe's number of ranks."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415 - an extra
    from ray.train.torch import TorchConfig, TorchTrainer  # noqa: PLC0415

    run = _opened(recipe, root, here, microbatch)
    with tempfile.TemporaryDirectory(dir=run.store.root, prefix=".ray-") as records:
        problem = Path(records) / "problem"
        trainer = TorchTrainer(
            _rank,
            train_loop_config={
                "recipe": run.recipe.model_dump_json(),
                "root": root,
                "stage": name,
                "problem": str(problem),
                "here": here,
            },
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo",
                timeout_s=round(60 * run.recipe.compute.rank_minutes),
            ),
            scaling_config=ScalingConfig(num_workers=run.ranks(run.stages[name]), use_gpu=on_gpus),
            run_config=RunConfig(name="job", storage_path=records, failure_config=FailureConfig(max_failures=RETRIES)),
        )
        try:
            trainer.fit()
        except Exception:
            text = problem.read_text("utf-8") if problem.exists() else traceback.format_exc()
            return text.startswith(FULL_GPU), text.removeprefix(FULL_GPU)
    return False, None


def _rank(config: dict[str, str]) -> None:
    """Runs on each rank, in the process group that Ray Train created, and from a folder of Ray Train's own."""
    _go(config["here"])
    problem = Path(config["problem"])
    if problem.exists():
        raise RuntimeError("an earlier attempt failed with a user error; reattempt would not help")
    run = open_pipeline(Recipe.model_validate_json(config["recipe"]), Store(Path(config["root"])))
    try:
        take_part(run, run.stages[config["stage"]])
    except UserError as error:
        full = FULL_GPU if isinstance(error, OutOfMemory) else ""
        problem.write_text(f"{full}{error}", "utf-8")
        raise
