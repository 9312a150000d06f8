"""Trains a judge: a language model with a score head, on pairs with a better and a worse response.

The loss is −log σ(r⁺ − r⁻ − m), where the margin m grows with the strength of the preference (Touvron et al., 2023,
"Llama 2", Section 3.2.2); without strengths it is zero, the usual loss of Bradley and Terry.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from unmdpo.core.errors import OutOfMemory, UserError
from unmdpo.engine.inference.reward_model import HEADS
from unmdpo.engine.models import disable_dropout, read_weights
from unmdpo.engine.pairs.padding import alike, padded
from unmdpo.engine.ranks import local_device
from unmdpo.engine.settings import AdapterSettings, ModelSource, updates_per_epoch
from unmdpo.engine.tally import Report
from unmdpo.engine.training.schedule import batch_of, learning_rate

CPU_TOKENS, GPU_TOKENS = 8_192, 16_384  # in one padded pass
WARMUP = 0.05  # of all updates
CLIP = 1.0
Rows = list[list[int]]  # tokens of whole conversations


@dataclass(frozen=True)
class RewardSettings:
    epochs: int = 1
    batch: int = 32  # pairs
    learning_rate: float = 2e-5
    max_length: int = 2048  # tokens; longer pairs are left out
    rank: int | None = None  # of an adapter, which is merged in the end
    seed: int = 42


@dataclass(frozen=True)
class RewardPairs:
    """Tokenized conversations with either response, and by how much the better one should win."""

    chosen: Rows
    rejected: Rows
    margins: Tensor  # (n,)

    def __len__(self) -> int:
        return len(self.chosen)


def open_with_new_head(source: ModelSource, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """The model with a score head that starts the same each time; all its other weights come from the files."""
    torch.manual_seed(seed)
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # that the head is new is no news
    try:
        model = read_weights(AutoModelForSequenceClassification, source, new=HEADS, dtype=torch.float32, num_labels=1)
    finally:
        logging.set_verbosity(before)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise UserError(f"'{source.path}': its tokenizer has neither a padding token nor one that ends a text")
    model.config.pad_token_id = model.config.get_text_config().pad_token_id = pad
    disable_dropout(model)
    model.to(local_device())  # type: ignore[arg-type]
    return model


def train_reward(
    model: PreTrainedModel, pairs: RewardPairs, settings: RewardSettings, report: Report
) -> PreTrainedModel:
    """Trains all weights, or an adapter that is merged into them in the end."""
    if model.device.type == "cuda":  # judges may be large, and this costs a third more time
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trained: Any = model if settings.rank is None else _with_adapter(model, settings.rank)
    weights = [weight for weight in trained.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=0.0)
    updates = settings.epochs * updates_per_epoch(len(pairs), settings.batch)
    trained.train()
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                update, peak=settings.learning_rate, warmup=round(WARMUP * updates), updates=updates, schedule="cosine"
            )
        try:
            loss, right = _step(trained, pairs, batch_of(update, len(pairs), settings.batch, settings.seed))
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                "the judge does not fit: try lora 16, a smaller max_length, or a smaller model"
            ) from error
        if not torch.isfinite(torch.tensor(loss)):
            raise UserError(f"the loss of update {update + 1} is not finite: lower the learning rate")
        nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        report(f"{update + 1}/{updates} · loss {loss:.4f} · accuracy {right:.2f}")
    return model if settings.rank is None else trained.merge_and_unload()


def _step(model: PreTrainedModel, pairs: RewardPairs, members: Sequence[int]) -> tuple[float, float]:
    """Adds up the gradients of a batch; its mean loss, and the share of pairs in the right order."""
    longest = [2 * max(len(pairs.chosen[i]), len(pairs.rejected[i])) for i in members]
    budget = GPU_TOKENS if model.device.type == "cuda" else CPU_TOKENS
    total, right = 0.0, 0
    for group in alike(longest, budget):
        slots = [members[place] for place in group]
        rows = [pairs.chosen[i] for i in slots] + [pairs.rejected[i] for i in slots]
        better, worse = _scores(model, rows).chunk(2)
        loss = -logsigmoid(better - worse - pairs.margins[slots].to(better.device)).sum() / len(members)
        loss.backward()  # type: ignore[no-untyped-call]
        total, right = total + loss.item(), right + int((better > worse).sum())
    return total, right / len(members)


def _scores(model: PreTrainedModel, rows: Rows) -> Tensor:
    """(n,) float32."""
    tokens, mask = (each.to(model.device) for each in padded(rows, model.config.pad_token_id, "right"))
    on_gpu = model.device.type == "cuda"
    with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
        found: Tensor = model(input_ids=tokens, attention_mask=mask).logits
    return found.view(-1).float()


def _with_adapter(model: PreTrainedModel, rank: int) -> Any:
    try:
        from peft import LoraConfig, TaskType, get_peft_model  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError("LoRA needs PEFT: pip install 'unmdpo[lora]'") from error
    heads = [name for name in HEADS if hasattr(model, name)]
    settings = AdapterSettings(rank=rank)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=settings.targets, task_type=TaskType.SEQ_CLS,
        exclude_modules=heads, modules_to_save=heads,
    )  # fmt: skip
    return get_peft_model(model, config)
