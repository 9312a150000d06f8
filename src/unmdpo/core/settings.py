"""Building blocks for settings: strict, frozen types with bounds, and errors that suggest the nearest valid key.

Every setting is in one such type, next to the code that uses it. A recipe validates the type, the code receives it,
and an artifact's key is computed from its JSON.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from unmdpo.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SEED = 42
LARGEST = 1e12  # of a number that is set: beyond, arithmetic overflows somewhere


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"each seed counts once: {list(seeds)}")
    return seeds


def _as_tuple(value: Any) -> Any:
    if isinstance(value, int | float | str):
        raise ValueError(f"should be a list, such as [{value}]")
    return tuple(value) if isinstance(value, list) else value


def _panel_size(value: Any) -> Any:
    counted = type(value) is int and 1 <= value <= LARGEST
    if counted or (isinstance(value, float) and 0 < value < 1) or value == "all":
        return value
    raise ValueError("should be a number of prompts, a share of them between 0 and 1, or all")


def _nondecreasing(levels: tuple[float, ...] | None) -> tuple[float, ...] | None:
    if levels is not None and (not levels or list(levels) != sorted(levels)):
        raise ValueError("a strength map needs at least one level and must not decrease")
    return levels


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=80)]  # no dots: overrides split there
Positive = Annotated[float, Field(gt=0, le=LARGEST)]
Nonnegative = Annotated[float, Field(ge=0, le=LARGEST)]
Share = Annotated[float, Field(ge=0, lt=1)]
Shares = Annotated[tuple[Share, Share], BeforeValidator(_as_tuple)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what NumPy and torch both take
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_as_tuple), AfterValidator(_distinct)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
PanelSize = Annotated[  # of all those there are
    int | float | Literal["all"], PlainValidator(_panel_size, json_schema_input_type=int | float | Literal["all"])
]
Thresholds = Annotated[tuple[float, ...] | None, BeforeValidator(_as_tuple)]
Levels = Annotated[  # m(1), …, m(K); None is the paper's m(k) = k
    tuple[Nonnegative, ...] | None, BeforeValidator(_as_tuple), AfterValidator(_nondecreasing)
]


class Strict(BaseModel):
    """Frozen, without coercion, and with a suggestion for misspelled keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _suggest_keys(cls, values: Any, validated: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validated(values)
        except ValidationError as error:
            details = error.errors(include_url=False)
            hinted = [_hinted(detail, cls) if i < MOST_HINTS else detail for i, detail in enumerate(details)]
            raise ValidationError.from_exception_data(
                cls.__name__, [_repeated(detail) for detail in hinted]
            ) from error


ELSEWHERE = {  # what settings are called in other trainers
    "label_smoothing": "the objective cdpo or robust-dpo with settings: {flips: …}",
    "loss_type": "a policy's objective",
    "num_train_epochs": "training.epochs",
    "max_steps": "training.updates",
    "per_device_train_batch_size": "training.batch, the pairs of an update on all devices",
    "gradient_accumulation_steps": "training.batch, the pairs of an update; memory decides how it is cut",
    "warmup_steps": "training.warmup",
    "warmup_ratio": "training.warmup, a number of updates",
    "lr_scheduler_type": "training.schedule",
    "eval_steps": "training.validate_updates",
    "peft_config": "training.adapter",
    "lora_r": "training.adapter.rank",
    "rpo_alpha": "training.sft",
    "ref_model": "reference",
    # what this package had once
    "after": "another recipe: `unmdpo pairs` writes its data, and `model` names the exported policy",
    "gguf_file": "a folder: convert the file once with Transformers (docs/guide/install.md)",
    "model_revision": "model: {path: …, revision: …}",
    "published": "docs/reference/paper.md: the paper's numbers are no settings",
    "preset": "folds: 2 with half of training's updates",
}


def _hinted(detail: "ErrorDetails", kind: type[BaseModel]) -> "ErrorDetails":
    if detail["type"] != "extra_forbidden" or len(detail["loc"]) > 1:
        return detail
    name = str(detail["loc"][0])
    known = {key: field.annotation for key, field in kind.model_fields.items()}
    inside = [key for key, part in known.items() if name in getattr(part, "model_fields", ())]
    hint = f"did you mean '{inside[0]}.{name}'?" if inside else did_you_mean(name, known)
    hint = f"here it is {ELSEWHERE[name]}" if name in ELSEWHERE else hint
    return {**detail, "type": "unknown_key", "msg": f"unknown key; {hint}", "ctx": {"hint": hint}}


def _repeated(detail: "ErrorDetails") -> InitErrorDetails:
    """The same mistake, to be raised once more."""
    context = {**detail.get("ctx", {}), "message": detail["msg"]}
    again = PydanticCustomError(detail["type"], "{message}", context)
    return InitErrorDetails(type=again, loc=detail["loc"], input=detail["input"])


S = TypeVar("S", bound=Strict)
MOST_HINTS = 20  # per mapping: more are not read
TYPES = {
    "missing": "is missing", "int_type": "should be a whole number", "float_type": "should be a number",
    "string_type": "should be text", "bool_type": "should be true or false", "list_type": "should be a list",
    "tuple_type": "should be a list", "dict_type": "should be a mapping of keys to values",
    "model_type": "should be a mapping of keys to values",
}  # fmt: skip


def resolve(kind: type[S], given: Mapping[str, Any], owner: str) -> S:
    """Settings of this kind from plain values, outside a recipe; mistakes are raised as UserError."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        detail = error.errors()[0]
        if detail["type"] == "unknown_key":
            raise UserError(f"{owner} has no setting '{detail['loc'][-1]}'; {detail['ctx']['hint']}") from error
        name, message = ".".join(map(str, detail["loc"])), said(detail)
        colon = "" if message.startswith(("should", "is ")) else ":"
        raise UserError(f"{owner}: {name}{colon} {message}" if name else f"{owner}: {message}") from error


def said(detail: "ErrorDetails") -> str:
    """What is wrong, as a person would say it, and what was given if that is short."""
    message = TYPES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    given = detail["input"]
    if not message.startswith("should") or isinstance(given, dict | list | tuple | BaseModel):
        return message
    return f"{message}, not {str(given)[:60]!r}" if isinstance(given, str) else f"{message}, not {given}"


def chosen_from(choose: Callable[[Mapping[str, Any]], type[Strict]]) -> BeforeValidator:
    """For a field whose type depends on a table: `choose` picks the type from the raw mapping.

    The table is read at validation time, so rows added later can be used.
    """
    return BeforeValidator(lambda given: choose(given).model_validate(given) if isinstance(given, dict) else given)


def names_only(schema: dict[str, Any]) -> None:
    """For a mapping with user-chosen names as keys: the schema allows no other keys."""
    schema["additionalProperties"] = False


def among(known: Collection[str], name: str, path: tuple[str, ...], wrong: str) -> None:
    """Refuses an unknown name and suggests the nearest known one."""
    if name not in known:
        raise error_at(path, f"{wrong}; {did_you_mean(name, known)}")


def error_at(path: tuple[str, ...], message: str) -> PydanticCustomError:
    """An error from a cross-check, attached to the key it is about."""
    return PydanticCustomError("cross_check", "{message}", {"path": path, "message": message})
