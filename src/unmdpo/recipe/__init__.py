"""The recipe: everything a run depends on, strict, frozen and typed, with one digest.

A recipe only describes. It is read from YAML, changed by `key.sub=value` overrides, checked as a
whole before any work starts, and written back in full, so that a run can be repeated from its own
record.
"""

import hashlib
import json
from typing import Any, Self

import yaml
from pydantic import Field, model_validator

from unmdpo.catalog import BETA, CATALOG, INITIAL
from unmdpo.errors import UserError
from unmdpo.recipe.data import VALIDATION_ROWS, DataRecipe, ModelRecipe
from unmdpo.recipe.evaluation import EvaluationRecipe, PublishedRecipe
from unmdpo.recipe.fields import Name, Positive, Strict, among, error_at, names_only
from unmdpo.recipe.training import ComputeRecipe, PilotsRecipe, PolicyRecipe, ScaleRecipe, TrainingRecipe


class Recipe(Strict):
    """Everything a run depends on."""

    name: Name
    description: str = ""
    table: str = Field("", description="what of a paper it repeats; recipes are listed by it")
    seed: int = 42
    beta: Positive = Field(
        BETA, description="β₀ of pilots and of every objective that has no β of its own, as SimPO has"
    )
    model: ModelRecipe
    data: DataRecipe
    training: TrainingRecipe = TrainingRecipe()
    pilots: PilotsRecipe = PilotsRecipe()
    scales: dict[Name, ScaleRecipe] = Field({}, json_schema_extra=names_only)
    policies: dict[Name, PolicyRecipe] = Field(min_length=1, json_schema_extra=names_only)
    evaluation: EvaluationRecipe | None = None
    compute: ComputeRecipe = ComputeRecipe()

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved recipe: equal exactly when every setting is."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_yaml(self) -> str:
        return as_yaml(self.model_dump(mode="json"))

    @model_validator(mode="after")
    def _objectives_exist(self) -> Self:
        pilots = self.pilots.objective
        among(CATALOG, pilots, ("pilots", "objective"), f"unknown objective '{pilots}'")
        if CATALOG[self.pilots.objective].scale:
            raise error_at(
                ("pilots", "objective"), "pilots come before any scale: choose one without a scale"
            )
        for name, policy in self.policies.items():
            self._check_policy(name, policy)
        return self

    def _check_policy(self, name: str, policy: PolicyRecipe) -> None:
        key = ("policies", name)
        if name == INITIAL:
            raise error_at(key, "'initial' is the model that policies start from; choose another name")
        among(CATALOG, policy.objective, (*key, "objective"), f"unknown objective '{policy.objective}'")
        spec = CATALOG[policy.objective]
        if policy.scale is not None:
            among(self.scales, policy.scale, (*key, "scale"), f"no scale is called '{policy.scale}'")
        if spec.scale and policy.scale is None:
            raise error_at(key, f"objective '{policy.objective}' needs a scale")
        if not spec.scale and policy.scale is not None:
            raise error_at((*key, "scale"), f"objective '{policy.objective}' uses no scale")
        try:
            spec.resolve(policy.objective, policy.settings)
        except UserError as error:
            raise error_at((*key, "settings"), str(error)) from error

    def _check_published(self, panel: str, numbers: dict[str, PublishedRecipe]) -> None:
        assert self.evaluation is not None
        key, opponents = ("evaluation", "published", panel), self.evaluation.all_opponents
        among(self.evaluation.panels, panel, key, f"no panel is called '{panel}'")
        for policy, said in numbers.items():
            among(self.policies, policy, (*key, policy), f"'{policy}' is no policy")
            for opponent in said.against:
                where = (*key, policy, "against")
                among(opponents, opponent, where, f"nobody is compared with '{opponent}'")

    @model_validator(mode="after")
    def _evaluation_fits(self) -> Self:
        if self.evaluation is None:
            return self
        baseline = self.evaluation.baseline
        among(self.policies, baseline, ("evaluation", "baseline"), f"'{baseline}' is no policy")
        for opponent in self.evaluation.opponents:
            among(self.policies, opponent, ("evaluation", "opponents"), f"'{opponent}' is no policy")
        for panel, numbers in self.evaluation.published.items():
            self._check_published(panel, numbers)
        if all(panel.apart for panel in self.evaluation.panels.values()):
            raise error_at(("evaluation", "panels"), "every panel is set apart; let one be answered")
        wanted = sum(panel.size for panel in self.evaluation.panels.values() if panel.path is None)
        official = self.data.path is None and self.data.validation.is_official
        available = VALIDATION_ROWS[self.data.source] if official else wanted
        if wanted > available:
            raise error_at(
                ("evaluation", "panels"),
                f"panels ask for {wanted} prompts; the validation split has at most {available}",
            )
        return self


def as_yaml(value: Any) -> str:
    """YAML that reads back as the same value: letters as they are, unless one of Unicode's own line breaks
    is among them, which PyYAML writes and does not read."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    if set(text) & {"\x85", "\u2028", "\u2029"}:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=100)
    return text
