"""Models and tokenizers from the Hub, a local folder or a GGUF file, ready for pairs."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from unmdpo.engine.encode import Encoder
from unmdpo.errors import UserError


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from, as a recipe says it."""

    path: str  # Hub name or local folder
    revision: str | None = None
    gguf_file: str | None = None  # a file in that place that holds weights and tokenizer
    template: str | None = None  # Jinja text, or a file that ends in .jinja; the tokenizer's own if None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if self.revision is not None:
            given["revision"] = self.revision
        if self.gguf_file is not None:
            given["gguf_file"] = self.gguf_file
        return given


def check_reachable(source: ModelSource) -> None:
    """Raises, at the price of a small file, what loading the model would raise hours later: a name that is
    misspelt, terms that were not accepted, a cache that does not hold it."""
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


def make_encoder(source: ModelSource, max_length: int) -> Encoder:
    return Encoder(load_tokenizer(source), max_length, source.template_arguments)


def load_model(
    source: ModelSource, *, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> PreTrainedModel:
    """On the device, with the attention that packs best there; a GGUF file's weights dequantized."""
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
