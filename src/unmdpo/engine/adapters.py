"""LoRA through PEFT: small trainable matrices beside frozen weights.

The reference policy is the base model, and a new adapter changes nothing, so the log-ratio at update 0 is zero here
too.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from unmdpo.engine.settings import AdapterSettings
from unmdpo.errors import UserError

if TYPE_CHECKING:
    from peft import PeftModel


def add_lora(model: PreTrainedModel, settings: AdapterSettings, seed: int = 42) -> "PeftModel":
    """Adds adapters to `model` and freezes everything else. Train `result.get_base_model()`."""
    try:
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError("LoRA needs PEFT: pip install 'unmdpo[lora]'") from error
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha if settings.alpha is not None else 2 * settings.rank,
        lora_dropout=settings.dropout,
        target_modules=settings.targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # adapters use the model's precision; the trainer keeps their float32 masters
        return get_peft_model(model, config, autocast_adapter_dtype=False)


def save_adapter(adapted: "PeftModel", folder: Path) -> None:
    """Saves only the adapter, in PEFT's format."""
    adapted.save_pretrained(str(folder))


def merge(adapted: "PeftModel") -> PreTrainedModel:
    """Merges the adapter into the base weights, which gives a plain model again."""
    merged: PreTrainedModel = adapted.merge_and_unload()
    return merged
