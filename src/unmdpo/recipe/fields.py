"""What all parts of a recipe are made of: strict models, and numbers with bounds."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from unmdpo.catalog import CATALOG
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


def among(known: Collection[str], name: str, path: tuple[str, ...], wrong: str) -> None:
    """Refuses a name that is not known, with the nearest that is."""
    if name not in known:
        raise error_at(path, f"{wrong}; {did_you_mean(name, known)}")


def error_at(path: tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a cross-check, pinned to the key it is about."""
    return PydanticCustomError("cross_check", "{message}", {"path": path, "message": message})
