"""One τ, one m(k) and one β for pilots, scales and policies: the recipe's, unless one of them says its own.

The score is defined with the same margin throughout. A policy whose margin is not its scale's is therefore a mistake,
unless the scale states its own: a study that varies a policy's margin under one fitted scale does.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from unmdpo.core.settings import Levels, Nonnegative, Strict, error_at
from unmdpo.engine.settings import ObjectiveChoice
from unmdpo.objectives.table import OBJECTIVES, TAU
from unmdpo.recipe.settings import PilotsRecipe, PolicyRecipe, ScaleRecipe
from unmdpo.scale.table import ESTIMATORS

FIELDS = ("tau", "levels")


class MarginRecipe(Strict):
    """τ·m(k), the margin that a preference of strength k should have."""

    tau: Nonnegative = Field(TAU, description="τ, the weight of a preference's strength")
    levels: Levels = Field(None, description="m(1), …, m(K); default: m(k) = k")


def has_margin(settings: type[Strict]) -> bool:
    return "tau" in settings.model_fields


def with_margin(given: Mapping[str, Any], settings: type[Strict], margin: MarginRecipe) -> dict[str, Any]:
    """The settings that are given, with the recipe's margin where they name none."""
    return (dict(margin) if has_margin(settings) else {}) | dict(given)


def choice_of(policy: PolicyRecipe, margin: MarginRecipe) -> ObjectiveChoice:
    objective = OBJECTIVES[policy.objective]
    return ObjectiveChoice(name=policy.objective, settings=with_margin(policy.settings, objective.settings, margin))


def check_margins(
    margin: MarginRecipe, pilots: PilotsRecipe, scales: Mapping[str, ScaleRecipe], policies: Mapping[str, PolicyRecipe]
) -> None:
    """Raises where a policy, its scale and the pilots have different margins, and the one below does not state its."""
    for name, scale in scales.items():
        estimator = ESTIMATORS[scale.estimator]
        if estimator.joint or scale.run is not None or not has_margin(estimator.settings):
            continue  # it follows its policy, or its run; or it is not fitted to margins
        fitted = with_margin(scale.given, estimator.settings, margin)
        if has_margin(OBJECTIVES[pilots.objective].settings):
            made = with_margin(pilots.settings, OBJECTIVES[pilots.objective].settings, margin)
            _check_same(f"scale {name}", fitted, made, pilots.settings, ("pilots",))
        for user, policy in policies.items():
            if policy.scale == name:
                _check_same(user, dict(choice_of(policy, margin).settings), fitted, scale.settings, ("scales", name))
                _check_beta(user, policy, name, scale)


def _check_same(
    user: str, wanted: Mapping[str, Any], has: Mapping[str, Any], stated: Mapping[str, Any], key: tuple[str, ...]
) -> None:
    for field in FIELDS:
        if field in wanted and _plain(wanted[field]) != _plain(has[field]) and field not in stated:
            raise error_at(
                key,
                f"{user} has {field} = {wanted[field]}, and this has {has[field]}: set `margin` at the recipe's top "
                f"for all, or say {'.'.join(key)}.settings.{field}",
            )


def _check_beta(user: str, policy: PolicyRecipe, name: str, scale: ScaleRecipe) -> None:
    same_kind = OBJECTIVES[policy.objective].normalized == scale.length_normalized
    if same_kind and "beta" in policy.settings and scale.beta is None:
        beta = policy.settings["beta"]
        raise error_at(
            ("scales", name), f"{user} has β = {beta}: say scales.{name}.beta, of the log-ratios that it is fitted to"
        )


def _plain(value: Any) -> Any:
    return [float(level) for level in value] if isinstance(value, list | tuple) else value
