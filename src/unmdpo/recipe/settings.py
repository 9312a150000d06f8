"""The parts of a recipe that are defined only here: data, pilots, scales, policies.

Settings of the engine, objectives, estimators, judges and strengths are defined next to their code; here they are only
put together.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.margins import Placement
from unmdpo.core.settings import SEED, Count, Name, Nonnegative, Positive, Seed, Seeds, Strict, error_at, names_only
from unmdpo.data.identity import FOLD_SEED
from unmdpo.data.places import DataPlace
from unmdpo.data.reading import RowsSettings
from unmdpo.data.strength import LEVELS, StrengthRule
from unmdpo.engine.inference.judges import AnyJudge
from unmdpo.engine.settings import MAX_LENGTH, DefaultBudget, ModelSource, TrainingOverrides
from unmdpo.objectives.table import OBJECTIVES
from unmdpo.scale.settings import EstimatorSettings
from unmdpo.scale.table import ESTIMATORS


def _names_of(table: Mapping[str, Any], *others: str) -> Any:
    """Lists the table's names as choices in the schema, at the time the schema is built."""
    return lambda schema: schema.update(enum=sorted([*table, *others]))


def _known_in(table: Mapping[str, Any], *others: str) -> AfterValidator:
    """Names of the table, which is read at validation time: rows may be added later."""

    def check(name: str) -> str:
        if name not in (known := [*table, *others]):
            raise ValueError(f"unknown name '{name}'; {did_you_mean(name, known)}")
        return name

    return AfterValidator(check)


ObjectiveName = Annotated[str, _known_in(OBJECTIVES), Field(json_schema_extra=_names_of(OBJECTIVES))]
EstimatorName = Annotated[str, _known_in(ESTIMATORS), Field(json_schema_extra=_names_of(ESTIMATORS))]


class ValidationRecipe(Strict):
    path: DataPlace | None = Field(None, description="file, folder or Hub name, if not the training data's")
    split: str = Field("validation", description="of the training data's source")
    fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="hold out this share of the training prompts instead"
    )
    seed: Seed = Field(SEED, description="seed for choosing the held-out share")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.path is not None and self.fraction is not None:
            raise ValueError("give a path to validation data or a fraction to hold out, not both")
        return self

    @property
    def is_official(self) -> bool:
        return self.path is None and self.fraction is None and self.split == "validation"


class StrengthRecipe(StrengthRule):
    judge: AnyJudge | None = Field(
        None,
        description="scores both responses; the difference is the strength, and where it prefers the other response "
        "the comparison is left out",
    )

    @property
    def rule(self) -> StrengthRule:
        """How strengths are cut, whoever gives them."""
        return StrengthRule(**{name: getattr(self, name) for name in StrengthRule.model_fields})

    @property
    def read(self) -> StrengthRule:
        """How labels are read, if a judge gives the strengths."""
        if self.judge is None:
            return self.rule
        levels = LEVELS if self.labels is None else self.levels
        return StrengthRule(levels=levels, labels=self.labels, column=self.column)


class RowsRecipe(RowsSettings):
    """What to train on: a judge may give the strengths."""

    strength: StrengthRecipe = Field(StrengthRecipe(), description="how strengths are read, or cut from margins")

    @property
    def as_read(self) -> RowsSettings:
        """What is read before a judge, if there is one, gives strengths."""
        return self.model_copy(update={"strength": self.strength.read})


class MixedRows(RowsRecipe):
    weight: Positive = Field(
        1.0,
        description="how often its rows are seen for each time that those of weight 1 are; of 0.5, half the prompts",
    )


