"""Reward models as judges: any sequence classifier with a chat template scores each response on its own."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.judges import Judge, RewardModelSettings, TrainedJudge
from unmdpo.engine.inference.padding import of_one_length, padding_is_harmless, shortest_and_longest
from unmdpo.engine.models import check_reachable, explaining
from unmdpo.engine.pairs.padding import alike, padded
from unmdpo.engine.pairs.rope import forget_length, rope_limit
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.sharding import open_to_read, weight_shapes
from unmdpo.engine.text.encode import Encoder

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
        self.padding: int | None = self.model.config.pad_token_id

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str | Prompt]) -> list[float]:
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
        forget_length(self.model)  # of other conversations
        tokens, mask = (each.to(self.model.device) for each in padded(rows, pad, "right"))
        made = self.model(input_ids=tokens, attention_mask=mask)
        found: Tensor = made.logits if getattr(made, "logits", None) is not None else made.score  # in their own code
        return found.view(len(rows), -1).float()

    def _pads(self, rows: Sequence[list[int]], pad: int) -> bool:
        if max(len(row) for row in rows) > rope_limit(self.model):
            return False
        few = [rows[place] for place in shortest_and_longest([len(row) for row in rows])]
        alone = torch.cat([self._outputs([row], pad) for row in few])
        harmless = padding_is_harmless(self.model, self._outputs(few, pad), alone, "responses to judge")
        return self.ranks.agree(harmless, self.model.device)

    def _pad(self, rows: Sequence[Sequence[int]]) -> int:
        """The token that the model takes for padding. If it has none, one that none of these conversations contains,
        since the score is read at the last token that is not padding."""
        if self.padding is not None:
            return int(self.padding)
        used = {token for row in rows for token in row}
        unused = next(token for token in range(len(used) + 1) if token not in used)
        self.model.config.pad_token_id = self.model.config.get_text_config().pad_token_id = unused
        return unused


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
    source = settings.train.model
    if source is not None:
        check_reachable(source)
        Encoder.of(source)


def reward_model_source(settings: RewardModelSettings) -> ModelSource:
    return ModelSource(
        path=settings.path,
        revision=settings.revision,
        template=settings.template,
        trust_remote_code=settings.trust_remote_code,
    )
