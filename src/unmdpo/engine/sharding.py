"""Models shared by several ranks: each loads, holds and updates only its part of every weight."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from unmdpo.core.errors import UserError
from unmdpo.core.files import read_small_json
from unmdpo.engine.adapters import BASE, attach
from unmdpo.engine.models import (
    check_finite,
    compute_dtype,
    decoder_layers,
    explaining,
    load_model,
    longest_input,
    read_weights,
)
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.training.optimizer import own

if TYPE_CHECKING:
    from unmdpo.engine.pairs.scorer import PairScorer

R = TypeVar("R", bound=nn.Module)

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"


def shard(scorer: "PairScorer", *, compute: torch.dtype = torch.bfloat16) -> "PairScorer":
    """Shards parameters, gradients and optimizer state over all ranks, in place.

    Trained weights must be float32: they become the sharded masters. Each layer is gathered in `compute` precision
    when needed, and gradients are reduced in float32. Create the optimizer afterwards.
    """
    if any(p.requires_grad and p.dtype != torch.float32 for p in scorer.model.parameters()):
        raise UserError("sharding needs float32 weights: load the model with dtype float32")
    _shard(scorer, scorer.model, scorer.device, compute)
    return scorer


def open_to_read(
    source: ModelSource,
    root: Callable[[PreTrainedModel], R],
    kind: Any = AutoModelForCausalLM,
    adapter: Path | None = None,
    **more: Any,
) -> R:
    """A model that is only read from, with a saved `adapter` if given, as the module that `root` makes of it, which
    must be called as a whole. Several ranks share it, each loading its part."""
    device = local_device()
    if Ranks.current().world == 1:
        model = load_model(source, device=device, kind=kind, **more)
        return root(model if adapter is None else attach(model, adapter))
    compute = compute_dtype(device)
    model = empty_model(source, compute, kind, **more)
    made = root(model if adapter is None else attach(model, adapter))
    _shard(made, model, device, compute)
    fill(made, model, source, device, kind, **more)
    return made


def _shard(root: nn.Module, model: PreTrainedModel, device: torch.device, compute: torch.dtype) -> None:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(root, mesh=mesh, mp_policy=precision)


def empty_model(
    source: ModelSource, dtype: torch.dtype, kind: Any = AutoModelForCausalLM, **more: Any
) -> PreTrainedModel:
    """The model without its weights: parameters take no memory, buffers are as they should be."""
    with explaining("model", source):
        config = AutoConfig.from_pretrained(source.path, **source.arguments, **more)
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"'{source.path}' is quantized, which ranks cannot share: use its unquantized weights")
    with explaining("model", source), _parameters_without_memory():
        model = kind.from_config(config, dtype=dtype, trust_remote_code=source.trust_remote_code)
    assert isinstance(model, PreTrainedModel)
    model.tie_weights()
    model.train(False)
    return model


def size_and_context(source: ModelSource) -> tuple[int, int | None]:
    """The model's parameters, and the most tokens it takes if that is known, from its configuration alone."""
    shape = empty_model(source, torch.bfloat16)
    return sum(parameter.numel() for parameter in shape.parameters()), longest_input(shape.config)


@contextlib.contextmanager
def _parameters_without_memory() -> Iterator[None]:
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@torch.no_grad()
def fill(
    root: nn.Module,
    model: PreTrainedModel,
    source: ModelSource,
    device: torch.device,
    kind: Any = AutoModelForCausalLM,
    **more: Any,
) -> None:
    """Reads the weights of a sharded empty model. Each rank reads its own rows from the files. Where the files name
    weights differently than the model does, the first rank loads all of them and hands the parts out, or says what
    does not fit."""
    empty = {name for name, parameter in model.named_parameters() if parameter.is_meta}
    root._apply(  # type: ignore[no-untyped-call]
        lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
    )
    waiting = dict[str, Tensor]()
    waiting |= {name.replace(BASE, "."): value for name, value in model.named_parameters() if name in empty}
    waiting |= {name: value for name, value in model.named_buffers() if name in model.state_dict()}
    files, shapes = _files(source), weight_shapes(source)
    places = {name.replace(BASE, ".") for name in model.state_dict()}  # more than wait: of tied weights, only one does
    if shapes.keys() <= places and all(shapes.get(name) == list(weight.shape) for name, weight in waiting.items()):
        for name, weight in waiting.items():
            own(weight).copy_(_rows(files[name], name, weight))
    else:
        _hand_out(waiting, device, partial(read_weights, kind, source, **more))
    check_finite(model, source)


def _files(source: ModelSource) -> dict[str, Path]:
    """Which safetensors file has which weight; empty if the weights are in another format."""
    more = {"revision": source.revision}
    index = cached_file(source.path, INDEX, _raise_exceptions_for_missing_entries=False, **more)
    if index is not None:
        names = read_small_json(Path(index))["weight_map"]
        paths, _ = get_checkpoint_shard_files(source.path, index, **more)  # type: ignore[no-untyped-call]
        by_name = {Path(path).name: Path(path) for path in paths}
        return {name: by_name[file] for name, file in names.items()}
    whole = cached_file(source.path, WHOLE, _raise_exceptions_for_missing_entries=False, **more)
    if whole is None:
        return {}
    with safe_open(whole, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), Path(whole))


def weight_shapes(source: ModelSource) -> dict[str, list[int]]:
    """The shape of every weight, without reading any; empty if they are not in safetensors files."""
    files, shapes = _files(source), dict[str, list[int]]()
    for file in set(files.values()):
        with safe_open(file, framework="pt") as opened:
            shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118 - not a dict
    return shapes


def _rows(file: Path, name: str, weight: Tensor) -> Tensor:
    """This rank's rows of a weight; all of them, if it is not sharded."""
    with safe_open(file, framework="pt") as opened:
        if not isinstance(weight, DTensor) or weight.dim() == 0:
            return torch.as_tensor(opened.get_tensor(name))
        rows = len(own(weight))
        first = min(dist.get_rank() * -(-weight.shape[0] // dist.get_world_size()), weight.shape[0])
        return torch.as_tensor(opened.get_slice(name)[first : first + rows])


def _hand_out(waiting: dict[str, Tensor], device: torch.device, load: Callable[..., PreTrainedModel]) -> None:
    """Broadcasts the weights one at a time, each rank keeping its part."""
    known: dict[str, Tensor] = {}
    if dist.get_rank() == 0:
        known = load(dtype=next(iter(waiting.values())).dtype).state_dict()
    for name, weight in waiting.items():
        whole = (
            known[name].to(device, weight.dtype)
            if known
            else torch.empty(weight.shape, dtype=weight.dtype, device=device)
        )
        dist.broadcast(whole, src=0)
        part = (
            distribute_tensor(whole, weight.device_mesh, weight.placements) if isinstance(weight, DTensor) else whole
        )
        own(weight).copy_(own(part))