class DataRecipe(RowsRecipe):
    mix: dict[Name, MixedRows] = Field(
        {},
        description="several sources instead of one path: each by a name, with a weight",
        json_schema_extra=names_only,
    )
    max_length: Count = Field(MAX_LENGTH, description="most tokens in a prompt with its response")
    validation: ValidationRecipe = Field(ValidationRecipe(), description="where prompts for evaluation come from")

    def _check_path(self) -> None:
        if not self.mix:
            super()._check_path()
            return
        if any(part.strength.judge is not None for part in self.mix.values()):
            raise ValueError("a judge gives strengths to one data set: for several, use `unmdpo judge score` first")
        for name, field in RowsRecipe.model_fields.items():
            if getattr(self, name) != field.default:
                raise error_at(("data", name), "with a mix, this belongs to its parts")

    @property
    def parts(self) -> dict[str, MixedRows]:
        """The data by part; one part without a name, if it is not a mixture."""
        own = {name: getattr(self, name) for name in RowsRecipe.model_fields}
        return self.mix or {"": MixedRows(**own)}


class PilotsRecipe(DefaultBudget, TrainingOverrides):
    folds: Annotated[int, Field(ge=2, le=100)] = Field(5, description="of the prompts; one pilot is trained for each")
    fold_seed: Seed = Field(FOLD_SEED, description="decides which fold a prompt is in")
    objective: ObjectiveName = Field("fixed-margin", description="what pilots are trained with")
    settings: dict[str, Any] = Field({}, description="the objective's settings; default: the recipe's margin")
    model: ModelSource | None = Field(None, description="a cheaper model for pilots and the scale's features")
    seeds: Seeds = Field(
        (), description="train all pilots once with each; scales are fitted to the mean of their values"
    )

    @model_validator(mode="after")
    def _one_way_to_say_seeds(self) -> Self:
        if self.seeds and self.seed is not None:
            raise ValueError("give pilots.seeds or pilots.seed, not both")
        return self


class ScaleRecipe(Strict):
    """How a scale is learned; `settings` are the estimator's, some of which have their own key here."""

    estimator: EstimatorName = Field(description="how q is learned")
    fit: Placement | None = Field(None, description="placement of the margin; default: the estimator's")
    unit: Annotated[str, Field(json_schema_extra={"enum": ["prompt", "pair"]})] = Field(
        "prompt", description="what has a q of its own"
    )
    length_normalized: bool = Field(False, description="fit to log-ratios per token")
    domains: bool = Field(True, description="whether the head has a learned term for each domain")
    centered: bool | None = Field(None, description="whether the map is centered; default: the estimator's")
    penalty: Nonnegative | None = Field(None, description="λ_q, the weight of (log q)²; default: the estimator's")
    settings: dict[str, Any] = Field(
        {}, description="the estimator's other settings, such as updates, learning_rate, weight_decay, hidden"
    )
    beta: Positive | None = Field(None, description="β of the log-ratios that it is fitted to; default: the recipe's")
    run: str | None = Field(None, description="another run to take the fitted scale of the same name from")

    @property
    def given(self) -> dict[str, Any]:
        """The settings given for the estimator, under the estimator's own names."""
        named = {"placement": self.fit, "unit": self.unit, "centered": self.centered, "penalty": self.penalty}
        return {name: value for name, value in named.items() if value is not None} | self.settings

    @property
    def resolved(self) -> EstimatorSettings:
        return ESTIMATORS[self.estimator].resolve(self.given)

    def check(self, path: tuple[str, ...]) -> None:
        try:
            self.resolved  # noqa: B018 - resolving checks the settings
        except UserError as error:
            raise error_at(path, str(error)) from error


class PolicyRecipe(Strict):
    objective: ObjectiveName = Field(description="what it is trained with")
    scale: str | None = Field(None, description="the name of one of the recipe's scales")
    settings: dict[str, Any] = Field({}, description="the objective's settings, such as beta or tau")
    training: TrainingOverrides = Field(TrainingOverrides(), description="what it does otherwise than `training`")
    seeds: Seeds = Field((), description="train it once with each; tables show means over them, and each of them")

    @model_validator(mode="after")
    def _one_way_to_say_seeds(self) -> Self:
        if self.seeds and self.training.seed is not None:
            raise ValueError("give seeds or training.seed, not both")
        return self
