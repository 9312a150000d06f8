"""The optimizer of the few parameters beside a policy."""

import torch

from unmdpo.core.adamw import clipped


def test_gradients_are_clipped_together():
    given = [torch.tensor([3.0, 4.0]), torch.tensor([[12.0]])]
    parameters = [torch.nn.Parameter(torch.zeros_like(one)) for one in given]
    for parameter, gradient in zip(parameters, given, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for found, parameter in zip(clipped(given), parameters, strict=True):
        assert torch.allclose(found, parameter.grad)
