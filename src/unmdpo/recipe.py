"""The recipe: everything a run depends on, strict, frozen and typed, with one digest.

A recipe only describes. It is read from YAML, changed by `key.sub=value` overrides, checked as a
whole before any work starts, and written back in full, so that a run can be repeated from its own
record.
"""

import hashlib
import json
from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from unmdpo.catalog import BETA, CATALOG, INITIAL
from unmdpo.data.identity import FOLD_SEED
from unmdpo.data.strength import StrengthRule
from unmdpo.errors import UserError
from unmdpo.nearest import did_you_mean

# A recipe's own names; without dots, at which overrides are split.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=80)]
ObjectiveName = Annotated[str, Field(json_schema_extra={"enum": [*sorted(CATALOG)]})]
Positive = Annotated[float, Field(gt=0)]
Nonnegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Shares = Annotated[tuple[Share, Share], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)]
Triple = Annotated[  # a value, then its interval
    tuple[float, float, float], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
]
Count = Annotated[int, Field(ge=1)]
SourceName = Literal["helpsteer2", "helpsteer3", "pandalm", "preference", "scored"]

# Rows in the official validation splits: an upper bound of their prompts, so of all panels together.
VALIDATION_ROWS = {"helpsteer2": 448, "helpsteer3": 2017}


def names_only(schema: dict[str, Any]) -> None:
    schema["additionalProperties"] = False


class Strict(BaseModel):
    """Frozen, no coercion, and a typo is answered with the nearest right name."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key; {hint}",
                        {"key": key, "hint": did_you_mean(key, cls.model_fields)},
                    )
        return values


class ModelRecipe(Strict):
    path: str = Field(description="Hub name or local folder of the initial instruction-tuned model")
    revision: str | None = None
    gguf_file: str | None = Field(None, description="a GGUF file in that place with weights and tokenizer")
    template: str | None = Field(
        None, description="Jinja text, or a .jinja file, for a tokenizer without a chat template"
    )
    chat_template: dict[str, str | bool | int | float] = Field(
        {}, description="keyword arguments of the chat template"
    )
    trust_remote_code: bool = Field(False, description="run code that comes with the model")


class StrengthRecipe(Strict):
    levels: Count = Field(3, description="K, the number of strength levels")
    column: str | None = Field(None, description="column that holds strengths outright")
    thresholds: list[float] | None = Field(
        None, description="K-1 increasing margins; a margin of at least the j-th reaches level j+1"
    )

    @property
    def rule(self) -> StrengthRule:
        return StrengthRule(
            self.levels, self.column, None if self.thresholds is None else tuple(self.thresholds)
        )

    @model_validator(mode="after")
    def _is_a_rule(self) -> Self:
        try:
            self.rule  # noqa: B018 - building it checks it
        except UserError as error:
            raise ValueError(str(error)) from error
        return self


class PairingRecipe(Strict):
    pairs: Literal["all", "neighbours"] = "all"
    min_gap: Nonnegative = 0.0


class ValidationRecipe(Strict):
    path: str | None = Field(None, description="another file, folder or Hub name than the training data's")
    split: str = "validation"
    fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="hold out this share of the training prompts instead"
    )
    seed: int = 42

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.path is not None and self.fraction is not None:
            raise ValueError("give a path to validation data or a fraction to hold out, not both")
        return self

    @property
    def is_official(self) -> bool:
        return self.path is None and self.fraction is None and self.split == "validation"


class DataRecipe(Strict):
    source: SourceName
    path: str | None = Field(None, description="file, folder or Hub name; the source's own by default")
    revision: str | None = None
    config: str | None = None
    split: str = "train"
    max_length: Count = Field(4096, description="tokens in a whole prompt-response sequence")
    max_bad_rows: Annotated[int, Field(ge=0)] = 0
    strength: StrengthRecipe = StrengthRecipe()
    pairing: PairingRecipe = PairingRecipe()
    validation: ValidationRecipe = ValidationRecipe()

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.path is None and self.source not in VALIDATION_ROWS:
            raise ValueError(f"source '{self.source}' needs a path")
        return self


class Budget(Strict):
    """How long to train: a number of updates, or of epochs."""

    updates: Count | None = None
    epochs: Count | None = None

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.updates is not None and self.epochs is not None:
            raise ValueError("give updates or epochs, not both")
        return self


class DefaultBudget(Budget):
    """Where nothing is said, the paper's 150 updates."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("updates") is None and values.get("epochs") is None:
            return values | {"updates": 150}
        return values


