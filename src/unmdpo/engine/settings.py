"""Everything that can be set about models, training and devices. Nothing here imports torch."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import files_below, read_small
from unmdpo.core.places import Place
from unmdpo.core.settings import SEED, Count, Nonnegative, Positive, Seed, Share, Shares, Strict
from unmdpo.objectives.table import OBJECTIVES, Objective

Rate = Annotated[float, Field(gt=0, le=1000)]
Ranks = Annotated[int, Field(ge=1, le=4096)]
Schedule = Literal["constant", "linear", "cosine"]
MAX_LENGTH, MAX_NEW_TOKENS = 4096, 512  # tokens of a prompt with its response; of an answer


# What lies beside a model and is never loaded with it: notes, leftovers of a training, weights of other frameworks.
NOT_LOADED = re.compile(
    r"(runs|onnx|original|checkpoint-\d+)/.*|(LICENSE|NOTICE|USE_POLICY).*|events\.out.*|trainer_state\.json|"
    r"(training_args|optimizer|scheduler|scaler|rng_state).*\.(bin|pt|pth)|"
    r".*\.(md|out|log|html|pdf|png|jpe?g|gif|svg|h5|msgpack|onnx|gguf|pth)"
)


class ModelPlace(Place):
    """A model's folder, or its name on the Hub. Everything in the folder counts that may be loaded: tokenizers have
    files of many names."""

    hub = "model"

    def files_read(self, folder: Path) -> Iterable[Path]:
        return [file for file in files_below(folder) if not NOT_LOADED.fullmatch(file.relative_to(folder).as_posix())]


def _template_text(template: str | None) -> str | None:
    """A chat template's text: a file is read with the recipe, and stands in it from then on."""
    if template is None or not template.endswith(".jinja"):
        return template
    try:
        return read_small(Path(template))
    except OSError as error:
        raise ValueError(f"chat template {template}: {error.strerror}") from error


Template = Annotated[str | None, AfterValidator(_template_text)]


class ModelSource(Strict):
    """Where a model comes from and how its prompts are formatted."""

    path: ModelPlace = Field(description="Hub name or local folder of an instruction-tuned model")
    revision: str | None = Field(None, description="branch, tag or commit on the Hub")
    template: Template = Field(
        None, description="Jinja text, or a .jinja file, for a tokenizer without a chat template"
    )
    chat_template: dict[str, str | bool | int | float] = Field(
        {}, description="keyword arguments for the chat template"
    )
    trust_remote_code: bool = Field(False, description="run code that comes with the model")

    @model_validator(mode="before")
    @classmethod
    def _no_gguf(cls, values: Any) -> Any:
        """Quantized single files are converted once, outside: everything here reads folders of safetensors."""
        path = str(values.get("path", "")) if isinstance(values, dict) else ""
        if isinstance(values, dict) and (path.endswith(".gguf") or "gguf_file" in values):
            raise ValueError("GGUF files are not read: convert it once with Transformers (docs/guide/install.md)")
        return values

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `from_pretrained`."""
        keywords: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if self.revision is not None:
            keywords["revision"] = self.revision
        return keywords

    @property
    def base(self) -> str:
        """The model's name for those who load an adapter: absolute, if it is a folder of this machine."""
        return str(Path(self.path).resolve()) if Path(self.path).exists() else str(self.path)

    def at_path(self, path: str) -> Self:
        """The same model, loaded from a local folder with its weights and tokenizer."""
        return self.model_copy(update={"path": ModelPlace(path), "revision": None})


class Sampling(Strict):
    """How answers are drawn."""

    samples: Count = Field(4, description="answers to each prompt")
    temperature: Annotated[float, Field(gt=0, le=100)] = Field(1.0, description="below 1, likelier tokens more often")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="draw among the likeliest tokens that together have this probability"
    )
    seed: Seed = Field(SEED, description="of what is drawn")


