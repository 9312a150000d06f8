"""AdamW over float32 master weights, with its moments on the device or in host memory.

A model that computes in bfloat16 gets float32 masters. The gradients of every microbatch are added to the masters'
gradients as soon as the backward pass produces them, so neither accumulation nor the optimizer rounds to bfloat16. A
float32 model is its own master.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw
from torch.utils.weak import WeakTensorKeyDictionary

from unmdpo.engine.pairs.fused import has_kernels, kernels

MOMENTS = ("exp_avg", "exp_avg_sq")


class HostAdamW(torch.optim.AdamW):
    """AdamW with its moments in pinned host memory, copied to the device one parameter at a time.

    The arithmetic stays on the device, so the result is the same as plain AdamW's. The price is copying both moments
    there and back in each update.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)

    def _step_one(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            pin = parameter.device.type == "cuda"
            for name in MOMENTS:
                state[name] = torch.zeros(own(parameter).shape, dtype=parameter.dtype, pin_memory=pin)
        here: list[Tensor] = [state[name].to(parameter.device, non_blocking=True) for name in MOMENTS]
        assert parameter.grad is not None
        adamw(
            [own(parameter)], [own(parameter.grad)], [here[0]], [here[1]], [], [state["step"]],
            fused=True, amsgrad=False, maximize=False,
            beta1=group["betas"][0], beta2=group["betas"][1], eps=group["eps"],
            lr=group["lr"], weight_decay=group["weight_decay"],
        )  # fmt: skip
        for name, moment in zip(MOMENTS, here, strict=True):
            state[name].copy_(moment, non_blocking=True)


def make_optimizer(
    parameters: list[nn.Parameter], *, betas: tuple[float, float], eps: float, decay: float, offload: bool
) -> torch.optim.AdamW:
    """Creates the optimizer; the learning rate is set before each update."""
    if offload:
        return HostAdamW(parameters, betas=betas, eps=eps, weight_decay=decay)
    return torch.optim.AdamW(parameters, betas=betas, eps=eps, weight_decay=decay, fused=True)


def moments(optimizer: torch.optim.AdamW, named: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """Both moments of every parameter, by name; zeros before the first update."""
    values = {}
    for name, parameter in named.items():
        for key in MOMENTS:
            value = optimizer.state.get(parameter, {}).get(key)
            values[f"{name}:{key}"] = torch.zeros_like(parameter) if value is None else _like(value, parameter)
    return {name: value.detach() for name, value in values.items()}


def own(weight: Tensor) -> Tensor:
    """This rank's part of a weight, or the weight itself if it is not sharded."""
    local: Tensor = weight.to_local() if isinstance(weight, DTensor) else weight
    return local


def _like(moment: Tensor, parameter: Tensor) -> Tensor:
    """A moment that is sharded if its parameter is, in host memory if it is there."""
    if not isinstance(parameter, DTensor) or isinstance(moment, DTensor):
        return moment
    mesh = init_device_mesh("cpu", (parameter.device_mesh.size(),))
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(moment, mesh, parameter.placements, run_check=False, shape=shape, stride=stride)


def steps(optimizer: torch.optim.AdamW, named: dict[str, nn.Parameter]) -> dict[str, int]:
    """How many steps each parameter has taken: fewer, if it had no gradient in some, such as an idle expert's."""
    return {name: int(optimizer.state.get(parameter, {}).get("step", 0)) for name, parameter in named.items()}


def restore(
    optimizer: torch.optim.AdamW, named: dict[str, nn.Parameter], tensors: dict[str, Tensor], taken: dict[str, int]
) -> None:
    """Restores the optimizer's state from `moments` and `steps`."""
    for name, parameter in named.items():
        if not taken[name]:
            continue
        restored = {key: tensors[f"{name}:{key}"] for key in MOMENTS}
        if isinstance(optimizer, HostAdamW):
            restored = {key: _on_host(own(value)) for key, value in restored.items()}
        optimizer.state[parameter] = {"step": torch.tensor(float(taken[name]), device=parameter.device), **restored}


def _on_host(moment: Tensor) -> Tensor:
    """In host memory, pinned if it came from a GPU, for faster copies."""
    return moment.cpu().pin_memory() if moment.device.type == "cuda" else moment


_HOOKS: Any = WeakTensorKeyDictionary()  # computing parameter → what fills its master


class MasterWeights:
    def __init__(self, model: nn.Module) -> None:
        self.named: dict[str, nn.Parameter] = {}
        self._copies: list[tuple[nn.Parameter, nn.Parameter]] = []  # (computing parameter, its master)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dtype in (torch.float32, torch.float64):
                self.named[name] = parameter
                continue
            master = nn.Parameter(parameter.detach().float())
            if (earlier := _HOOKS.pop(parameter, None)) is not None:  # of a trainer that had the model before
                earlier.remove()
            _HOOKS[parameter] = parameter.register_post_accumulate_grad_hook(_adder(master))  # type: ignore[no-untyped-call]
            self.named[name] = master
            self._copies.append((parameter, master))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.named.values())

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the updated masters into the computing model, rounding them."""
        if self._copies:
            computing, masters = zip(*self._copies, strict=True)
            torch._foreach_copy_(list(computing), list(masters))


def _adder(master: nn.Parameter) -> Callable[[Tensor], None]:
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        elif has_kernels(master) and master.grad.is_contiguous() and parameter.grad.is_contiguous():
            kernels().accumulate(master.grad, parameter.grad)
        else:
            master.grad += parameter.grad
        parameter.grad = None

    return add
