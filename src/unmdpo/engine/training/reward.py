"""Judges on the engine: a language model with a score head learns which of two responses is better.

The loss is −log σ(r⁺ − r⁻ − m), where the margin m grows with the strength of the preference (Touvron et al., 2023,
"Llama 2", Section 3.2.2); without strengths it is zero, the usual loss of Bradley and Terry. Everything else is as for
a policy: pairs share what their conversations have in common, a proof comes first, and training resumes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from unmdpo.core.errors import UserError
from unmdpo.core.settings import Strict
from unmdpo.engine.adapters import add_lora
from unmdpo.engine.inference.reward_model import HEADS
from unmdpo.engine.models import compute_dtype, read_weights, vocabulary_size
from unmdpo.engine.pairs.masks import CannotPack
from unmdpo.engine.pairs.packing import PairBatch
from unmdpo.engine.pairs.padding import PaddedBatch, SingleBatch
from unmdpo.engine.pairs.rope import forget_length
from unmdpo.engine.pairs.scorer import PairScorer, hidden_states
from unmdpo.engine.ranks import local_device
from unmdpo.engine.settings import AdapterSettings, ModelSource, ObjectiveChoice, TrainingSettings, updates_per_epoch
from unmdpo.engine.text.encoded import EncodedPair
from unmdpo.objectives import Objective, PairLogps

if TYPE_CHECKING:
    from unmdpo.engine.adapters import PeftModel

WARMUP = 0.05  # of all updates


@dataclass(frozen=True)
class RewardSettings:
    epochs: int = 1
    batch: int = 32  # pairs
    learning_rate: float = 2e-5
    max_length: int = 2048  # tokens; longer pairs are left out
    rank: int | None = None  # of an adapter, which is merged in the end
    seed: int = 42

    def training(self, pairs: int) -> TrainingSettings:
        """As the engine has it."""
        updates = self.epochs * updates_per_epoch(pairs, self.batch)
        return TrainingSettings(
            epochs=self.epochs, batch=self.batch, learning_rate=self.learning_rate, warmup=round(WARMUP * updates),
            schedule="cosine", weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, seed=self.seed,
        )  # fmt: skip


def _loss(pairs: PairLogps) -> Tensor:
    """(n,) relative to a reference that scores everything 0; the margin is in the place of the strength."""
    return -logsigmoid(pairs.log_ratio - pairs.strength)


JUDGE = Objective("judge", "a reward model's loss, with margins", _loss, Strict)


class JudgeObjective(ObjectiveChoice):
    """No policy learns by it, so it is not among the objectives of recipes."""

    name: str = JUDGE.name

    @property
    def objective(self) -> Objective:
        return JUDGE


class RewardScorer(PairScorer):
    """A sequence classifier with one output as a function from pairs to scores of their conversations."""

    summed = False

    def forward(self, batch: PairBatch) -> Tensor:
        """(pairs, 2) scores of chosen and rejected, float32 at least."""
        if isinstance(batch, SingleBatch) or (isinstance(batch, PaddedBatch) and batch.masked):
            scores = self._own_scores(batch)
        else:
            head = getattr(self.model, "score", None)
            if not isinstance(head, nn.Linear):
                raise CannotPack("its score is not a plain function of its last hidden state")
            found = hidden_states(self.model, batch, None).index_select(0, batch.last)  # (2·pairs, d)
            wide = torch.promote_types(found.dtype, torch.float32)
            scores = linear(found.to(wide), *(part.to(wide) for part in head.parameters()))
        chosen, rejected = scores.view(batch.pairs, 2).unbind(dim=1)
        return torch.stack([chosen, torch.where(batch.same, chosen, rejected)], dim=1)

    def _own_scores(self, batch: PairBatch) -> Tensor:
        """(2·pairs,) by the model's own code, which looks for the last token that does not pad."""
        pad = self.model.config.pad_token_id
        if isinstance(batch, PaddedBatch):
            tokens = torch.where(batch.real, batch.tokens, pad)
            logits = [self.model(input_ids=tokens, attention_mask=batch.mask).logits]
        else:
            assert isinstance(batch, SingleBatch)
            logits = []
            with torch.compiler.set_stance("force_eager"):  # each length would be compiled anew
                for row, length in zip(batch.tokens, batch.lengths, strict=True):
                    forget_length(self.model)
                    logits.append(self.model(input_ids=row[None, :length]).logits)
        scores = torch.cat(logits).flatten()
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


def open_reward_scorer(
    source: ModelSource, tokenizer: PreTrainedTokenizerBase, settings: RewardSettings
) -> tuple[RewardScorer, "PeftModel | None"]:
    """The model with a score head that starts the same each time, and an adapter if wanted; all its other weights come
    from the files."""
    device = local_device()
    model = open_with_new_head(source, tokenizer, settings.seed, compute_dtype(device))
    model.to(device)  # type: ignore[arg-type]
    adapted = None
    if settings.rank is not None:
        heads = [name for name, part in model.named_modules() if name in HEADS and isinstance(part, nn.Linear)]
        adapted = add_lora(model, AdapterSettings(rank=settings.rank), settings.seed, left_out=heads)
        for name in heads:
            model.get_submodule(name).requires_grad_(True)
    return RewardScorer(model), adapted


def open_with_new_head(
    source: ModelSource, tokenizer: PreTrainedTokenizerBase, seed: int, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    torch.manual_seed(seed)
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # that the head is new is no news
    try:
        model = read_weights(AutoModelForSequenceClassification, source, new=HEADS, dtype=dtype, num_labels=1)
    finally:
        logging.set_verbosity(before)
    pad = padding_token(tokenizer, source)
    model.config.pad_token_id = model.config.get_text_config().pad_token_id = pad
    return model


def padding_token(tokenizer: PreTrainedTokenizerBase, source: ModelSource) -> int:
    """Some tokenizers have one that the model does not know; then it is the one that ends a text."""
    known = vocabulary_size(source)
    for pad in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(pad, int) and (known is None or pad < known):
            return pad
    raise UserError(f"'{source.path}': its tokenizer has neither a padding token nor one that ends a text")


def reward_pair(chosen: Sequence[int], rejected: Sequence[int], pad: int) -> EncodedPair:
    """Two whole conversations, with what they have in common as the prompt. A score is read at the last token that
    does not pad, and nothing after it matters."""
    one, other = (_without_padding(np.array(row, dtype=np.int32), pad) for row in (chosen, rejected))
    most = min(len(one), len(other)) - 1  # each keeps a token of its own
    differing = (one[:most] != other[:most]).nonzero()[0]
    shared = int(differing[0]) if len(differing) else most
    return EncodedPair(one[:shared], one[shared:], other[shared:], valid=True)


def _without_padding(row: Any, pad: int) -> Any:
    """Without the padding tokens that it ends with: where the padding token ends a text, one may."""
    real = (row != pad).nonzero()[0]
    return row[: int(real[-1]) + 1] if len(real) else row


def finished_model(
    scorer: RewardScorer, adapted: "PeftModel | None", masters: dict[str, nn.Parameter]
) -> PreTrainedModel:
    """The trained judge in float32, its adapter merged."""
    model: Any = scorer.model
    model.float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in masters:
                weight.copy_(masters[name])
    finished: PreTrainedModel = model if adapted is None else adapted.merge_and_unload()
    return finished