class AdapterSettings(Strict):
    """Train a LoRA adapter instead of all weights."""

    rank: Annotated[int, Field(ge=1, le=65_536)] = Field(64, description="of the matrices beside each weight")
    alpha: Count | None = Field(None, description="default: 2·rank")
    dropout: Share = Field(0.0, description="of the adapter's input")
    targets: str | list[str] = Field("all-linear", description="PEFT's target modules; never the head")
    layers: Count | None = Field(
        None, description="how many of the last layers to adapt: nothing goes back through the others; default: all"
    )
    four_bit: bool = Field(False, description="QLoRA: keep the frozen weights in four bits; needs bitsandbytes")
    merge: bool = Field(
        False, description="also add the adapter to the weights and export them; rounding them changes the policy"
    )


PAPER_UPDATES = 150
WARMUP = 20


class Budget(Strict):
    """How long to train: a number of updates or of epochs."""

    updates: Count | None = Field(None, description="how many batches to learn from")
    epochs: Count | None = Field(None, description="or how often to see all training comparisons")

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.updates is not None and self.epochs is not None:
            raise ValueError("give updates or epochs, not both")
        return self


class DefaultBudget(Budget):
    """Defaults to the paper's 150 updates."""

    updates: Count | None = Field(
        None, description="how many batches to learn from; default: 150, unless epochs are given"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("updates") is None and values.get("epochs") is None:
            return values | {"updates": PAPER_UPDATES}
        return values


class TrainingOverrides(Budget):
    """What one pilot or policy does differently; the rest is as in `training`."""

    learning_rate: Rate | None = Field(None, description="another one than training.learning_rate")
    seed: Seed | None = Field(None, description="another one than training.seed")
    adapter: AdapterSettings | None = Field(None, description="another one than training.adapter")
    sft: Nonnegative | None = Field(None, description="another one than training.sft")
    batch: Count | None = Field(None, description="another one than training.batch")


class TrainingSettings(DefaultBudget):
    """Training settings, with the paper's values as defaults ("Policy training and baseline settings")."""

    batch: Count = Field(128, description="pairs in a global batch")
    learning_rate: Rate = Field(1e-6, description="the paper's, for 1B; 5e-5 suits 135M")
    warmup: Annotated[int, Field(ge=0)] | None = Field(
        None, description="updates before the full learning rate is reached; default: 20, and a quarter at most"
    )
    schedule: Schedule = Field("constant", description="learning rate schedule after the warm-up")
    weight_decay: Nonnegative = Field(0.1, description="AdamW's")
    betas: Shares = Field((0.9, 0.98), description="AdamW's shares of the past in its moments")
    eps: Positive = Field(1e-5, description="AdamW's smallest denominator")
    clip: Positive = Field(1.0, description="largest gradient norm")
    adapter: AdapterSettings | None = Field(None, description="train a LoRA adapter instead of all weights")
    sft: Nonnegative = Field(
        0.0, description="weight of the chosen response's negative log-likelihood per token, beside any objective"
    )
    router_aux_loss_coef: Nonnegative = Field(
        0.0, description="weight of the loss that keeps a mixture's experts evenly used, on each microbatch"
    )
    seed: Seed | None = Field(None, description="seed for data order and dropout; default: the recipe's")
    validate_updates: Count | None = Field(
        None, description="policies: measure loss and accuracy on the validation data after every so many updates"
    )
    patience: Count | None = Field(
        None, description="policies: stop after so many validations in a row without a smaller loss than before"
    )

    @model_validator(mode="after")
    def _watched_if_patient(self) -> Self:
        if self.patience is not None and self.validate_updates is None:
            raise ValueError("patience needs validate_updates: the loss on the validation data decides")
        return self

    @property
    def random_seed(self) -> int:
        return SEED if self.seed is None else self.seed

    @property
    def without_validation(self) -> Self:
        """Without validation: pilots have folds of their own that they do not see."""
        return self.model_copy(update={"validate_updates": None, "patience": None})

    def updates_over(self, slots: int) -> int:
        """The number of updates for a training set of this many pairs."""
        if self.updates is not None:
            return self.updates
        assert self.epochs is not None  # one of the two is always set
        return self.epochs * updates_per_epoch(slots, self.batch)

    def warmup_of(self, updates: int) -> int:
        """The paper's 20 updates; a training that is shorter than the paper's should not be all warm-up."""
        return min(WARMUP, updates // 4) if self.warmup is None else self.warmup

    def with_overrides(self, overrides: TrainingOverrides) -> Self:
        """These settings with the overrides of one pilot or policy."""
        known = {name: value for name, value in overrides if name in TrainingOverrides.model_fields}
        changes = {name: value for name, value in known.items() if value is not None}
        if "updates" in changes or "epochs" in changes:
            changes = {"updates": None, "epochs": None} | changes
        return self.model_copy(update=changes)


def updates_per_epoch(slots: int, batch: int) -> int:
    """Whole batches per epoch; an incomplete last batch is dropped."""
    if slots < batch:
        raise UserError(f"{slots} pairs do not fill one batch of {batch}; lower training.batch")
    return slots // batch


class WandbSettings(Strict):
    project: str = Field("unmdpo", min_length=1, description="the project that runs appear in")


class LoggingSettings(Strict):
    """Where pilots and policies write their metrics, beside the store. It changes no result."""

    tensorboard: str | None = Field(None, description="folder for TensorBoard; every stage has its own in it")
    wandb: WandbSettings | None = Field(None, description="Weights & Biases; key and mode come from its environment")


class RaySettings(Strict):
    """What a stage asks of a Ray cluster, besides GPUs, which are counted by what it needs."""

    cpus: Positive = Field(1.0, description="processor cores of a stage, or of each of its ranks")
    memory: Positive | None = Field(None, description="GiB of host memory that a stage reserves")
    gpu_type: str | None = Field(None, description="only on this kind of GPU, as Ray names it, such as H100")
    labels: dict[str, str] = Field({}, description="only on nodes with these labels")
    runtime_env: dict[str, Any] = Field({}, description="Ray's environment of the run, such as {pip: [unmdpo]}")


class ComputeSettings(Strict):
    """How work is done. It changes results only by rounding, so it is not part of any cache key."""

    ranks: Ranks = Field(1, description="processes (GPUs) that share one model, sharded")
    ranks_of: dict[str, Ranks] = Field(
        {}, description="another number for some kinds of stages, such as {pilot: 1, generation: 8}"
    )
    rank_minutes: Positive = Field(30.0, description="a rank that keeps the others waiting longer counts as lost")
    token_budget: Count | None = Field(None, description="tokens in a microbatch; default: chosen for the device")
    activation_checkpointing: bool | None = Field(
        None, description="recompute activations; default: only if memory requires it"
    )
    offload_optimizer: bool = Field(False, description="keep the optimizer's moments in host memory")
    checkpoint_minutes: Positive = Field(15.0, description="between two checkpoints of a training")
    ray: RaySettings = Field(RaySettings(), description="what stages ask of a Ray cluster")
    deterministic: bool = Field(
        False, description="on a GPU, use only kernels that reproduce the same bits, where PyTorch has them"
    )


class ObjectiveChoice(Strict):
    """An objective and its settings, as the user gave them."""

    name: str
    settings: dict[str, Any] = Field({})

    @property
    def objective(self) -> Objective:
        if self.name not in OBJECTIVES:
            raise UserError(f"unknown objective '{self.name}'; {did_you_mean(self.name, OBJECTIVES)}")
        return OBJECTIVES[self.name]

    @property
    def resolved(self) -> Strict:
        return self.objective.resolve(self.settings)

    def with_settings(self, more: Mapping[str, Any]) -> "ObjectiveChoice":
        return ObjectiveChoice(name=self.name, settings=self.settings | dict(more))


class TaskSettings(Strict):
    """How one task of lm-evaluation-harness is run."""

    limit: Count | None = Field(None, description="only the first so many questions of each of its parts")
    few_shot: int | None = Field(None, ge=0, description="examples in each prompt; default: the task's own")
    chat: bool = Field(True, description="ask through the chat template")
