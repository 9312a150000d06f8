"""Building blocks for settings: strict, frozen types with bounds, and errors that suggest the nearest valid key.

Every setting is in one such type, next to the code that uses it. A recipe validates the type, the code receives it,
and an artifact's key is computed from its JSON.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from unmdpo.core.errors import UserError, did_you_mean

SEED = 42
LARGEST = 1e12  # of a number that is set: beyond, arithmetic overflows somewhere


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"each seed counts once: {list(seeds)}")
    return seeds


def _sayable(place: str) -> str:
    if not place.strip() or "\0" in place:
        raise ValueError("should be a path or a name, not blank and without null characters")
    return place


def _as_tuple(value: Any) -> Any:
    if isinstance(value, int | float | str):
        raise ValueError(f"should be a list, such as [{value}]")
    return tuple(value) if isinstance(value, list) else value


def _panel_size(value: Any) -> Any:
    counted = type(value) is int and 1 <= value <= LARGEST
    if counted or (isinstance(value, float) and 0 < value < 1) or value == "all":
        return value
    raise ValueError("Input should be a number of prompts, a share of them between 0 and 1, or all")


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
Triple = Annotated[tuple[float, float, float], BeforeValidator(_as_tuple)]  # a value and its interval
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
PanelSize = Annotated[  # of all those there are
    int | float | Literal["all"], PlainValidator(_panel_size, json_schema_input_type=int | float | Literal["all"])
]
Place = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_sayable)]  # a path, or a name on the Hub
Choices = Annotated[tuple[Nonnegative, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
Thresholds = Annotated[tuple[float, ...] | None, BeforeValidator(_as_tuple)]
Levels = Annotated[  # m(1), …, m(K); None is the paper's m(k) = k
    tuple[Nonnegative, ...] | None, BeforeValidator(_as_tuple), AfterValidator(_nondecreasing)
]


class Strict(BaseModel):
    """Frozen, without coercion, and with a suggestion for misspelled keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    hint = did_you_mean(str(key), cls.model_fields)
                    raise PydanticCustomError("unknown_key", "unknown key; {hint}", {"key": key, "hint": hint})
        return values


S = TypeVar("S", bound=Strict)


def resolve(kind: type[S], given: Mapping[str, Any], owner: str) -> S:
    """Settings of this kind from plain values, outside a recipe; mistakes are raised as UserError."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        detail = error.errors()[0]
        if detail["type"] == "unknown_key":
            context = detail["ctx"]
            raise UserError(f"{owner} has no setting '{context['key']}'; {context['hint']}") from error
        name, message = ".".join(map(str, detail["loc"])), plain(detail["msg"])
        if message.startswith("should"):
            raise UserError(f"{owner}: {name} {message}, not {detail['input']!r}") from error
        raise UserError(f"{owner}: {name}: {message}" if name else f"{owner}: {message}") from error


def plain(message: str) -> str:
    """A pydantic message, rephrased as a clause about the setting."""
    return message.removeprefix("Value error, ").replace("Input should", "should", 1)


def chosen_from(choose: Callable[[Mapping[str, Any]], type[Strict]]) -> BeforeValidator:
    """For a field whose type depends on a table: `choose` picks the type from the raw mapping.

    The table is read at validation time, so rows added later can be used.
    """

    def validate(values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        try:
            return choose(values).model_validate(dict(values))
        except ValidationError as error:
            detail = error.errors()[0]
            context = detail.get("ctx", {})
            own = (context["key"],) if detail["type"] == "unknown_key" else ()
            raise PydanticCustomError(
                "nested", "{message}", {"below": (*detail["loc"], *own), "message": str(detail["msg"])}
            ) from error

    return BeforeValidator(validate)


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