class AdapterRecipe(Strict):
    """Train a LoRA adapter instead of all weights."""

    rank: Count = 64
    alpha: Count | None = Field(None, description="2·rank if not given")
    dropout: Share = 0.0


class TrainingRecipe(DefaultBudget):
    batch: Count = Field(128, description="pairs in a global batch")
    learning_rate: Positive = 1e-6
    warmup: Annotated[int, Field(ge=0)] = 20
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: Nonnegative = 0.1
    betas: Shares = (0.9, 0.98)
    eps: Positive = 1e-5
    clip: Positive = 1.0
    adapter: AdapterRecipe | None = None


class TrainingOverrides(Budget):
    """What a single policy does differently."""

    learning_rate: Positive | None = None
    seed: int | None = None
    adapter: AdapterRecipe | None = None


class PilotsRecipe(DefaultBudget):
    folds: Annotated[int, Field(ge=2)] = 5
    fold_seed: int = FOLD_SEED
    objective: ObjectiveName = "fixed-margin"
    seed: int | None = Field(None, description="of their training; the recipe's if not given")
    learning_rate: Positive | None = Field(None, description="training's own if not given")
    adapter: AdapterRecipe | None = None
    model: ModelRecipe | None = Field(None, description="a cheaper model for pilots and the scale's features")


class ComputeRecipe(Strict):
    """How work is done; results do not depend on it beyond rounding, so no cache key holds it."""

    ranks: Count = Field(1, description="processes (GPUs) that share one model, sharded")
    rank_minutes: Positive = Field(
        30.0, description="a rank that lets the others wait longer is taken for lost"
    )
    token_budget: Count | None = Field(None, description="tokens of a microbatch; what suits the device")
    activation_checkpointing: bool | None = Field(None, description="as memory needs if not given")
    offload_optimizer: bool = False
    checkpoint_minutes: Positive = 15.0
    deterministic: bool = Field(
        False, description="on a GPU: only kernels that give the same bits again, where PyTorch has them"
    )


class ScaleRecipe(Strict):
    estimator: Literal["constant", "pooled", "cross-fitted", "entropy", "joint", "ema", "sigmoid-joint"]
    fit: Literal["wr", "ao"] | None = Field(None, description="placement of the margin; the estimator's own")
    unit: Literal["prompt", "pair"] = "prompt"
    length_normalized: bool = False
    centered: bool | None = None
    penalty: Nonnegative | None = Field(None, description="λ_q, the weight of (log q)²; the estimator's own")
    run: str | None = Field(None, description="take the fitted scale of this name from another run")

    @property
    def settings(self) -> dict[str, Any]:
        """What `unmdpo.scale.make_estimator` takes."""
        return {"placement": self.fit, "unit": self.unit, "centered": self.centered, "penalty": self.penalty}


class PolicyRecipe(Strict):
    objective: ObjectiveName
    scale: str | None = None
    settings: dict[str, float | list[float]] = {}
    training: TrainingOverrides = TrainingOverrides()


class PanelRecipe(Strict):
    size: Count
    seed: int
    path: str | None = Field(
        None, description="a file of prompts (`prompt` or `instruction`) instead of the validation data"
    )
    apart: bool = Field(False, description="only kept out of later panels: nobody answers it here")


class JudgeRecipe(Strict):
    """A reward model, a Python function of (prompts, responses), or a model behind an endpoint that
    compares each response with the baseline's."""

    path: str | None = Field(None, description="Hub name or local folder of a sequence classifier")
    revision: str | None = None
    function: str | None = Field(None, pattern=r"^[\w.]+:\w+$", description="package.module:function")
    endpoint: str | None = Field(
        None, pattern=r"^https?://[^@\s]+$", description="of an OpenAI-compatible API"
    )
    model: str | None = Field(None, description="what the endpoint calls the model")
    key: str = Field("OPENAI_API_KEY", description="environment variable with the endpoint's key")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(given is not None for given in (self.path, self.function, self.endpoint)) != 1:
            raise ValueError("give the path of a reward model, a function or an endpoint, one of them")
        if (self.endpoint is None) != (self.model is None):
            raise ValueError("an endpoint needs the name of its model, and only an endpoint does")
        return self


