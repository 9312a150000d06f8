"""One τ, one m(k) and one β for pilots, scale and policy alike: the score is defined with the same throughout.

What a scale or the pilots do not say themselves follows from the policies. Where policies disagree nothing can follow,
and the recipe has to say which: a study that varies a policy's margin under one fitted scale does.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from unmdpo.core.settings import Strict, error_at
from unmdpo.objectives.table import OBJECTIVES, TAU
from unmdpo.recipe.settings import PilotsRecipe, PolicyRecipe, ScaleRecipe
from unmdpo.scale.table import ESTIMATORS

Scales = Mapping[str, ScaleRecipe]
Policies = Mapping[str, PolicyRecipe]


class Margin(NamedTuple):
    tau: float = TAU
    levels: tuple[float, ...] | None = None

    def __str__(self) -> str:
        return f"τ = {self.tau:g}" + ("" if self.levels is None else f" and m = {[*self.levels]}")


def scale_settings(name: str, scales: Scales, policies: Policies) -> dict[str, Any]:
    """What an estimator is given, with the margin of the policies that use the scale."""
    spec = scales[name]
    if not _has_margin(ESTIMATORS[spec.estimator].settings) or ESTIMATORS[spec.estimator].joint:
        return spec.given  # one that is trained with its policy follows that one
    margins = {policy: _margin_of(other) for policy, other in _users(policies, name).items()}
    return _agreed(margins, spec.given, ("scales", name), "the scale is")._asdict() | spec.given


def scale_beta(name: str, scales: Scales, policies: Policies) -> float | None:
    """The β of log-ratios that a scale is fitted to, if its policies have one of their own; None: the recipe's."""
    spec, users = scales[name], _users(policies, name)
    if spec.beta is not None:
        return spec.beta
    said = {
        policy: other.settings.get("beta")
        for policy, other in users.items()
        if OBJECTIVES[other.objective].normalized == spec.length_normalized
    }
    if len({*said.values()}) > 1:
        listed = ", ".join(f"{policy}: {'default' if beta is None else beta}" for policy, beta in said.items())
        raise error_at(
            ("scales", name),
            f"its policies have several β ({listed}): give each a scale of its own, or say scales.{name}.beta",
        )
    return next(iter(said.values()), None)


def pilot_settings(pilots: PilotsRecipe, scales: Scales, policies: Policies) -> dict[str, Any]:
    """What the pilots' objective is given, with the margin of the scales that are fitted to them."""
    if not _has_margin(OBJECTIVES[pilots.objective].settings):
        return pilots.settings
    margins = {}
    for name, spec in scales.items():
        estimator = ESTIMATORS[spec.estimator]
        if estimator.pilots and not estimator.joint and spec.run is None and _has_margin(estimator.settings):
            given = scale_settings(name, scales, policies)
            margins[f"scale {name}"] = Margin(given["tau"], _levels(given))
    return _agreed(margins, pilots.settings, ("pilots",), "pilots are")._asdict() | pilots.settings


def _agreed(margins: Mapping[str, Margin], said: Mapping[str, Any], path: tuple[str, ...], what: str) -> Margin:
    """The margin of all that use something. Where they have several, it has to say which of them is its own."""
    own = Margin(float(said.get("tau", TAU)), _levels(said))
    for field, value in own._asdict().items():
        known = {user: getattr(margin, field) for user, margin in margins.items()}
        several = ", ".join(f"{user}: {margin}" for user, margin in margins.items())
        if field not in said and len({*known.values()}) > 1:
            raise error_at(
                path,
                f"{what} made with one margin, and these have several ({several}): keep them apart, or say which with "
                f"{'.'.join(path)}.settings.{field}",
            )
        if field in said and known and value not in known.values():
            raise error_at((*path, "settings", field), f"what uses it has another margin: {several}")
        own = own._replace(**{field: value if field in said else next(iter(known.values()), value)})
    return own


def _users(policies: Policies, scale: str) -> dict[str, PolicyRecipe]:
    return {name: policy for name, policy in policies.items() if policy.scale == scale}


def _margin_of(policy: PolicyRecipe) -> Margin:
    resolved = dict(policy.choice.resolved)
    return Margin(float(resolved["tau"]), _levels(resolved))


def _levels(settings: Mapping[str, Any]) -> tuple[float, ...] | None:
    levels = settings.get("levels")
    return None if levels is None else tuple(map(float, levels))


def _has_margin(settings: type[Strict]) -> bool:
    return "tau" in settings.model_fields
