"""The whole recipe, its cross-checks and its digest."""

import hashlib
import json
from typing import Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from unmdpo.core.errors import UserError
from unmdpo.core.settings import SEED, Name, Positive, Seed, Strict, among, error_at, names_only
from unmdpo.engine.inference.judges import kind_of
from unmdpo.engine.settings import ComputeSettings, LoggingSettings, ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.objectives.table import BETA, INITIAL, OBJECTIVES
from unmdpo.recipe.evaluation import EvaluationRecipe, PrimaryRecipe
from unmdpo.recipe.margin import MarginRecipe, check_margins, choice_of, with_margin
from unmdpo.recipe.pairs import PairsRecipe
from unmdpo.recipe.seeds import TrainingRun, pair_by_seed, with_seed
from unmdpo.recipe.settings import DataRecipe, PilotsRecipe, PolicyRecipe, ScaleRecipe
from unmdpo.scale.table import ESTIMATORS


class Recipe(Strict):
    """Everything a run depends on."""

    name: Name = Field(description="of the run, in the store and in the report")
    description: str = Field("", description="a line about it")
    table: str = Field("", description="the paper's table that it repeats; recipes are listed by it")
    seed: Seed = Field(SEED, description="of everything that has no seed of its own")
    beta: Positive = Field(
        BETA, description="β₀ for pilots and for every objective without its own β (SimPO has its own)"
    )
    margin: MarginRecipe = Field(
        MarginRecipe(), description="τ·m(k) for pilots, scales and policies that have none of their own"
    )
    model: ModelSource = Field(description="the initial model, which is the reference too unless there is another")
    reference: ModelSource | Literal["none"] | None = Field(
        None, description="another model that log-ratios are relative to; none: log-probabilities take their place"
    )
    data: DataRecipe = Field(description="what to learn from")
    training: TrainingSettings = Field(TrainingSettings(), description="how policies are trained")
    pilots: PilotsRecipe = Field(PilotsRecipe(), description="the runs that scales are fitted to")
    scales: dict[Name, ScaleRecipe] = Field(
        {}, description="how uncertain each prompt is, by name", json_schema_extra=names_only
    )
    policies: dict[Name, PolicyRecipe] = Field(
        min_length=1, description="what is trained, by name", json_schema_extra=names_only
    )
    evaluation: EvaluationRecipe | None = Field(None, description="who is compared with whom, and by whom")
    pairs: PairsRecipe | None = Field(None, description="the next round's data: a policy's own answers, in pairs")
    compute: ComputeSettings = Field(ComputeSettings(), description="how the work is done")
    logging: LoggingSettings = Field(LoggingSettings(), description="where metrics are written beside the store")

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved recipe: equal if and only if every setting is equal."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def seeded_training(self) -> TrainingSettings:
        """Training settings for policies, with the recipe's seed if training has none."""
        seed = self.seed if self.training.seed is None else self.training.seed
        return self.training.model_copy(update={"seed": seed})

    @property
    def trained(self) -> dict[str, PolicyRecipe]:
        """Every training of a policy: `dpo`, or `dpo@42` and `dpo@17` if it has seeds."""
        every = () if self.evaluation is None else self.evaluation.seeds
        runs = dict[str, PolicyRecipe]()
        for name, policy in self.policies.items():
            seeds = policy.seeds or (every if policy.training.seed is None else ())
            for seed in seeds:
                training = policy.training.model_copy(update={"seed": seed})
                runs[with_seed(name, seed)] = policy.model_copy(update={"seeds": (), "training": training})
            if not seeds:
                runs[name] = policy
        return runs

    @property
    def runs(self) -> dict[str, list[TrainingRun]]:
        """Candidate → its trainings; one without a seed, if its answers were made elsewhere."""
        brought = {} if self.evaluation is None else self.evaluation.answers
        runs = dict[str, list[TrainingRun]]()
        for name, policy in self.trained.items():
            seed = self.seeded_training.seed if policy.training.seed is None else policy.training.seed
            runs.setdefault(name.partition("@")[0], []).append(TrainingRun(seed, name))
        return runs | {name: [TrainingRun(None, name)] for name in [*brought, INITIAL]}

    def choice_of(self, policy: PolicyRecipe) -> ObjectiveChoice:
        """A policy's objective, with the recipe's margin unless it has its own."""
        return choice_of(policy, self.margin)

    def scale_settings(self, name: str) -> dict[str, Any]:
        """What an estimator is given; one that is trained with its policy takes the margin from there."""
        estimator, given = ESTIMATORS[self.scales[name].estimator], self.scales[name].given
        return given if estimator.joint else with_margin(given, estimator.settings, self.margin)

    @property
    def pilot_settings(self) -> dict[str, Any]:
        return with_margin(self.pilots.settings, OBJECTIVES[self.pilots.objective].settings, self.margin)

    def to_yaml(self) -> str:
        return as_yaml(self.model_dump(mode="json"))

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.pairs is not None:
            known = [*self.policies, INITIAL]
            among(known, self.pairs.policy, ("pairs", "policy"), f"'{self.pairs.policy}' is not a policy")
        pilots = self.pilots.objective
        if OBJECTIVES[pilots].scale:
            raise error_at(("pilots", "objective"), "pilots come before any scale: choose an objective without one")
        for name, scale in self.scales.items():
            scale.check(("scales", name))
        for name, policy in self.policies.items():
            self._check_policy(name, policy)
        check_margins(self.margin, self.pilots, self.scales, self.policies)
        _check_settings(ObjectiveChoice(name=pilots, settings=self.pilot_settings), ("pilots",))
        return self

    def _check_policy(self, name: str, policy: PolicyRecipe) -> None:
        key = ("policies", name)
        if name == INITIAL:
            raise error_at(key, "'initial' is the model that policies start from; choose another name")
        objective = OBJECTIVES[policy.objective]
        if policy.scale is not None:
            among(self.scales, policy.scale, (*key, "scale"), f"there is no scale '{policy.scale}'")
        if objective.scale and policy.scale is None:
            raise error_at(key, f"objective '{policy.objective}' needs a scale")
        if not objective.scale and policy.scale is not None:
            raise error_at((*key, "scale"), f"objective '{policy.objective}' does not use a scale")
        _check_settings(self.choice_of(policy), key)

    @model_validator(mode="after")
    def _four_bits_have_one_rank(self) -> Self:
        adapters = [self.training.adapter, self.pilots.adapter, *(p.training.adapter for p in self.policies.values())]
        shared = [self.compute.ranks_of.get(kind, self.compute.ranks) for kind in ("reference", "pilot", "policy")]
        if max(shared) > 1 and any(adapter is not None and adapter.four_bit for adapter in adapters):
            raise error_at(
                ("compute", "ranks"), "weights in four bits are not shared by ranks: leave ranks at 1, or four_bit out"
            )
        return self

    @model_validator(mode="after")
    def _evaluation_fits(self) -> Self:
        if self.evaluation is None:
            return self
        if INITIAL in self.evaluation.answers:
            raise error_at(("evaluation", "answers"), f"'{INITIAL}' is the initial model: choose another name")
        baseline = self.evaluation.baseline
        why = f"'{baseline}' is not a policy"
        if baseline == INITIAL:
            why = "name a policy, and say `initial: true` and `primary: {against: initial}`"
        among(self.candidates, baseline, ("evaluation", "baseline"), why)
        for opponent in self.evaluation.opponents:
            among(self.candidates, opponent, ("evaluation", "opponents"), f"'{opponent}' is not a policy")
        for policy in self.evaluation.selected_among:
            among(self.candidates, policy, ("evaluation", "selected_among"), f"'{policy}' is not a policy")
        self._check_seeds(self.evaluation)
        if all(panel.apart for panel in self.evaluation.panels.values()):
            raise error_at(("evaluation", "panels"), "every panel is kept apart; at least one should be answered")
        self._check_panels(self.evaluation)
        self._check_primary(self.evaluation)
        return self

    def _check_primary(self, evaluation: EvaluationRecipe) -> None:
        key, asked, opponents = ("evaluation", "primary"), self.primary, evaluation.all_opponents
        known = {"policy": self.candidates, "against": opponents, "panel": evaluation.answered}
        for name, values in (known | {"judge": [*evaluation.all_judges]}).items():
            given = getattr(asked, name)
            if given is not None:
                among(values, given, (*key, name), f"'{given}' is not one of {', '.join(values) or 'none'}")
        if asked.policy is not None and asked.policy == asked.against:
            raise error_at((*key, "policy"), f"'{asked.policy}' would be compared with itself")

    @property
    def primary(self) -> PrimaryRecipe:
        """The question that the run answers first, with what follows by rule filled in. No policy: there is nothing to
        compare."""
        assert self.evaluation is not None
        given, evaluation = self.evaluation.primary, self.evaluation
        alone = evaluation.initial and self.candidates == [evaluation.baseline]
        against = given.against or (INITIAL if alone else evaluation.baseline)
        others = [name for name in self.candidates if name != against]
        return PrimaryRecipe(
            policy=given.policy or (others[-1] if others else None),
            against=against,
            panel=given.panel or next(iter(evaluation.answered), None),
            judge=next(iter(evaluation.all_judges)) if given.judge is None else given.judge,
        )

    def _check_seeds(self, evaluation: EvaluationRecipe) -> None:
        runs, seedless = self.runs, [*evaluation.answers, *([INITIAL] if evaluation.initial else [])]
        pairwise = any(kind_of(judge).pairwise for judge in evaluation.all_judges.values())
        if pairwise and seedless and len(runs[evaluation.baseline]) > 1:
            raise error_at(
                ("evaluation", "baseline"),
                f"a judge of pairs sees '{seedless[0]}', which has no seed, beside one answer of the baseline, which "
                "has several seeds: leave it out, or give the baseline one seed",
            )
        for opponent in evaluation.all_opponents:
            for candidate in self.candidates:
                try:
                    pair_by_seed(runs[candidate], runs[opponent])
                except ValueError as error:
                    raise error_at(
                        ("policies", candidate, "seeds"), f"it is compared with '{opponent}', where {error}"
                    ) from error

    def baseline_of(self, training: str) -> str:
        """The training of the baseline that a judge of pairs sees beside this one: of the same seed, or the first."""
        assert self.evaluation is not None
        ours = next(trainings for trainings in self.runs.values() for each in trainings if each.name == training)
        pairs = pair_by_seed(ours, self.runs[self.evaluation.baseline])
        return next(pair.theirs for pair in pairs if pair.ours == training)

    @property
    def candidates(self) -> list[str]:
        """Whose answers are judged: the policies, and those whose answers were made elsewhere."""
        brought = [] if self.evaluation is None else self.evaluation.answers
        return list(dict.fromkeys([*self.policies, *brought]))

    @property
    def methods(self) -> dict[str, str]:
        """Candidate → what it is a setting of: an objective with a scale."""
        named = {name: f"{policy.objective}, {policy.scale}" for name, policy in self.policies.items()}
        return {name: named.get(name, name) for name in self.candidates}

    def _check_panels(self, evaluation: EvaluationRecipe) -> None:
        """Refuses panels that are larger than the official validation split."""
        official = self.data.official
        if official is None or not self.data.validation.is_official:
            return
        wanted = sum(
            panel.size for panel in evaluation.panels.values() if panel.path is None and isinstance(panel.size, int)
        )
        if wanted > official.validation_rows:
            raise error_at(
                ("evaluation", "panels"),
                f"panels ask for {wanted} prompts; the validation split has at most {official.validation_rows}",
            )


def _check_settings(choice: ObjectiveChoice, key: tuple[str, ...]) -> None:
    try:
        choice.resolved  # noqa: B018 - resolving checks the settings
    except UserError as error:
        raise error_at((*key, "settings"), str(error)) from error


def as_yaml(value: Any) -> str:
    """YAML that reads back as the same value. Unicode is kept as it is, unless it contains one of Unicode's line
    breaks, which PyYAML writes but cannot read back."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    if set(text) & {"\x85", "\u2028", "\u2029"}:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=100)
    return text
