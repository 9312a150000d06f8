"""Loads models and tokenizers from the Hub or a local folder."""

import contextlib
import re
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.extras import needed
from unmdpo.core.files import read_small_json
from unmdpo.engine.model_files import AGAIN, check_files, check_hub_weights
from unmdpo.engine.settings import ModelSource

SHOWN = 4  # names in a message
LARGEST_SIZES = {"num_hidden_layers": 10_000, "hidden_size": 1_000_000, "vocab_size": 100_000_000}
# cuDNN's attention plans again for each length of a growing cache (generation is five times slower), and its gradients
# of masked rows with heads of 256 are not finite (Gemma 3; cuDNN 9.19 on an H200)
torch.backends.cuda.enable_cudnn_sdp(False)
BUFFERS = re.compile(r"(masked_bias|inv_freq|attn\.bias)$")  # that older files hold, and nobody reads


def compute_dtype(device: torch.device) -> torch.dtype:
    """The precision models compute in: bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def check_reachable(source: ModelSource) -> None:
    """Fetches only a small file, to raise now what loading the model would raise hours later: a misspelled name, terms
    that were not accepted, a model missing from the cache."""
    check_files(source)
    with explaining("configuration", source):
        config = AutoConfig.from_pretrained(source.path, **source.arguments)
    _check_size(config, source)
    check_hub_weights(source)


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    with explaining("tokenizer", source):
        tokenizer = AutoTokenizer.from_pretrained(source.path, **source.arguments)
    if source.template is not None:
        tokenizer.chat_template = source.template
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def load_model(
    source: ModelSource,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    kind: Any = AutoModelForCausalLM,
    **more: Any,
) -> PreTrainedModel:
    """Loads a model onto the device."""
    dtype = dtype or compute_dtype(device)
    model = read_weights(kind, source, dtype=dtype, **more)
    return check_finite(model.to(device), source)  # type: ignore[arg-type]


def load_in_four_bits(source: ModelSource, *, device: torch.device) -> PreTrainedModel:
    """Loads a model to be frozen under an adapter, with its linear layers in four bits (NF4, quantized twice)."""
    with needed("adapter.four_bit", "qlora"):
        import bitsandbytes  # noqa: F401, PLC0415 - an extra
    dtype = compute_dtype(device)
    settings = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    model = read_weights(
        AutoModelForCausalLM, source, dtype=dtype, quantization_config=settings, device_map={"": device}
    )
    return check_finite(model, source)


def read_weights(kind: Any, source: ModelSource, *, new: Collection[str] = (), **more: Any) -> PreTrainedModel:
    """`kind.from_pretrained`, but all weights of the model must come from the files, and all layers of the files be
    used: Transformers draws missing weights at random and goes on. Unused ones, such as another head, are only
    warned of. Layers that are `new` may be missing, to be trained."""
    check_files(source)
    check_shards(Path(source.path))
    more |= {"use_safetensors": True}  # nothing is unpickled
    with explaining("model", source):
        model, info = kind.from_pretrained(
            source.path, **source.arguments, **more, output_loading_info=True, ignore_mismatched_sizes=True
        )
    assert isinstance(model, PreTrainedModel)
    unused = [name for name in info["unexpected_keys"] if not BUFFERS.search(name)]
    missing = [name for name in info["missing_keys"] if name.rpartition(".")[0] not in new]
    layers = [name for name in unused if re.search(r"\.\d+\.", name)]
    problems = [
        f"{what} {_some(names)}"
        for what, names in (
            ("it lacks", missing),
            ("the model has no place for its", layers),
            ("of another shape than the configuration says are", info["mismatched_keys"]),
        )
        if names
    ]
    if problems:
        raise UserError(
            f"the weights of '{source.path}' do not fit {type(model).__name__}: {'; '.join(problems)}. "
            "Check that config.json belongs to these weights, and that none of their files is missing"
        )
    if unused and not new:
        what = f"'{source.path}': {type(model).__name__} has no place for {_some(unused)}, and does without"
        warnings.warn(what, UnmdpoWarning, stacklevel=2)
    return model


def check_shards(folder: Path) -> None:
    """Shards lie beside their index: files elsewhere are not the model's, and no checksum knows them."""
    for index in sorted(folder.glob("*.index.json")) if folder.is_dir() else []:
        try:
            shards = {*read_small_json(index)["weight_map"].values()}
            outside = sorted(name for name in shards if Path(name).name != name)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{index}: this is not an index of shards; download the model again") from error
        if outside:
            raise UserError(f"{index} names '{outside[0]}', which is not a file beside it")


