"""LoRA through PEFT: small trainable matrices beside frozen weights.

The reference policy is the base model, and an adapter starts as a zero change, so update 0 has
log-ratio zero here too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from unmdpo.errors import UserError

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(frozen=True)
class LoraSettings:
    rank: int = 64
    alpha: int | None = None  # 2·rank if not given
    dropout: float = 0.0
    targets: str | tuple[str, ...] = "all-linear"  # but never the head


def add_lora(model: PreTrainedModel, settings: LoraSettings, seed: int = 42) -> "PeftModel":
    """Adapters inside `model`, everything else frozen. Train `result.get_base_model()`."""
    try:
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError("LoRA needs PEFT: pip install 'unmdpo[lora]'") from error
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha if settings.alpha is not None else 2 * settings.rank,
        lora_dropout=settings.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # adapters in the model's own precision; the trainer keeps their float32 masters
        return get_peft_model(model, config, autocast_adapter_dtype=False)


def save_adapter(adapted: "PeftModel", folder: Path) -> None:
    """The adapter alone, as PEFT loads it."""
    adapted.save_pretrained(str(folder))


def merge(adapted: "PeftModel") -> PreTrainedModel:
    """The adapter added into the base weights: a plain model again."""
    merged: PreTrainedModel = adapted.merge_and_unload()
    return merged
