"""LoRA through PEFT: small trainable matrices beside frozen weights.

The reference policy is the base model, and a new adapter changes nothing, so the log-ratio at update 0 is zero here
too.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unmdpo.core.errors import UserError
from unmdpo.core.extras import needed
from unmdpo.engine.models import decoder_layers
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import AdapterSettings

if TYPE_CHECKING:
    from peft import PeftModel as PeftModel

ADAPTER = "default"  # PEFT's name for the only adapter
BEFORE = "base_model.model."  # in the names of a saved adapter's weights
BASE = ".base_layer."  # in the names of weights that have an adapter beside them


def add_lora(
    model: PreTrainedModel,
    settings: AdapterSettings,
    seed: int = 42,
    base: str | None = None,
    left_out: Sequence[str] = (),
) -> "PeftModel":
    """Adds adapters to `model`, but to no module that is `left_out`, and freezes everything else. Train
    `result.get_base_model()`. `base` is where the saved adapter will say its base model is."""
    with needed("LoRA", "lora"):
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - an extra
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha if settings.alpha is not None else 2 * settings.rank,
        lora_dropout=settings.dropout,
        target_modules=settings.targets,
        exclude_modules=_left_out(model, settings, left_out),
        task_type="CAUSAL_LM" if model.can_generate() else None,
    )
    with torch.random.fork_rng():
        try:
            # adapters use the model's precision; the trainer keeps their float32 masters
            adapted: PeftModel = get_peft_model(model, config, autocast_adapter_dtype=False)
        except ValueError as error:
            raise UserError(f"the adapter does not fit the model: {error}; check adapter.targets") from error
    _start(model, seed)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    adapted_head = head is not None and any(True for name, _ in head.named_parameters() if "lora_" in name)
    if adapted_head or any(len(getattr(module, "lora_embedding_A", ())) for module in model.modules()):
        raise UserError("adapters beside embeddings or the head are not supported: leave them out of adapter.targets")
    if base is not None:
        adapted.peft_config[ADAPTER].base_model_name_or_path = base
    return adapted


def adapted_layers(model: PreTrainedModel, settings: AdapterSettings) -> list[nn.Module]:
    """The decoder layers that get adapters: the last ones."""
    layers = decoder_layers(model)
    if settings.layers is not None and settings.layers > len(layers):
        raise UserError(f"adapter.layers is {settings.layers}, but the model has {len(layers)} layers")
    return layers if settings.layers is None else layers[-settings.layers :]


def _left_out(model: PreTrainedModel, settings: AdapterSettings, more: Sequence[str]) -> list[str] | str | None:
    """Modules without adapters, for PEFT: names, or one expression for all. With `layers`, all that is not in those:
    an adapter before them would take gradients back through everything."""
    names = [*more, *(_unsuitable(model) if settings.targets == "all-linear" else [])]
    if settings.layers is None:
        return names or None
    places = {module: name for name, module in model.named_modules()}
    adapted = "|".join(re.escape(places[layer]) for layer in adapted_layers(model, settings))
    return "|".join([rf"(?!(?:{adapted})\.).*", *map(re.escape, names)])


def _unsuitable(model: PreTrainedModel) -> list[str]:
    """Linear layers that are more than that, so an adapter beside them would not do: routers of experts, layers in
    groups, and the projections of state space layers, which kernels read without calling them."""
    left_out = set[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and re.search("router|grouped", type(module).__name__.lower()):
            left_out.add(name)
        if hasattr(module, "A_log"):  # every state space layer has this
            left_out |= {f"{name}.{child}" for child in ("out_proj", "conv1d")}
    return sorted(left_out)


def attach(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Puts a saved adapter beside the weights of its base model, in place."""
    from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict  # noqa: PLC0415 - an extra

    config = PeftConfig.from_pretrained(str(folder))
    config.base_model_name_or_path = None  # PEFT would warn that the model lies elsewhere than where it was trained
    adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    _start(model, seed=0)
    try:
        loaded: Any = set_peft_model_state_dict(adapted, load_peft_weights(str(folder), device="cpu"))
    except RuntimeError as error:  # weights of another shape
        raise UserError(f"{folder}: the adapter does not fit {type(model).__name__}: {error}") from error
    wrong = [name for name in loaded.missing_keys if ".lora_" in name] + loaded.unexpected_keys
    if wrong:
        raise UserError(
            f"{folder}: the adapter does not fit {type(model).__name__}: {len(wrong)} of its weights are missing or "
            f"have no place, such as {wrong[0]}"
        )
    return model


