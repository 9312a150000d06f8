"""A model's shape without its weights, from which memory and arithmetic follow."""

from functools import lru_cache
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    PreTrainedModel,
)

from unmdpo.core.errors import UserError
from unmdpo.engine.adapters import adapted_layers
from unmdpo.engine.models import body
from unmdpo.engine.settings import AdapterSettings, ModelSource
from unmdpo.engine.shapes import SHAPES

MetaModel = PreTrainedModel  # on the device `meta`
KNOWN_SHAPES = {  # lets packaged recipes be planned without a network
    "meta-llama/Llama-3.2-1B-Instruct": "1b",
    "meta-llama/Llama-3.1-8B-Instruct": "8b",
    "meta-llama/Llama-3.1-70B-Instruct": "70b",
    "meta-llama/Llama-3.3-70B-Instruct": "70b",
    "Skywork/Skywork-Reward-V2-Llama-3.1-8B": "8b",
    "models/smollm2": "135m",
    "models/arena-judge": "135m",
    "models/judge-arena": "135m",
    "models/judge-feedback": "135m",
    "models/judge-votes": "135m",
}


def meta_model(source: ModelSource, *, judge: bool = False) -> PreTrainedModel:
    """The model's shape, without weights; with a score head, if it is to become a judge."""
    return _built(source.path, source.revision, source.trust_remote_code, judge)


@lru_cache(maxsize=8)
def _built(path: str, revision: str | None, trust: bool, judge: bool) -> PreTrainedModel:
    if path in KNOWN_SHAPES:
        config: Any = LlamaConfig(**SHAPES[KNOWN_SHAPES[path]])
    else:
        try:
            config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"cannot plan for the model '{path}': {reason}") from error
    causal = type(config) in AutoModelForCausalLM._model_mapping or "auto_map" in config.to_dict()
    kind: Any = AutoModelForCausalLM if causal else AutoModel  # a judge may be an encoder
    if judge:
        kind = AutoModelForSequenceClassification
        if type(config) not in kind._model_mapping and "auto_map" not in config.to_dict():
            raise UserError(f"'{path}' cannot become a judge: Transformers has no sequence classifier of its kind")
    with torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config, dtype=torch.bfloat16, trust_remote_code=trust)
    return model


@lru_cache(maxsize=16)
def parameters(model: PreTrainedModel) -> int:
    """Of a model without weights, which does not change."""
    return sum(parameter.numel() for parameter in model.parameters())


def adapter_size(model: PreTrainedModel, adapter: AdapterSettings) -> int:
    """Parameters of an adapter beside every linear layer of the decoder, or of its last layers."""
    parts = [body(model)] if adapter.layers is None else adapted_layers(model, adapter)
    linear = [module for part in parts for module in part.modules() if isinstance(module, nn.Linear)]
    return sum(adapter.rank * (layer.in_features + layer.out_features) for layer in linear)