def _some(names: Collection[str | tuple[Any, ...]]) -> str:
    """A few names of weights, and how many more there are."""
    known = sorted(name if isinstance(name, str) else str(name[0]) for name in names)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(known[:SHOWN]) + more


def check_finite(model: PreTrainedModel, source: ModelSource) -> PreTrainedModel:
    """Refuses NaN and infinite weights, which would otherwise only show as nonsense hours later."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise UserError(f"the weights '{name}' of '{source.path}' are not all finite; download the model again")
    return model


def context_length(source: ModelSource) -> int | None:
    """The most tokens the model was made for, if its configuration says so."""
    return longest_input(_configuration(source))


def vocabulary_size(source: ModelSource) -> int | None:
    """How many tokens the model knows, if its configuration says so."""
    return getattr(_configuration(source).get_text_config(), "vocab_size", None)


def _configuration(source: ModelSource) -> PreTrainedConfig:
    with explaining("configuration", source):
        config: PreTrainedConfig = AutoConfig.from_pretrained(source.path, **source.arguments)
    return config


def longest_input(config: PreTrainedConfig) -> int | None:
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def body(model: PreTrainedModel) -> nn.Module:
    """The text decoder, which turns tokens into the hidden states that the head reads. In a vision-language model, it
    is the language model alone. The model itself, if it has no decoder apart from its head."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    if decoder is not model and decoder is not model.get_output_embeddings():  # type: ignore[no-untyped-call]
        return decoder
    embeddings = model.get_input_embeddings()  # Transformers does not find every decoder; it begins with these
    return next((child for child in model.children() if embeddings in child.children()), model)


NOISE = re.compile("drop|jitter")  # in the names of what makes training random


def disable_dropout(model: PreTrainedModel) -> None:
    """A policy is compared with a reference that drops nothing, and at the start it should equal it. Some layers read
    their configuration each time, so it says so too, and is saved as such. Adapters keep their own dropout."""
    for name, module in model.named_modules():
        if "lora_dropout" in name:
            continue
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        config = getattr(module, "config", None)
        for owner in (module, config) if isinstance(config, PreTrainedConfig) else (module,):
            for setting in [key for key, value in vars(owner).items() if NOISE.search(key)]:
                if isinstance(getattr(owner, setting), float):
                    setattr(owner, setting, 0.0)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder's layers, wherever the model keeps them: its outermost list of as many modules as it has layers."""
    count, waiting = model.config.get_text_config().num_hidden_layers, [body(model)]
    while waiting:
        module = waiting.pop(0)
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
        waiting.extend(module.children())
    return []


@contextlib.contextmanager
def explaining(what: str, source: ModelSource) -> Iterator[None]:
    """Explains why something could not be loaded. Damaged files make the libraries raise anything, as the model's own
    code may."""
    try:
        yield
    except (torch.OutOfMemoryError, UserError):
        raise
    except (OSError, ValueError, ImportError) as error:
        raise _not_loaded(what, source, error) from error
    except Exception as error:
        whose = "its own code failed: " if source.trust_remote_code else ""
        reason = f"{whose}{type(error).__name__}: {_first_line(error)}"
        raise UserError(f"the {what} of '{source.path}' could not be loaded: {reason}\n{_advice(source)}") from error


def _not_loaded(what: str, source: ModelSource, error: Exception) -> UserError:
    reason = _first_line(error) or type(error).__name__
    if "trust_remote_code" in str(error):
        return UserError(
            f"the {what} of '{source.path}' is code that comes with it; if you trust its authors, set "
            "model.trust_remote_code=true"
        )
    at = f" at revision {source.revision}" if source.revision else ""
    said = f"the {what} of '{source.path}'{at} could not be loaded: {reason}"
    return UserError(said if isinstance(error, ImportError) else f"{said}\n{_advice(source)}")


def _advice(source: ModelSource) -> str:
    if Path(source.path).is_dir():
        return "A file in that folder may be damaged, or of another model: download the model again."
    return (
        "Check the name. For a gated model, accept its terms on the Hub and run `hf auth login`. Without a "
        "network, set model.path to a local folder, or HF_HOME to a cache that has it."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _check_size(config: PreTrainedConfig, source: ModelSource) -> None:
    """Some configurations describe models that nobody could hold, and would be built for hours."""
    config = config.get_text_config()
    for name, most in LARGEST_SIZES.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and not 0 < value <= most:
            raise UserError(f"the configuration of '{source.path}' says {name}: {value}, which cannot be; {AGAIN}")
