"""Runs stages as Ray tasks: as many at once as the cluster has room for, retried when a worker dies.

A stage shared by several ranks (`compute.ranks`) is a Ray Train job, and its ranks may be on several nodes.

Every node must be able to see the store. `RAY_ADDRESS` names the cluster; without it, Ray starts one on this machine.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmdpo.errors import UserError
from unmdpo.pipeline.executors.making import make_here, raise_failures, ready_stages
from unmdpo.pipeline.executors.ranks import take_part
from unmdpo.pipeline.run import Run, open_run, ranks_of
from unmdpo.pipeline.store import Store
from unmdpo.pipeline.view import View
from unmdpo.recipe import Recipe

RETRIES = 2  # of a stage whose worker died; errors raised by the stage are not retried


def work_on_ray(run: Run, missing: Sequence[str], view: View) -> None:
    """Runs the missing stages, each as soon as its inputs are finished."""
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError("the Ray executor needs Ray: pip install 'unmdpo[ray]'") from error
    if not ray.is_initialized():
        # Ray gives its workers the lowest priority, and on a machine that does anything else they hardly move
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(log_to_driver=False, include_dashboard=False)
    on_gpus = ray.cluster_resources().get("GPU", 0) >= 1  # type: ignore[no-untyped-call]
    retried = ray.remote(max_retries=RETRIES, retry_exceptions=False)
    alone, shared = retried(_work), retried(_work_together)
    waiting = list(missing)
    running, failures = dict[Any, tuple[str, float]](), dict[str, str]()
    recipe, root, here = run.recipe.model_dump_json(), str(run.store.root.resolve()), str(Path.cwd())
    while waiting or running:
        for name in ready_stages(run, waiting, failures):
            waiting.remove(name)
            if ranks_of(run, run.stages[name]) > 1:
                submitted = shared.options(num_cpus=0, name=name).remote(recipe, root, name, here, on_gpus)
            else:
                gpus = int(on_gpus and run.stages[name].kind.uses_model)
                submitted = alone.options(num_gpus=gpus, num_cpus=1, name=name).remote(recipe, root, name, here)
            running[submitted] = (name, time.monotonic())
            view.started(name)
        if not running:
            break  # the remaining stages need one that failed
        done, _ = ray.wait(list(running), num_returns=1)
        for reference in done:
            name, began = running.pop(reference)
            try:
                problem = ray.get(reference)
            except ray.exceptions.RayError as error:
                problem = f"its worker died {RETRIES + 1} times: {str(error).splitlines()[0]}"
            if problem is None and run.find(run.stages[name]) is None:
                problem = "its artifact is not in the store: do all nodes see the same files under the same paths?"
            if problem is None:
                view.finished(name, time.monotonic() - began)
            else:
                failures[name] = problem
                view.failed(name, problem)
    raise_failures(failures, waiting)


def _go(here: str) -> None:
    """Paths in a recipe are relative to the folder that the run was started in, if this node has it."""
    if Path(here).is_dir():
        os.chdir(here)


def _work(recipe: str, root: str, name: str, here: str) -> str | None:
    """Runs a stage on some node; returns what went wrong, or None."""
    _go(here)
    try:
        run = open_run(Recipe.model_validate_json(recipe), Store(Path(root)))
        make_here(run, run.stages[name], lambda text: None)
    except UserError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return None


def _work_together(recipe: str, root: str, name: str, here: str, on_gpus: bool) -> str | None:
    """Runs a stage as a Ray Train job with the recipe's number of ranks; returns what went wrong, or None."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415 - an extra
    from ray.train.torch import TorchConfig, TorchTrainer  # noqa: PLC0415

    _go(here)
    run = open_run(Recipe.model_validate_json(recipe), Store(Path(root)))
    with tempfile.TemporaryDirectory(dir=run.store.root, prefix=".ray-") as records:
        problem = Path(records) / "problem"
        trainer = TorchTrainer(
            _rank,
            train_loop_config={"recipe": recipe, "root": root, "stage": name, "problem": str(problem), "here": here},
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo",
                timeout_s=round(60 * run.recipe.compute.rank_minutes),
            ),
            scaling_config=ScalingConfig(num_workers=ranks_of(run, run.stages[name]), use_gpu=on_gpus),
            run_config=RunConfig(name="job", storage_path=records, failure_config=FailureConfig(max_failures=RETRIES)),
        )
        try:
            trainer.fit()
        except Exception:
            return problem.read_text("utf-8") if problem.exists() else traceback.format_exc()
    return None


def _rank(config: dict[str, str]) -> None:
    """Runs on each rank, in the process group that Ray Train created, and from a folder of Ray Train's own."""
    _go(config["here"])
    problem = Path(config["problem"])
    if problem.exists():
        raise RuntimeError("an earlier attempt failed with a user error; retrying would not help")
    run = open_run(Recipe.model_validate_json(config["recipe"]), Store(Path(config["root"])))
    try:
        take_part(run, run.stages[config["stage"]])
    except UserError as error:
        problem.write_text(str(error), "utf-8")
        raise
