"""Every kind of judge. In a recipe, a kind is recognized by the one setting that only it has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Self

from pydantic import Field, SerializeAsAny, model_validator

from unmdpo.core.code import Code
from unmdpo.core.functions import FunctionName
from unmdpo.core.places import Place
from unmdpo.core.settings import Count, Strict, chosen_from
from unmdpo.data.identity import Prompt
from unmdpo.data.reading import RowsSettings
from unmdpo.engine.inference.endpoints import Endpoint
from unmdpo.engine.settings import ModelPlace, ModelSource, Template

Judge = Callable[[Sequence[Prompt], Sequence[str]], list[float]]  # scores of responses, one by one


class JudgeSettings(Strict):
    """The base class for the settings of every kind of judge."""


class RewardModelSettings(JudgeSettings):
    path: ModelPlace = Field(description="Hub name or local folder of a sequence classifier")
    revision: str | None = Field(None, description="of the Hub model")
    label: int | str | None = Field(None, description="which output is the score, if there are several")
    template: Template = Field(None, description="Jinja text, or a .jinja file, if it has no chat template")
    trust_remote_code: bool = Field(False, description="run code that comes with the model")


class FunctionSettings(JudgeSettings):
    function: FunctionName = Field(description="package.module:function")


class EndpointSettings(Endpoint, JudgeSettings):
    logprobs: bool = Field(
        True, description="read the labels' probabilities; otherwise ask in both orders, and read what it says"
    )
    reasons: bool = Field(False, description="without logprobs: let it give reasons before its verdict")
    prompt: Place | None = Field(None, description="a file with the question to ask: AlpacaEval's, Arena-Hard's, own")

    @model_validator(mode="after")
    def _speaks(self) -> Self:
        if self.reasons and self.logprobs:
            raise ValueError("reasons need logprobs: false, since the verdict comes after them")
        if self.reasons and self.prompt is not None:
            raise ValueError("give reasons or a prompt, which says itself whether it wants them")
        return self


class JudgeTraining(RowsSettings):
    """How a judge is trained: a reward model, on pairs that policies do not learn from."""

    model: ModelSource | None = Field(None, description="what it starts from; default: the recipe's model")
    held_out: Annotated[float, Field(ge=0.01, le=0.9)] = Field(
        0.1, description="share of the prompts to measure it on"
    )
    margins: bool = Field(True, description="stronger preferences win by a margin")
    epochs: Annotated[int, Field(ge=1, le=100)] = Field(1, description="how often to see all pairs")
    batch: Count = Field(32, description="pairs in a batch")
    learning_rate: Annotated[float, Field(ge=1e-9, le=1.0)] = Field(2e-5, description="at its highest")
    max_length: Annotated[int, Field(ge=8, le=10_000_000)] = Field(
        2048, description="most tokens in a prompt with its response"
    )
    lora: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None, description="train an adapter of this rank, and merge it"
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        42, description="for the held-out prompts, the head and the order"
    )

    def __str__(self) -> str:
        return f"trained on {self.path}"


class TrainedJudge(JudgeSettings):
    train: JudgeTraining = Field(description="train a reward model, as a stage of the run")


@dataclass(frozen=True)
class JudgeKind:
    name: str
    summary: str
    settings: type[JudgeSettings]
    _: KW_ONLY
    key: str  # the setting that identifies this kind in a recipe
    open: Callable[[Any], Any]  # settings → a `Judge`, or a `PairwiseJudge` if pairwise; not for trained ones
    check: Callable[[Any], None] | None = None  # raises now what judging would raise hours later
    model: Callable[[Any], ModelSource] | None = None  # the model it runs on this machine
    local: bool = False  # runs a model on this machine
    pairwise: bool = False  # compares each response with the baseline's


REWARD_MODEL, FUNCTION = "unmdpo.engine.inference.reward_model", "unmdpo.engine.inference.function_judge"
PAIRWISE = Code("unmdpo.engine.inference.pairwise:PairwiseJudge")
TEXT = Code("unmdpo.engine.inference.text_judge:TextJudge")


def _pairwise_judge(settings: EndpointSettings) -> Any:
    return (PAIRWISE if settings.logprobs else TEXT)(settings)


_ROWS = (
    JudgeKind(
        "reward-model", "a sequence classifier with one output", RewardModelSettings, key="path",
        open=Code(f"{REWARD_MODEL}:open_reward_model"), check=Code(f"{REWARD_MODEL}:check_reward_model"),
        model=Code(f"{REWARD_MODEL}:reward_model_source"), local=True,
    ),
    JudgeKind(
        "trained", "a reward model that is trained here", TrainedJudge, key="train",
        open=Code(f"{REWARD_MODEL}:open_reward_model"), check=Code(f"{REWARD_MODEL}:check_start_of_judge"), local=True,
    ),
    JudgeKind(
        "function", "a Python function of prompts and responses", FunctionSettings, key="function",
        open=Code(f"{FUNCTION}:open_function"), check=Code(f"{FUNCTION}:check_function"),
    ),
    JudgeKind(
        "endpoint", "a model behind an OpenAI-compatible API that compares pairs", EndpointSettings, key="endpoint",
        open=_pairwise_judge, check=Code("unmdpo.engine.inference.judge_prompt:check_endpoint_judge"), pairwise=True,
    ),
)  # fmt: skip
JUDGES: dict[str, JudgeKind] = {row.name: row for row in _ROWS}


def kind_of(settings: JudgeSettings) -> JudgeKind:
    return next(kind for kind in JUDGES.values() if kind.settings is type(settings))


def _chosen(values: Mapping[str, Any]) -> type[JudgeSettings]:
    matching = [kind for kind in JUDGES.values() if values.get(kind.key) is not None]
    if len(matching) != 1:
        keys = ", ".join(f"{kind.key} ({kind.summary})" for kind in JUDGES.values())
        raise ValueError(f"give exactly one of {keys}")
    return matching[0].settings


def _all_kinds(schema: dict[str, Any]) -> None:
    described: dict[str, Any] = {name: schema[name] for name in ("title", "description") if name in schema}
    schema.clear()
    schema |= described
    schema["anyOf"] = [_inlined(kind.settings.model_json_schema()) for kind in JUDGES.values()]


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Without references, which would be looked for in the recipe's own definitions."""
    known = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(each) for each in part]
        if not isinstance(part, dict):
            return part
        found = known[part["$ref"].rpartition("/")[2]] if "$ref" in part else {}
        return {key: inlined(value) for key, value in (found | part).items() if key != "$ref"}

    whole: dict[str, Any] = inlined(schema)
    return whole


AnyJudge = Annotated[SerializeAsAny[JudgeSettings], chosen_from(_chosen), Field(json_schema_extra=_all_kinds)]
