"""Strengths from a judge, and rounds of training on a policy's own answers."""

from typing import Literal

from pydantic import Field

from unmdpo.core.settings import Count, PanelSize, Place, Strict
from unmdpo.data.strength import StrengthRule
from unmdpo.engine.inference.endpoints import Endpoint, Vllm
from unmdpo.engine.inference.judges import AnyJudge
from unmdpo.engine.settings import MAX_NEW_TOKENS, Sampling
from unmdpo.objectives.table import INITIAL


class StrengthRecipe(StrengthRule):
    judge: AnyJudge | None = Field(
        None,
        description="scores both responses; the difference is the strength, and where it prefers the other response "
        "the comparison is left out",
    )

    @property
    def rule(self) -> StrengthRule:
        """Without the judge."""
        return StrengthRule(**{name: getattr(self, name) for name in self.model_fields_set - {"judge"}})


class RoundRecipe(Strict):
    """A policy's own answers, scored by a judge and paired: what a next policy, which starts from it, learns from."""

    policy: str = Field(INITIAL, description="who answers, and where training starts: a policy above, or initial")
    judge: AnyJudge = Field(description="scores the answers; another one than those of the evaluation")
    prompts: Place | None = Field(None, description="a file of prompts; default: those of the training data")
    size: PanelSize = Field("all", description="how many prompts to draw: a number, a share, or all")
    sampling: Sampling = Field(Sampling(), description="how answers are drawn")
    max_new_tokens: Count = Field(MAX_NEW_TOKENS, description="most tokens in an answer")
    generator: Endpoint | Vllm | Literal["vllm"] | None = Field(None, description="who writes them; default: unmdpo")
    pairs: Literal["best-worst", "all", "neighbours"] = Field(
        "best-worst", description="which answers to a prompt are compared"
    )
    strength: StrengthRule = Field(StrengthRule(), description="how differences of scores become strengths")
