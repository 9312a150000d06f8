"""Float32 master weights for a model that computes in bfloat16.

Gradients of every microbatch are added to the masters' float32 gradients as soon as backward makes
them, so that neither accumulation nor the optimizer ever rounds to bfloat16. A model that already is
float32 is its own master.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class MasterWeights:
    def __init__(self, model: nn.Module) -> None:
        self.named: dict[str, nn.Parameter] = {}
        self._copies: list[tuple[nn.Parameter, nn.Parameter]] = []  # computing, master
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dtype in (torch.float32, torch.float64):
                self.named[name] = parameter
                continue
            master = nn.Parameter(parameter.detach().float())
            parameter.register_post_accumulate_grad_hook(_adder(master))  # type: ignore[no-untyped-call]
            self.named[name] = master
            self._copies.append((parameter, master))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.named.values())

    @torch.no_grad()
    def publish(self) -> None:
        """Rounds the masters into the computing model after they have changed."""
        if self._copies:
            computing, masters = zip(*self._copies, strict=True)
            torch._foreach_copy_(list(computing), list(masters))


def _adder(master: nn.Parameter) -> Callable[[Tensor], None]:
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad += parameter.grad
        parameter.grad = None

    return add
