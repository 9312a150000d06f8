"""The next round's data: a policy's own answers, scored by a judge and paired (`unmdpo pairs`)."""

import re
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from unmdpo.core.errors import UserError
from unmdpo.core.files import read_small
from unmdpo.core.places import Place
from unmdpo.core.settings import Count, PanelSize, Strict, said
from unmdpo.data.strength import StrengthRule
from unmdpo.engine.inference.judges import AnyJudge, JudgeSettings, TrainedJudge, kind_of
from unmdpo.engine.settings import MAX_NEW_TOKENS, Sampling
from unmdpo.objectives.table import INITIAL
from unmdpo.recipe.evaluation import Generator


class PairsRecipe(Strict):
    """A policy's own answers, scored by a judge and paired: what the next round learns from."""

    policy: str = Field(INITIAL, description="who answers: a policy of the recipe, or initial")
    judge: AnyJudge = Field(description="scores the answers; another one than those of the evaluation")
    prompts: Place | None = Field(None, description="a file of prompts; default: those of the training data")
    size: PanelSize = Field("all", description="how many prompts to draw: a number, a share, or all")
    sampling: Sampling = Field(Sampling(), description="how answers are drawn")
    max_new_tokens: Count = Field(MAX_NEW_TOKENS, description="most tokens in an answer")
    generator: Generator = Field(None, description="a server that writes them; default: unmdpo")
    select: Literal["best-worst", "all", "neighbours"] = Field(
        "best-worst", description="which answers to a prompt are compared"
    )
    strength: StrengthRule = Field(
        StrengthRule(continuous=True), description="how differences of scores become strengths"
    )

    @model_validator(mode="after")
    def _something_to_compare(self) -> Self:
        if self.sampling.samples < 2:
            raise ValueError("a round compares answers to the same prompt: draw at least two samples")
        return self


def judge_of(text: str) -> JudgeSettings:
    """A judge as a command names it: a folder or Hub name, a function, or a YAML file with its settings."""
    given: object = {"path": text}
    if re.fullmatch(r"[\w.]+:\w+", text):
        given = {"function": text}
    elif text.endswith((".yaml", ".yml")):
        try:
            given = yaml.safe_load(read_small(Path(text)))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{text}: cannot be read as a judge's settings: {error}") from error
    try:
        judge: JudgeSettings = TypeAdapter(AnyJudge).validate_python(given)
    except ValidationError as error:
        raise UserError(f"judge {text}: {said(error.errors()[0])}") from error
    if isinstance(judge, TrainedJudge):
        raise UserError(f"judge {text}: train it first, with `unmdpo judge train`, and name its folder")
    check = kind_of(judge).check
    if check is not None:
        check(judge)
    return judge
