"""What an update needs to know about each loader slot."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.objectives import PairLogps


@dataclass(frozen=True)
class TrainingData:
    """Small CPU tensors over all n slots, indexed by slot."""

    pairs: EncodedPairs
    strength: Tensor  # (n,)
    reference: Tensor | None = None  # (n, 2) log-probabilities of chosen and rejected
    scale: Tensor | None = None  # (n,) frozen q
    unit: Tensor | None = None  # (n,) each pair's unit, for a scale trained with the policy
    weight: Tensor | None = None  # (n,) how much each pair counts, 1 on average

    def __len__(self) -> int:
        return len(self.pairs)

    def valid(self, slots: Sequence[int]) -> list[int]:
        return [slot for slot in slots if self.pairs.valid[slot]]

    def logps(self, slots: Sequence[int], logs: Tensor, scales: Tensor | None) -> PairLogps:
        """`logs` (m, 2) and `scales` (m,) of some slots, with everything else an objective needs."""
        index = torch.tensor(slots, dtype=torch.int64)
        tokens = torch.from_numpy(self.pairs.scored[index.numpy()]).to(logs.device, non_blocking=True)

        def on_device(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.to(logs.device, non_blocking=True)

        known = None if self.reference is None else self.reference[index]
        return PairLogps(
            chosen=logs[:, 0],
            rejected=logs[:, 1],
            chosen_tokens=tokens[:, 0],
            rejected_tokens=tokens[:, 1],
            strength=self.strength[index].to(logs.device, non_blocking=True),
            ref_chosen=on_device(None if known is None else known[:, 0]),
            ref_rejected=on_device(None if known is None else known[:, 1]),
            scale=on_device(scales),
        )

    def weighted(self, slots: Sequence[int], losses: Tensor) -> Tensor:
        """(m,) losses of some slots, each as much as its pair counts."""
        return losses if self.weight is None else losses * self.weight[list(slots)].to(losses)

    def units(self, slots: Sequence[int]) -> Tensor:
        if self.unit is None:
            raise UserError("a scale trained with the policy needs the unit of every pair")
        return self.unit[list(slots)]