def read_masters(folder: Path) -> dict[str, Tensor]:
    """The float32 weights of a saved adapter, by the names that they have in its model."""
    from peft import load_peft_weights  # noqa: PLC0415 - an extra

    found = load_peft_weights(str(folder), device="cpu")
    return {
        f"{name.removeprefix(BEFORE).removesuffix('.weight')}.{ADAPTER}.weight": value for name, value in found.items()
    }


def is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def _start(model: PreTrainedModel, seed: int) -> None:
    """PEFT's usual start, from our own seed: A is random, B is zero. It also gives memory to the adapters of a model
    that has no weights yet."""
    rng = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for name, factor in (("lora_A", 1.0), ("lora_B", 0.0)):
            layer: Any = getattr(module, name, {})
            if ADAPTER in layer:
                weight = layer[ADAPTER].weight
                drawn = (2 * torch.rand(weight.shape, generator=rng) - 1) * factor / weight.shape[1] ** 0.5
                device = "cpu" if weight.is_meta else weight.device
                layer[ADAPTER].weight = nn.Parameter(drawn.to(device, weight.dtype))


def save_adapter(adapted: "PeftModel", folder: Path, masters: Mapping[str, Tensor]) -> None:
    """Saves only the adapter, in PEFT's format, with the float32 `masters` of its weights."""
    weights = {f"{BEFORE}{name}": value for name, value in masters.items()}
    configs: Any = adapted.peft_config.values()
    for config in configs:
        if isinstance(config.target_modules, set):  # whose order changes from one process to the next
            config.target_modules = sorted(config.target_modules)
    adapted.save_pretrained(str(folder), state_dict=weights)


@torch.no_grad()
def merge_weights(model: PreTrainedModel, masters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
    """The weights of a model with its adapter added, and what rounding them cost: the size of the rounding errors,
    relative to the adapter's change. From the float32 `masters`, in float32, and rounded once."""
    kept = {name for name, _ in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]}
    weights = {name: value for name, value in model.state_dict().items() if name in kept and ".lora_" not in name}
    change = error = 0.0
    for place, module in model.named_modules():
        name = f"{place}.weight"
        if name in weights and hasattr(module.weight, "quant_state"):  # four bits, with or without an adapter
            weights[name] = _dequantized(module).to(model.dtype)
    for place, module in model.named_modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        delta = _delta(module, place, masters)
        name = f"{place}{BASE}weight"
        exact = full_tensor(weights[name]).float() + delta
        weights[name] = exact.to(dtype=weights[name].dtype).cpu()
        change += float(delta.square().sum())
        error += float((weights[name].float() - exact.cpu()).square().sum())
        if not Ranks.current().first:
            weights[name] = torch.empty(0)  # the first rank writes
    rounding = (error / change) ** 0.5 if change else 0.0
    return {name.replace(BASE, "."): value for name, value in weights.items()}, rounding


def without_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """The same kind of model without weights, adapters or quantization: what merged weights are saved with."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        made: PreTrainedModel = type(model)(config)
    made.generation_config = model.generation_config
    return made


def _delta(module: Any, place: str, masters: Mapping[str, Tensor]) -> Tensor:
    """(out, in) float32: scaling · B·A, transposed where the base layer's weights are."""
    a, b = (
        full_tensor(masters[f"{place}.{name}.{ADAPTER}.weight"]).float().to(module.get_base_layer().weight.device)
        for name in ("lora_A", "lora_B")
    )
    product: Tensor = module.scaling[ADAPTER] * (b @ a)
    return product.T if getattr(module, "fan_in_fan_out", False) else product


def _dequantized(layer: Any) -> Tensor:
    """The weights of a layer that keeps them in four bits."""
    from bitsandbytes.functional import dequantize_4bit  # noqa: PLC0415 - an extra

    plain: Tensor = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return plain


def full_tensor(weight: Tensor) -> Tensor:
    """The full tensor, also of one that is sharded over ranks. All ranks must call this."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight
