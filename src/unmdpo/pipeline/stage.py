"""What a stage is: settings that change its result, the stages it needs, and the work itself."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from unmdpo.engine.settings import ComputeSettings, ModelSource
from unmdpo.errors import UserError
from unmdpo.pipeline.artifacts import MODEL, ArtifactFile
from unmdpo.pipeline.store import Artifact
from unmdpo.settings import Strict

if TYPE_CHECKING:
    from unmdpo.pipeline.costs import Cost, Estimates
    from unmdpo.pipeline.graph import Graph

# As the process began. PyTorch turns oneDNN off for good after one bfloat16 product on a processor without
# bfloat16, and later float32 results then round differently: each stage starts as if it were the first.
ONEDNN = bool(torch.backends.mkldnn.enabled)

CONVERTED = "converted"  # the input that holds a model converted from a GGUF file
Notes = dict[str, Any]  # what a stage wants its manifest to say: tokens, FLOPs, …
S = TypeVar("S", bound=Strict)
T = TypeVar("T")


class PinnedModel(ModelSource):
    """A model as a recipe names it, with the checksums of its files where it is a local folder."""

    files: dict[str, str] | None = None


@dataclass(frozen=True)
class Kind(Generic[S]):
    """All that is known about one sort of stage; a new version where the same settings give another result."""

    name: str
    work: Callable[["Job[S]"], Notes]
    version: int = 1
    uses_model: bool = False  # computes with a model, so wants a GPU
    ranked: bool = False  # several ranks can share the work
    cost: Callable[["Estimates", "Stage[S]"], "Cost"] | None = None  # None: not worth naming
    wanted: Callable[["Graph"], None] | None = None  # adds what a recipe asks for outright

    def called(self, *parts: object) -> str:
        """The name of one such stage in a run, such as `pilot[2]`."""
        return f"{self.name}[{','.join(map(str, parts))}]" if parts else self.name


@dataclass(frozen=True)
class Stage(Generic[S]):
    kind: Kind[S]
    name: str  # unique in a run
    settings: S  # everything that changes the result
    inputs: Mapping[str, "Stage[Any]"] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The digest of the settings, the inputs' keys and the code's version."""
        described = {
            "kind": self.kind.name,
            "version": self.kind.version,
            "settings": self.settings.model_dump(mode="json"),
            "inputs": {name: stage.key for name, stage in self.inputs.items()},
        }
        text = json.dumps(described, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def place(self) -> str:
        """Where its artifact is kept in a store."""
        return f"{self.kind.name}/{self.key}"


@dataclass(frozen=True)
class Job(Generic[S]):
    """A stage at work: an unfinished folder of its own, which survives a crash, and finished inputs."""

    stage: Stage[S]
    folder: Path
    inputs: Mapping[str, Artifact]
    compute: ComputeSettings
    report: Callable[[str], None]  # says how far the work is

    @property
    def settings(self) -> S:
        return self.stage.settings

    def load(self, file: ArtifactFile[T], of: str) -> T:
        """A file of one of the inputs."""
        return file.load(self.inputs[of])

    def save(self, file: ArtifactFile[T], value: T) -> None:
        file.save(self.folder, value)

    def source(self, model: PinnedModel) -> ModelSource:
        """Where to load a model from: its converted copy if there is one among the inputs."""
        if CONVERTED in self.inputs:
            return model.located(str(self.load(MODEL, CONVERTED)))
        return model

    def do(self) -> Notes:
        """The work, with the kernels that the recipe allows."""
        if self.compute.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
        torch.use_deterministic_algorithms(self.compute.deterministic, warn_only=True)
        torch.backends.mkldnn.enabled = ONEDNN  # type: ignore[assignment]
        try:
            return self.stage.kind.work(self)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"{self.stage.name}: GPU memory is full ({str(error).split('. ')[0]}). Run fewer --jobs "
                "at once, lower compute.token_budget, or set compute.activation_checkpointing=true; "
                "finished stages are kept"
            ) from error
