"""Panels of prompts, who judges, who is compared with whom, and what a paper printed."""

from typing import Self

from pydantic import Field, model_validator

from unmdpo.catalog import INITIAL
from unmdpo.recipe.fields import Count, Name, Nonnegative, Positive, Strict, Triple, names_only


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
