"""lm-evaluation-harness, on a model that is loaded already: an adapter cannot be forgotten on the way."""

import contextlib
import importlib.metadata
import io
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from unmdpo.core.errors import UserError, printable
from unmdpo.core.extras import missing
from unmdpo.engine.settings import TaskSettings

PACKAGE = "lm_eval"
ROUNDING = 1e-6
BATCH = 16  # questions at a time: leaves room for what else runs on a GPU


class TaskScore(NamedTuple):
    """A task's first metric."""

    metric: str
    value: float
    higher_is_better: bool
    samples: dict[str, float]  # question → its value; empty if the metric is no mean over questions
    made_with: dict[str, Any]  # the versions of the harness and the task, its questions, and hashes of its settings


def check_tasks(tasks: Sequence[str], folder: str | None) -> None:
    """An error if a task is not known, or its data cannot be had."""
    manager = open_tasks(tasks, folder)
    with _quietly(tasks):
        manager.load(list(tasks))


def run_task(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    template: Mapping[str, Any],
    name: str,
    settings: TaskSettings,
    manager: Any,
) -> TaskScore:
    """`template` are arguments for the chat template; `manager` knows the task."""
    from lm_eval import simple_evaluate  # noqa: PLC0415 - an extra
    from lm_eval.models.huggingface import HFLM  # noqa: PLC0415

    with _quietly([name]):
        found = simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=BATCH, chat_template_args=dict(template)),
            tasks=[name],
            num_fewshot=settings.few_shot,
            limit=settings.limit,
            apply_chat_template=settings.chat,
            bootstrap_iters=0,
            task_manager=manager,
        )
    return _score(name, found)


def _score(name: str, found: Mapping[str, Any]) -> TaskScore:
    parts = _parts(name, found)
    numbers = found["results"][name] if name in found["results"] else found["groups"][name]
    own = [
        key for key, value in numbers.items() if "," in key and "_stderr" not in key and isinstance(value, float | int)
    ]
    if not own:  # a group without a score of its own
        numbers = found["results"][parts[0]]
        own = [key for key in numbers if "," in key and "_stderr" not in key]
    metric, _, chosen = own[0].partition(",")
    samples = {
        f"{part}/{row['doc_hash']}/{row['doc_id']}": float(row[metric])
        for part in parts
        for row in found["samples"][part]
        if row.get("filter", chosen) == chosen and isinstance(row.get(metric), bool | int | float)
    }
    mean = sum(samples.values()) / max(1, len(samples))
    if not samples and own[0] not in found["results"].get(name, {}):
        raise UserError(f"evaluation.tasks: the group '{name}' has no score of its own: name its tasks")
    value = float(found["results"].get(name, {}).get(own[0], mean))
    better = found.get("higher_is_better", {}).get(name, {}).get(metric)
    if not samples or not math.isclose(mean, value, abs_tol=ROUNDING):
        samples = {}  # not a mean of these: such as a corpus score, or parts that are weighed
    made_with = {"lm-eval": harness_version()}
    made_with |= {key: found[key] for key in ("versions", "n-samples", "task_hashes") if key in found}
    return TaskScore(
        f"{metric}, {chosen}" if chosen != "none" else metric, value, better is not False, samples, made_with
    )


def _parts(name: str, found: Mapping[str, Any]) -> list[str]:
    """The tasks of a group, or the task itself."""
    below = found.get("group_subtasks", {}).get(name, [])
    return [part for child in below for part in _parts(child, found)] or [name]


def harness_version() -> str:
    return importlib.metadata.version(PACKAGE)


def open_tasks(tasks: Sequence[str], folder: str | None) -> Any:
    """What knows these tasks: from the folder if it has them all, since reading the harness's own takes seconds."""
    place = None if folder is None else str(Path(folder).expanduser())
    with _quietly(tasks):
        from lm_eval.tasks import TaskManager  # noqa: PLC0415 - an extra

        manager = TaskManager(include_path=place, include_defaults=False)
        if not {*tasks} <= {*manager.all_tasks}:
            manager = TaskManager(include_path=place)
    unknown = [name for name in tasks if name not in manager.all_tasks]
    tags = [name for name in tasks if name in manager.all_tags]
    if tags:
        raise UserError(f"evaluation.tasks: '{tags[0]}' is a tag of several tasks: name those that you want")
    if unknown:
        raise UserError(
            f"evaluation.tasks: lm-eval {harness_version()} has no task '{unknown[0]}'; "
            "tasks of your own are found in evaluation.task_folder"
        )
    return manager


@contextlib.contextmanager
def _quietly(tasks: Sequence[str]) -> Iterator[None]:
    """Without its log, bars and remarks, and with one sentence for whatever it raises: tasks are foreign code."""
    before = logging.getLogger(PACKAGE).level
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except ImportError as error:
        said = f"{', '.join(tasks)}: {_first_line(error)}"
        raise UserError(missing("evaluation.tasks", "lm-eval") if error.name == PACKAGE else said) from error
    except Exception as error:
        raise UserError(
            f"evaluation.tasks: {', '.join(tasks)} cannot be had: {_first_line(error)}. Without a network, a task's "
            "data must be in the cache of Hugging Face, or in local files that a task in evaluation.task_folder names"
        ) from error
    finally:
        logging.getLogger(PACKAGE).setLevel(before)


def _first_line(error: Exception) -> str:
    """The first line of an error, or its kind."""
    return printable(str(error).strip().partition("\n")[0]) or type(error).__name__
