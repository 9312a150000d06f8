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
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from unmdpo.catalog.judges import FunctionSettings, JudgeTraining, RewardModelSettings, TrainedJudge
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.overheard import kept_running, overheard
from unmdpo.engine.inference.padding import of_one_length, padding_is_harmless, shortest_and_longest
from unmdpo.engine.models import check_reachable, explaining
from unmdpo.engine.pairs.encode import Encoder
from unmdpo.engine.pairs.padding import alike, padded
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.sharding import open_to_read, weight_shapes
from unmdpo.errors import Stopped, UserError, did_you_mean

Judge = Callable[[Sequence[Prompt], Sequence[str]], list[float]]
TOKEN_BUDGET = 16_384  # per padded batch
HEADS = ("score", "classifier", "classifier.out_proj", "classification_head.out_proj", "cls", "v_head", "summary")


class RewardModel:
    """A sequence classifier, applied to the whole conversation; one of its outputs is the score."""

    def __init__(self, source: ModelSource, label: int | str | None = None) -> None:
        self.encoder, self.ranks = Encoder.of(source), Ranks.current()
        outputs = _count_outputs(source)
        self.output = _chosen_output(source, label, outputs)
        self.model = open_to_read(source, lambda model: model, AutoModelForSequenceClassification, num_labels=outputs)
        self.model.train(False)

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        texts = [
            self.encoder.answered_text(prompt, response) for prompt, response in zip(prompts, responses, strict=True)
        ]
        rows = self.encoder.tokenize(texts)
        scores, pad = torch.zeros(len(rows), dtype=torch.float64, device=self.model.device), self._pad(rows)
        lengths = [len(row) for row in rows]
        grouped = alike if self._pads(rows, pad) else of_one_length
        for members, counts in self.ranks.turns([grouped(lengths, TOKEN_BUDGET)]):
            found = self._outputs([rows[i] for i in members], pad)
            if counts:
                scores[members] = found[:, self.output].double()
        found_everywhere: list[float] = self.ranks.total(scores).tolist()
        return found_everywhere

    def _outputs(self, rows: Sequence[list[int]], pad: int) -> Tensor:
        """(n, outputs). Padded on the right: that is where classifiers look for the last token."""
        tokens, mask = (each.to(self.model.device) for each in padded(rows, pad, "right"))
        made = self.model(input_ids=tokens, attention_mask=mask)
        found: Tensor = made.logits if getattr(made, "logits", None) is not None else made.score  # in their own code
        return found.view(len(rows), -1).float()

    def _pads(self, rows: Sequence[list[int]], pad: int) -> bool:
        few = [rows[place] for place in shortest_and_longest([len(row) for row in rows])]
        alone = torch.cat([self._outputs([row], pad) for row in few])
        harmless = padding_is_harmless(self.model, self._outputs(few, pad), alone, "responses to judge")
        return self.ranks.agree(harmless, self.model.device)

    def _pad(self, rows: Sequence[Sequence[int]]) -> int:
        """The token that the model takes for padding. If it has none, one that no conversation contains, since the
        score is read at the last token that is not padding."""
        known = self.model.config.pad_token_id
        if known is None:
            used = {token for row in rows for token in row}
            known = next(token for token in range(len(used) + 1) if token not in used)
            self.model.config.pad_token_id = self.model.config.get_text_config().pad_token_id = known
        return int(known)


def _count_outputs(source: ModelSource) -> int:
    """The number of outputs, which not every reward model's configuration says: from the weights' own shape."""
    with explaining("judge", source):
        config = AutoConfig.from_pretrained(source.path, **source.arguments)
    shapes = weight_shapes(source)
    if "auto_map" in config.to_dict() or not shapes:
        return int(config.num_labels)
    heads = [shape for name, shape in shapes.items() if name.rpartition(".")[0] in HEADS and name.endswith("weight")]
    if not heads:
        raise UserError(
            f"the judge '{source.path}' has no score head: it is a language model, not a reward model. Use a sequence "
            "classifier, or serve it and compare pairs with evaluation.judge.endpoint"
        )
    return heads[-1][0]


def _chosen_output(source: ModelSource, label: int | str | None, count: int) -> int:
    """Which of the model's outputs is the score."""
    with explaining("judge", source):
        names = AutoConfig.from_pretrained(source.path, **source.arguments).id2label or {}
    if label is None and count > 1:
        known = ", ".join(f"{place} ({names.get(place, 'unnamed')})" for place in range(count))
        raise UserError(f"the judge '{source.path}' has {count} outputs; set evaluation.judge.label to one of {known}")
    if isinstance(label, str):
        among = {name: place for place, name in names.items()}
        if label not in among:
            raise UserError(f"the judge '{source.path}' has no output '{label}'; {did_you_mean(label, among)}")
        return int(among[label])
    if label is not None and not 0 <= label < count:
        raise UserError(f"the judge '{source.path}' has outputs 0 to {count - 1}, not {label}")
    return label or 0


def open_reward_model(settings: RewardModelSettings) -> Judge:
    return RewardModel(reward_model_source(settings), settings.label)


def check_reward_model(settings: RewardModelSettings) -> None:
    source = reward_model_source(settings)
    check_reachable(source)
    Encoder.of(source)  # raises if there is no template; some take answered conversations only
    if Path(source.path).is_dir():  # elsewhere, it would download the weights
        _chosen_output(source, settings.label, _count_outputs(source))


def check_start_of_judge(settings: TrainedJudge) -> None:
    """The model that a judge starts from, if it is not the recipe's own."""
    source = start_of_judge(settings.train)
    if source is not None:
        check_reachable(source)
        Encoder.of(source)


def start_of_judge(training: JudgeTraining) -> ModelSource | None:
    """None: the recipe's model."""
    if training.model is None:
        return None
    return ModelSource(
        path=training.model,
        revision=training.model_revision,
        template=training.template,
        trust_remote_code=training.trust_remote_code,
    )


def reward_model_source(settings: RewardModelSettings) -> ModelSource:
    return ModelSource(
        path=settings.path,
        revision=settings.revision,
        template=settings.template,
        trust_remote_code=settings.trust_remote_code,
    )


def open_function(settings: FunctionSettings) -> Judge:
    """Imports the function named by `package.module:function`."""
    name = settings.function
    module_name, _, function_name = name.partition(":")
    add_cwd_to_path()
    try:
        with kept_running():
            function = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:  # a user's module can do anything on import
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
    """Makes modules in the current folder importable, after those that are installed: a file there that is named like
    a library must not replace it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def checked(judge: Judge, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    """The judge's scores: one finite number per response, or an error that says which are not."""
    try:
        with overheard("the judge"), kept_running():
            scores = [float(score) for score in judge(prompts, responses)]
    except (UserError, Stopped, KeyboardInterrupt, torch.OutOfMemoryError):
        raise
    except BaseException as error:  # a user's function can raise anything, and is theirs to fix
        raise UserError(f"the judge failed: {type(error).__name__}: {error}{_where(error)}") from error
    if len(scores) != len(responses):
        raise UserError(f"the judge returned {len(scores)} scores for {len(responses)} responses")
    bad = [place for place, score in enumerate(scores) if not math.isfinite(score)]
    if bad:
        raise UserError(f"the judge's scores of prompts {bad[:8]} are not finite")
    return scores


def _where(error: BaseException) -> str:
    """The file and line that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
