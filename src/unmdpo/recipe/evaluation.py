"""How a recipe's policies are evaluated: panels, judges, opponents."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from unmdpo.core.places import Place
from unmdpo.core.settings import Count, Name, PanelSize, Seed, Seeds, Strict, chosen_from, names_only
from unmdpo.data.places import DataPlace
from unmdpo.engine.inference.endpoints import Endpoint
from unmdpo.engine.inference.judges import AnyJudge, JudgeSettings
from unmdpo.engine.settings import MAX_NEW_TOKENS, ModelSource, Sampling, TaskSettings
from unmdpo.objectives.table import INITIAL


def _who(values: Mapping[str, Any]) -> type[Strict]:
    return ModelSource if "path" in values else Endpoint


def no_vllm(generator: Any) -> Any:
    """Servers are started by people, who know their machines."""
    if generator == "vllm" or (isinstance(generator, dict) and "vllm" in generator):
        raise ValueError(
            "vLLM is not started from here: `unmdpo run … --until policy`, `unmdpo export` each policy, start "
            "`vllm serve` on it, and name the server: {endpoint: http://…/v1, model: '{policy}'} "
            "(docs/guide/evaluation.md)"
        )
    return generator


TaskName = Annotated[str, Field(pattern=r"^\w[\w().-]*$", max_length=120)]  # as lm-evaluation-harness names them
Generator = Annotated[Endpoint | None, BeforeValidator(no_vllm)]
AnsweredElsewhere = Annotated[Place | Endpoint | ModelSource, chosen_from(_who)]


class PanelRecipe(Strict):
    """Prompts that policies answer."""

    size: PanelSize = Field("all", description="prompts; or a share of those there are, such as 0.5; or all")
    seed: Seed = Field(1, description="for drawing them")
    path: Place | None = Field(
        None, description="a file of prompts (`prompt` or `instruction`) instead of the validation data"
    )
    apart: bool = Field(False, description="not answered; its prompts are only kept out of later panels")


class PrimaryRecipe(Strict):
    """The question that a run answers first. Whatever is left out follows a rule, not a result."""

    policy: Name | None = Field(None, description="default: the last one")
    against: Name | None = Field(None, description="default: the baseline; of one policy alone, the initial model")
    panel: Name | None = Field(None, description="default: the first that is answered")
    judge: str | None = Field(None, description="default: the first")


class EvaluationRecipe(Strict):
    baseline: str = Field(description="the policy that all others are compared with")
    panels: dict[Name, PanelRecipe] = Field(
        min_length=1,
        description="sets of prompts to answer, by name; none shares a prompt",
        json_schema_extra=names_only,
    )
    judge: AnyJudge | None = Field(
        None, description="who says how good answers are: `path`, `function`, `endpoint` or `train`"
    )
    judges: dict[Name, AnyJudge] = Field(
        {},
        description="several judges, by name, instead of one: every table is made by each, and the first selects",
        json_schema_extra=names_only,
    )
    labelled: DataPlace | None = Field(
        None, description="pairs with labels on which judges are measured; those trained here have held-out pairs"
    )
    max_new_tokens: Count = Field(MAX_NEW_TOKENS, description="longest answer, in tokens")
    sampling: Sampling | None = Field(None, description="draw several answers to each prompt; default: one, greedy")
    initial: bool = Field(False, description="also compare with the initial model")
    generator: Generator = Field(
        None, description="a server that answers as the policies; default: this package, on this machine"
    )
    answers: dict[Name, AnsweredElsewhere] = Field(
        {},
        description="candidate → JSON lines with prompt and text: answers made elsewhere; or a server that answers; "
        "or the `path` of a model that was trained elsewhere",
        json_schema_extra=names_only,
    )
    selected_among: list[Name] = Field([], description="select one of these policies; default: of all")
    opponents: list[Name] = Field([], description="further policies that all others are compared with")
    seeds: Seeds = Field((), description="for every policy without seeds of its own")
    tasks: dict[TaskName, TaskSettings] = Field(
        {},
        description="public tasks, by the names of lm-evaluation-harness: run on the initial model and every policy",
        json_schema_extra=names_only,
    )
    task_folder: Place | None = Field(None, description="a folder with tasks of your own, as its YAML files")
    primary: PrimaryRecipe = Field(
        PrimaryRecipe(), description="the question that the run answers first; everything else is also seen"
    )

    @model_validator(mode="after")
    def _judges_or_one(self) -> Self:
        if (self.judge is None) != bool(self.judges):
            raise ValueError("give a judge, or several by name under judges")
        return self

    @property
    def all_judges(self) -> dict[str, JudgeSettings]:
        """By name; a single one has none."""
        return {"": self.judge} if self.judge is not None else dict(self.judges)

    @property
    def all_opponents(self) -> list[str]:
        """What policies are compared with: the baseline first, the initial model last."""
        return [*dict.fromkeys([self.baseline, *self.opponents]), *([INITIAL] if self.initial else [])]

    @property
    def answered(self) -> list[str]:
        """The panels that policies are judged on."""
        return [name for name, panel in self.panels.items() if not panel.apart]
