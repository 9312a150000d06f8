"""What is logged of an update's pairs, under the names that TRL's users know."""

from typing import Any

from torch import Tensor

from unmdpo.catalog import Spec
from unmdpo.objectives import PairLogps
from unmdpo.scores import StrengthMap


def describe(pairs: PairLogps, spec: Spec, settings: dict[str, Any]) -> dict[str, float]:
    """Means over a batch. Rewards are β times the log-ratio as the objective takes it: of whole
    responses, or per token for length-normalized ones."""
    named = {"logps/chosen": pairs.chosen, "logps/rejected": pairs.rejected}
    if pairs.ref_chosen is not None and pairs.ref_rejected is not None:
        beta = settings.get("beta", 1.0)
        chosen = beta * (pairs.chosen - pairs.ref_chosen) / (pairs.chosen_tokens if spec.normalized else 1)
        rejected = beta * (pairs.rejected - pairs.ref_rejected)
        rejected = rejected / (pairs.rejected_tokens if spec.normalized else 1)
        named |= {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": chosen - rejected,
            "rewards/accuracies": (chosen > rejected).float(),
        }
    if spec.strength_map:
        named["margins/target"] = settings["tau"] * StrengthMap(settings["levels"]).of(pairs.strength)
    if pairs.scale is not None:
        named["scale/mean"] = pairs.scale
    return {name: _mean(values) for name, values in named.items()}


def _mean(values: Tensor) -> float:
    return float(values.float().mean())