class PublishedNumbers(Strict):
    """Numbers as a paper printed them, each with its interval: shown beside ours."""

    win_rate: Triple | float | None = None  # a lone number where no interval was printed
    reward_difference: Triple | float | None = None
    length_ratio: Positive | None = None
    length_controlled: Nonnegative | None = Field(None, description="AlpacaEval's win rate, in percent")
    characters: Positive | None = Field(None, description="of a response, on average")


class PublishedRecipe(PublishedNumbers):
    """A policy's numbers against the baseline, and against others."""

    against: dict[Name, PublishedNumbers] = Field({}, json_schema_extra=names_only)


class EvaluationRecipe(Strict):
    baseline: str
    panels: dict[Name, PanelRecipe] = Field(min_length=1, json_schema_extra=names_only)
    judge: JudgeRecipe
    max_new_tokens: Count = 512
    initial: bool = Field(False, description="compare with the initial model too")
    opponents: list[Name] = Field([], description="further policies that all others are compared with")
    published: dict[Name, dict[Name, PublishedRecipe]] = Field(
        {}, description="panel → policy → printed numbers", json_schema_extra=names_only
    )

    @property
    def all_opponents(self) -> list[str]:
        """Whom policies are compared with: the baseline first, the initial model last."""
        return [*dict.fromkeys([self.baseline, *self.opponents]), *([INITIAL] if self.initial else [])]

    @property
    def answered(self) -> list[str]:
        """The panels that policies are judged on."""
        return [name for name, panel in self.panels.items() if not panel.apart]


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
        _among(CATALOG, pilots, ("pilots", "objective"), f"unknown objective '{pilots}'")
        if CATALOG[self.pilots.objective].scale:
            raise _at(("pilots", "objective"), "pilots come before any scale: choose one without a scale")
        for name, policy in self.policies.items():
            self._check_policy(name, policy)
        return self

    def _check_policy(self, name: str, policy: PolicyRecipe) -> None:
        key = ("policies", name)
        if name == INITIAL:
            raise _at(key, "'initial' is the model that policies start from; choose another name")
        _among(CATALOG, policy.objective, (*key, "objective"), f"unknown objective '{policy.objective}'")
        spec = CATALOG[policy.objective]
        if policy.scale is not None:
            _among(self.scales, policy.scale, (*key, "scale"), f"no scale is called '{policy.scale}'")
        if spec.scale and policy.scale is None:
            raise _at(key, f"objective '{policy.objective}' needs a scale")
        if not spec.scale and policy.scale is not None:
            raise _at((*key, "scale"), f"objective '{policy.objective}' uses no scale")
        try:
            spec.resolve(policy.objective, policy.settings)
        except UserError as error:
            raise _at((*key, "settings"), str(error)) from error

    def _check_published(self, panel: str, numbers: dict[str, PublishedRecipe]) -> None:
        assert self.evaluation is not None
        key, opponents = ("evaluation", "published", panel), self.evaluation.all_opponents
        _among(self.evaluation.panels, panel, key, f"no panel is called '{panel}'")
        for policy, said in numbers.items():
            _among(self.policies, policy, (*key, policy), f"'{policy}' is no policy")
            for opponent in said.against:
                where = (*key, policy, "against")
                _among(opponents, opponent, where, f"nobody is compared with '{opponent}'")

    @model_validator(mode="after")
    def _evaluation_fits(self) -> Self:
        if self.evaluation is None:
            return self
        baseline = self.evaluation.baseline
        _among(self.policies, baseline, ("evaluation", "baseline"), f"'{baseline}' is no policy")
        for opponent in self.evaluation.opponents:
            _among(self.policies, opponent, ("evaluation", "opponents"), f"'{opponent}' is no policy")
        for panel, numbers in self.evaluation.published.items():
            self._check_published(panel, numbers)
        if all(panel.apart for panel in self.evaluation.panels.values()):
            raise _at(("evaluation", "panels"), "every panel is set apart; let one be answered")
        wanted = sum(panel.size for panel in self.evaluation.panels.values() if panel.path is None)
        official = self.data.path is None and self.data.validation.is_official
        available = VALIDATION_ROWS[self.data.source] if official else wanted
        if wanted > available:
            raise _at(
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


def _among(known: Collection[str], name: str, path: tuple[str, ...], wrong: str) -> None:
    """Refuses a name that is not known, with the nearest that is."""
    if name not in known:
        raise _at(path, f"{wrong}; {did_you_mean(name, known)}")


def _at(path: tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a cross-check, pinned to the key it is about."""
    return PydanticCustomError("cross_check", "{message}", {"path": path, "message": message})
