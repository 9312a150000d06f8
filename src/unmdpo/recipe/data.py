"""The model, and the comparisons it learns from."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmdpo.data.strength import StrengthRule
from unmdpo.errors import UserError
from unmdpo.recipe.fields import Count, Nonnegative, SourceName, Strict

# Rows in the official validation splits: an upper bound of their prompts, so of all panels together.
VALIDATION_ROWS = {"helpsteer2": 448, "helpsteer3": 2017}


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
