"""Judges that score each response on its own.

Such a judge is a function from prompts and responses to scores. It can be a reward model (any sequence classifier with
one output and a chat template) or any importable Python function. Judges that compare two responses are in `endpoint`.
`unmdpo.catalog.judges` lists all of them.
"""

import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from unmdpo.catalog.judges import FunctionSettings, RewardModelSettings
from unmdpo.data.identity import Prompt
from unmdpo.engine.models import check_finite, check_reachable, compute_dtype
from unmdpo.engine.pairs.encode import Encoder, as_dicts
from unmdpo.engine.pairs.padding import alike, padded
from unmdpo.engine.ranks import local_device
from unmdpo.engine.settings import ModelSource
from unmdpo.errors import UserError

Judge = Callable[[Sequence[Prompt], Sequence[str]], list[float]]
TOKEN_BUDGET = 16_384  # per padded batch


class RewardModel:
    """A sequence classifier with one output, applied to the whole conversation."""

    def __init__(self, source: ModelSource, device: torch.device) -> None:
        try:
            model = AutoModelForSequenceClassification.from_pretrained(
                source.path, dtype=compute_dtype(device), num_labels=1, **source.arguments
            )
        except (OSError, ValueError) as error:
            raise UserError(f"the judge '{source.path}' could not be loaded: {error}") from error
        assert isinstance(model, PreTrainedModel)
        self.model = check_finite(model.to(device), source).train(False)  # type: ignore[arg-type]
        self.encoder = Encoder.of(source)
        if self.model.config.pad_token_id is None:
            self.model.config.pad_token_id = self.encoder.tokenizer.pad_token_id or 0

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        texts = [
            self.encoder.render([*as_dicts(prompt), {"role": "assistant", "content": response}], prefix=False)
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        rows = self.encoder.tokenize(texts)
        scores = [math.nan] * len(rows)
        for members in alike([len(row) for row in rows], TOKEN_BUDGET):
            # padded on the right: that is where classifiers look for the last token
            tokens, mask = padded([rows[i] for i in members], int(self.model.config.pad_token_id), "right")
            tokens, mask = tokens.to(self.model.device), mask.to(self.model.device)
            logits = self.model(input_ids=tokens, attention_mask=mask).logits.float()[:, 0].tolist()
            for place, score in zip(members, logits, strict=True):
                scores[place] = score
        return scores


def open_reward_model(settings: RewardModelSettings) -> Judge:
    return RewardModel(reward_model_source(settings), local_device())


def check_reward_model(settings: RewardModelSettings) -> None:
    check_reachable(reward_model_source(settings))


def reward_model_source(settings: RewardModelSettings) -> ModelSource:
    return ModelSource(path=settings.path, revision=settings.revision)


def open_function(settings: FunctionSettings) -> Judge:
    """Imports the function named by `package.module:function`."""
    name = settings.function
    module_name, _, function_name = name.partition(":")
    add_cwd_to_path()
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # a user's module can raise anything on import
        raise UserError(
            f"judge function '{name}': {type(error).__name__}: {error}; name it as package.module:function, "
            "importable from the current folder or PYTHONPATH"
        ) from error
    if not callable(function):
        raise UserError(f"judge function '{name}' is not callable")
    judge: Judge = function
    return judge


def function_files(settings: FunctionSettings) -> list[str]:
    """The file that defines the function; when it is edited, responses are judged again."""
    add_cwd_to_path()
    try:
        spec = importlib.util.find_spec(settings.function.partition(":")[0])
    except (ImportError, ValueError):
        spec = None
    return [] if spec is None or spec.origin is None else [spec.origin]


def add_cwd_to_path() -> None:
    """Makes modules in the current folder importable, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def checked(judge: Judge, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    """The judge's scores: one finite number per response, or an error that says which are not."""
    try:
        scores = [float(score) for score in judge(prompts, responses)]
    except UserError:
        raise
    except Exception as error:  # a user's function can raise anything, and is theirs to fix
        raise UserError(f"the judge failed: {type(error).__name__}: {error}{_where(error)}") from error
    if len(scores) != len(responses):
        raise UserError(f"the judge returned {len(scores)} scores for {len(responses)} responses")
    bad = [place for place, score in enumerate(scores) if not math.isfinite(score)]
    if bad:
        raise UserError(f"the judge's scores of prompts {bad[:8]} are not finite")
    return scores


def _where(error: Exception) -> str:
    """The file and line that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
