"""What a stage is: the settings that affect its result, the stages it needs, and the work itself."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from unmdpo.core.errors import OutOfMemory, UserError
from unmdpo.core.settings import Strict
from unmdpo.engine.settings import ComputeSettings, LoggingSettings
from unmdpo.recipe import Recipe
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.store.artifact import Artifact, ArtifactFile
from unmdpo.store.code import code_digest
from unmdpo.store.keys import stage_key
from unmdpo.store.pins import Pins
from unmdpo.store.store import state_of

# oneDNN's setting at process start. After one bfloat16 product on a processor without bfloat16, PyTorch turns oneDNN
# off for good, and later float32 results round differently. Each stage restores this, as if it were the first.
ONEDNN = bool(torch.backends.mkldnn.enabled)

VALIDATED = "[validation]"  # ends the names of stages that do on the validation rows what others do in training
# By default: as many ranks as `compute.ranks` says. On request: one, unless `compute.ranks_of` names the kind.
Ranked = Literal["never", "by default", "on request"]
Notes = dict[str, Any]  # what a stage adds to its manifest: tokens, FLOPs, …
S = TypeVar("S", bound=Strict)
T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[S]):
    """Everything about one kind of stage."""

    name: str
    work: Callable[["Job[S]"], Notes]
    uses_model: bool = False  # runs a model, so it should get a GPU
    ranked: Ranked = "never"  # whether several ranks can share the work
    cost: Callable[[Estimates, "Stage[S]"], Cost] | None = None  # None: negligible
    wanted: Callable[["Graph"], None] | None = (
        None  # adds its stages to a run, if no other stage asks for them as inputs
    )

    @property
    def code(self) -> str:
        """A digest of the code that makes its results, as it is now."""
        return code_digest(Path(inspect.getfile(inspect.unwrap(self.work))))

    def stage_name(self, *parts: object) -> str:
        """The name of one stage of this kind in a run, such as `pilot[2]`."""
        return f"{self.name}[{','.join(map(str, parts))}]" if parts else self.name


@dataclass(frozen=True)
class Stage(Generic[S]):
    kind: Kind[S]
    name: str  # unique in a run
    settings: S  # everything that affects the result, with every place pinned
    inputs: Mapping[str, "Stage[Any]"] = field(default_factory=dict)
    code: str = ""  # the digest of its code when the run began
    key: str = ""

    @property
    def place(self) -> str:
        """The path of its artifact in the store."""
        return f"{self.kind.name}/{self.key}"


@dataclass(frozen=True)
class Job(Generic[S]):
    """A stage in progress: the folder for its result, which starts empty, and its finished inputs."""

    stage: Stage[S]
    folder: Path
    inputs: Mapping[str, Artifact]
    compute: ComputeSettings
    report: Callable[[str], None]  # shows progress
    proofs: Path | None = None  # where proofs about models are kept; None: they are not
    logging: LoggingSettings = field(default_factory=LoggingSettings)

    @property
    def settings(self) -> S:
        return self.stage.settings

    @property
    def state(self) -> Path:
        """Survives a crash. What is read from here is checked: it may be damaged, or cut off."""
        return state_of(self.folder)

    def load(self, file: ArtifactFile[T], of: str) -> T:
        """Loads a file of one of the inputs."""
        return file.load(self.inputs[of])

    def save(self, file: ArtifactFile[T], value: T) -> None:
        file.save(self.folder, value)

    def do(self) -> Notes:
        """Does the work, with deterministic kernels if the recipe asks for them."""
        if self.compute.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads this when it starts
        torch.use_deterministic_algorithms(self.compute.deterministic, warn_only=True)
        torch.backends.mkldnn.enabled = ONEDNN  # type: ignore[assignment]
        try:
            return self.stage.kind.work(self)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"{self.stage.name}: out of GPU memory ({str(error).split('. ')[0]}). Run fewer --jobs "
                "at once, lower compute.token_budget, or set compute.activation_checkpointing=true; "
                "finished stages are kept"
            ) from error


@dataclass
class Graph:
    """A recipe's stages while they are put together. A run that is read from its record has the code and the places
    that stand there."""

    recipe: Recipe
    pins: Pins
    borrowed: Mapping[str, Stage[Any]] = field(default_factory=dict)  # scales from other runs, by name
    code: dict[str, str] = field(default_factory=dict)  # of each kind, by name
    places: Mapping[str, str] = field(default_factory=dict)  # recorded ones, by stage
    stages: dict[str, Stage[Any]] = field(default_factory=dict)  # by name, inputs first

    def stage(self, kind: Kind[S], settings: S, inputs: Mapping[str, Stage[Any]], name: str | None = None) -> Stage[S]:
        """Adds a stage, or returns the existing one with this name, which must be the same."""
        name = name or kind.name
        pinned = self.pins.pin(settings)
        if name not in self.stages:
            if kind.name not in self.code:
                self.code[kind.name] = kind.code
            code = self.code[kind.name]
            keys = {role: stage.key for role, stage in inputs.items()}
            key = (
                self.places[name].rpartition("/")[2]
                if name in self.places
                else stage_key(kind.name, code, pinned, keys)
            )
            self.stages[name] = Stage(kind, name, pinned, inputs, code, key)
        existing: Stage[S] = self.stages[name]
        if existing.kind is not kind or existing.settings != pinned:
            raise UserError(f"two different stages would be named '{name}': choose other names in the recipe")
        return existing
