"""What a stage is: a function whose keyword arguments are its settings, the stages it needs, and what came out."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import torch
from pydantic import create_model

from unmdpo.core.errors import OutOfMemory
from unmdpo.core.settings import Strict
from unmdpo.engine.settings import ComputeSettings, LoggingSettings
from unmdpo.store.artifact import Artifact, ArtifactFile
from unmdpo.store.code import code_digest
from unmdpo.store.store import state_of

# oneDNN's setting at process start. After one bfloat16 product on a processor without bfloat16, PyTorch turns oneDNN
# off for good, and later float32 results round differently. Each stage restores this, as if it were the first.
ONEDNN = bool(torch.backends.mkldnn.enabled)

# By default: as many ranks as `compute.ranks` says. On request: one, unless `compute.ranks_of` names the kind.
Ranked = Literal["never", "by default", "on request"]
Notes = dict[str, Any]  # what a stage adds to its manifest: tokens, FLOPs, …
T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """One kind of stage: the function that does its work, and what else is known of it.

    The function takes its `Job` and, as keyword arguments, the settings that affect its result; it saves files through
    the job and returns the notes for its manifest.
    """

    name: str
    work: Callable[..., Notes]
    uses_model: bool = False  # runs a model, so it should get a GPU
    trains: bool = False  # changes weights, which takes most of a GPU
    runs_elsewhere: Callable[["Stage"], bool] = lambda stage: False  # its model, such as on a server
    ranked: Ranked = "never"  # whether several ranks can share the work

    @property
    def code(self) -> str:
        """A digest of the code that makes its results, as it is now."""
        return code_digest(Path(inspect.getfile(inspect.unwrap(self.work))))

    @cached_property
    def settings(self) -> type[Strict]:
        """The type of its settings: a field for each keyword argument of its function."""
        hints = get_type_hints(self.work, include_extras=True)
        parameters = inspect.signature(self.work).parameters.values()
        fields: Any = {
            parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
            for parameter in parameters
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        return create_model(f"{self.name.title()}Settings", __base__=Strict, **fields)

    def stage_name(self, *parts: object) -> str:
        """The name of one stage of this kind in a run, such as `pilot[2]`."""
        return f"{self.name}[{','.join(map(str, parts))}]" if parts else self.name


@dataclass(frozen=True)
class Stage:
    kind: Kind
    name: str  # unique in a run
    settings: Any  # of the kind's type: everything that affects the result, with every place pinned
    inputs: Mapping[str, "Stage"] = field(default_factory=dict)
    code: str = ""  # the digest of its code when the run began
    key: str = ""

    @property
    def place(self) -> str:
        """The path of its artifact in the store."""
        return f"{self.kind.name}/{self.key}"

    @property
    def uses_gpu(self) -> bool:
        """Where there is one."""
        return self.kind.uses_model and not self.kind.runs_elsewhere(self)


@dataclass(frozen=True)
class Job:
    """A stage in progress: the folder for its result, which starts empty, and its finished inputs."""

    stage: Stage
    folder: Path
    inputs: Mapping[str, Artifact]
    compute: ComputeSettings
    report: Callable[[str], None]  # shows progress
    proofs: Path | None = None  # where proofs about models are kept; None: they are not
    logging: LoggingSettings = field(default_factory=LoggingSettings)

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
            return self.stage.kind.work(self, **dict(self.stage.settings))
        except RuntimeError as error:
            # cuBLAS and cuDNN have memory of their own, and words of their own when there is none
            if not isinstance(error, torch.OutOfMemoryError) and "ALLOC_FAILED" not in str(error):
                raise
            raise OutOfMemory(
                f"{self.stage.name}: out of GPU memory ({str(error).split('. ')[0]}). Run fewer --jobs "
                "at once, lower compute.token_budget, or set compute.activation_checkpointing=true; "
                "finished stages are kept"
            ) from error
