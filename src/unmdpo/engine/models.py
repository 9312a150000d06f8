"""Models and tokenizers from the Hub, a local folder or a GGUF file, ready for pairs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from unmdpo.engine.settings import ModelSource
from unmdpo.errors import UserError


def compute_dtype(device: torch.device) -> torch.dtype:
    """What models compute in: bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def check_reachable(source: ModelSource) -> None:
    """Raises, at the price of a small file, what loading the model would raise hours later: a name that is misspelt,
    terms that were not accepted, a cache that does not hold it."""
    if source.gguf_file is not None:
        return  # converted first of all
    with _loading("configuration", source):
        AutoConfig.from_pretrained(source.path, **source.arguments)


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    with _loading("tokenizer", source):
        tokenizer = AutoTokenizer.from_pretrained(source.path, **source.arguments)
    if source.template is not None:
        tokenizer.chat_template = _template(source.template)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def load_model(source: ModelSource, *, device: torch.device, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """On the device, with the attention that packs best there; a GGUF file's weights are dequantized."""
    dtype = dtype or compute_dtype(device)
    more = {} if source.gguf_file is None else {"quantization_config": GgufConfig(dequantize=True)}
    with _loading("model", source):
        model = AutoModelForCausalLM.from_pretrained(source.path, dtype=dtype, **source.arguments, **more)
    assert isinstance(model, PreTrainedModel)
    return choose_attention(check_finite(model.to(device), source))  # type: ignore[arg-type]


def check_finite(model: PreTrainedModel, source: ModelSource) -> PreTrainedModel:
    """Weights that are not numbers would only show as nonsense, hours later."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise UserError(f"the weights '{name}' of '{source.path}' are not all finite; get the model anew")
    return model


def choose_attention(model: PreTrainedModel) -> PreTrainedModel:
    """FlexAttention on a GPU, where the model supports it; on a CPU, whatever it came with."""
    if model.device.type == "cuda" and model._supports_flex_attn:
        model.set_attn_implementation("flex_attention")
    return model


def body(model: PreTrainedModel) -> nn.Module:
    """The model without its head."""
    inner = model.base_model
    if inner is model:
        raise UserError(f"{type(model).__name__} has no separate body: use a causal language model")
    return inner


def head_of(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise UserError(f"{type(model).__name__}'s head is not a plain linear layer without bias")
    return head


def _template(given: str) -> str:
    if not given.endswith(".jinja"):
        return given
    try:
        return Path(given).read_text("utf-8")
    except OSError as error:
        raise UserError(f"chat template {given}: {error.strerror}") from error


@contextlib.contextmanager
def _loading(what: str, source: ModelSource) -> Iterator[None]:
    """Tells why something could not be loaded. Code of the model's own may raise anything."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise _not_loaded(what, source, error) from error
    except Exception as error:
        if not source.trust_remote_code:
            raise
        reason = f"its own code failed: {type(error).__name__}: {error}"
        raise UserError(f"the {what} of '{source.path}' could not be loaded: {reason}") from error


def _not_loaded(what: str, source: ModelSource, error: Exception) -> UserError:
    if source.gguf_file is not None and isinstance(error, ImportError):
        return UserError(f"'{source.gguf_file}' needs another package to be read: pip install 'unmdpo[gguf]'")
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    at = f" at revision {source.revision}" if source.revision else ""
    return UserError(
        f"the {what} of '{source.path}'{at} could not be loaded: {reason}\n"
        "Check the name; for a gated model accept its terms on the Hub and run `hf auth login`; without a "
        "network set model.path to a local folder, or HF_HOME to a cache that holds it."
    )
