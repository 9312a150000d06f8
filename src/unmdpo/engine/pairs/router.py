"""How a mixture of experts spreads its tokens: the auxiliary loss that keeps it even, and statistics."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from unmdpo.engine.models import body


class Router:
    """Watches the routers of a model, one pass at a time."""

    def __init__(self, top: int) -> None:
        self.top = top  # experts for each token
        self.loss: Tensor | None = None  # of the last pass
        self.counts: Tensor | None = None  # (experts,) tokens sent to each since the last `forget`

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Router | None":
        """None if the model has no routers, or does not show what they do."""
        top = getattr(model.config.get_text_config(), "num_experts_per_tok", None)
        shown: dict[str, Any] = getattr(body(model), "_can_record_outputs", None) or {}
        return cls(top) if isinstance(top, int) and "router_logits" in shown else None

    def watch(self, logits: tuple[Tensor, ...], real: Tensor) -> None:
        """Notes one pass: each layer's logits (tokens, experts), and which tokens are not padding (tokens,).

        The loss is the number of experts times Σ over experts of the share of tokens they get and their mean
        probability, over all layers together: Transformers' and TRL's own.
        """
        layers = [layer for layer in logits if layer.dim() > 1 and layer.numel() == layer.shape[-1] * len(real)]
        if not layers or len({layer.shape[-1] for layer in layers}) > 1:
            return  # what these routers show is not one row for each token
        experts, real = layers[0].shape[-1], real.float()
        sent, likely = (torch.zeros(experts, device=real.device) for _ in range(2))
        for layer in layers:
            probabilities = layer.reshape(-1, experts).float().softmax(dim=-1)
            chosen = probabilities.topk(self.top, dim=-1).indices.flatten()
            sent = sent.index_add(0, chosen, real.repeat_interleave(self.top))
            likely = likely + (probabilities * real[:, None]).sum(dim=0)
        rows = len(layers) * real.sum().clamp(min=1)
        self.loss = experts * (sent * likely).sum() / rows**2
        self.counts = sent.detach() if self.counts is None else self.counts + sent.detach()

    def forget(self) -> None:
        self.loss = self.counts = None


def load_metrics(counts: Tensor) -> dict[str, float]:
    """1 if all experts get the same; the busiest expert's load relative to that, and the share of idle experts."""
    shares = counts / counts.sum().clamp(min=1)
    return {"router/busiest": float(shares.max() * len(shares)), "router/idle": float((counts == 0).float().mean())}
