"""The input of every objective: two models' log-probabilities of both responses of each pair."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unmdpo.core.arrays import as_tensors


@dataclass(frozen=True)
class PairLogps:
    """Valid pairs only, tensors or NumPy arrays of shape (n,); log-probabilities are sums over scored tokens.

    Gaps are computed in float32 or wider: bfloat16 sums over hundreds of tokens would lose their digits.

    >>> import numpy as np
    >>> one = np.ones(2)
    >>> pairs = PairLogps(-3 * one, -5 * one, 4 * one, 6 * one, one, ref_chosen=-4 * one, ref_rejected=-4 * one)
    >>> pairs.log_ratio  # (−3 + 4) − (−5 + 4)
    tensor([2., 2.], dtype=torch.float64)
    """

    chosen: Tensor
    rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    strength: Tensor
    ref_chosen: Tensor | None = None
    ref_rejected: Tensor | None = None
    scale: Tensor | None = None  # q of each pair's prompt (or of the pair)

    def __post_init__(self) -> None:
        as_tensors(self)
        for name, values in vars(self).items():
            if values is not None and values.shape != (len(self.chosen),):
                raise ValueError(f"{name} has shape {tuple(values.shape)}; every tensor should be (n,)")

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def log_ratio(self) -> Tensor:
        """A = g(x⁺) − g(x⁻), g the log-ratio to the reference (Eq. dpo-gap)."""
        chosen, rejected = self._log_ratios()
        return chosen - rejected

    @property
    def mean_log_ratio(self) -> Tensor:
        """A^LN: each response's log-ratio divided by its own token count first (Eq. length-normalized-wr)."""
        chosen, rejected = self._log_ratios()
        return chosen / wide(self.chosen_tokens) - rejected / wide(self.rejected_tokens)

    @property
    def policy_gap(self) -> Tensor:
        """P: the policy's log-probability difference, without a reference."""
        return wide(self.chosen) - wide(self.rejected)

    @property
    def mean_policy_gap(self) -> Tensor:
        """P̄: the same, per token."""
        return wide(self.chosen) / wide(self.chosen_tokens) - wide(self.rejected) / wide(self.rejected_tokens)

    @property
    def prompt_scale(self) -> Tensor:
        if self.scale is None:
            raise ValueError("this objective needs a prompt scale, but these pairs have none")
        return wide(self.scale)

    def _log_ratios(self) -> tuple[Tensor, Tensor]:
        if self.ref_chosen is None or self.ref_rejected is None:
            raise ValueError("this objective needs reference log-probabilities, but these pairs have none")
        return wide(self.chosen) - wide(self.ref_chosen), wide(self.rejected) - wide(self.ref_rejected)


def wide(values: Tensor) -> Tensor:
    """float64 stays float64; everything else becomes float32."""
    return values if values.dtype == torch.float64 else values.float()


def beta_ln_from_lengths(chosen_tokens: Tensor, rejected_tokens: Tensor, beta: float = 0.05) -> float:
    """β_LN = β₀ · median over pairs of their mean response length ("Length-normalized configurations").

    With it, sequence-level and length-normalized gaps agree when both responses have the median length. Count only
    valid, nonempty training pairs.
    """
    mean_lengths = (chosen_tokens.double() + rejected_tokens.double()) / 2
    if not mean_lengths.numel():
        raise ValueError("β_LN needs at least one pair of lengths")
    return beta * float(mean_lengths.quantile(0.5))
