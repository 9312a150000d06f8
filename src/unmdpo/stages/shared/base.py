"""What a stage is: the settings that affect its result, the stages it needs, and the work itself."""

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from unmdpo.core.errors import OutOfMemory, UserError
from unmdpo.core.settings import Strict
from unmdpo.engine.models import read_template
from unmdpo.engine.settings import ComputeSettings, LoggingSettings, ModelSource
from unmdpo.recipe import Recipe
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.store.artifact import Artifact, ArtifactFile
from unmdpo.store.code import code_digest
from unmdpo.store.fingerprints import Fingerprints, by_content
from unmdpo.store.store import state_of

# oneDNN's setting at process start. After one bfloat16 product on a processor without bfloat16, PyTorch turns oneDNN
# off for good, and later float32 results round differently. Each stage restores this, as if it were the first.
ONEDNN = bool(torch.backends.mkldnn.enabled)

VALIDATED = "[validation]"  # ends the names of stages that do on the validation rows what others do in training
# By default: as many ranks as `compute.ranks` says. On request: one, unless `compute.ranks_of` names the kind.
Ranked = Literal["never", "by default", "on request"]
Files = dict[str, dict[str, str] | None]  # path → name → SHA-256; None for a name on the Hub
Notes = dict[str, Any]  # what a stage adds to its manifest: tokens, FLOPs, …
S = TypeVar("S", bound=Strict)
T = TypeVar("T")


class PinnedModel(ModelSource):
    """A model as named in a recipe, with checksums of its files if it is a local folder."""

    files: dict[str, str] | None = None


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
        """A digest of the code that makes its results."""
        return code_digest(Path(inspect.getfile(inspect.unwrap(self.work))))

    def stage_name(self, *parts: object) -> str:
        """The name of one stage of this kind in a run, such as `pilot[2]`."""
        return f"{self.name}[{','.join(map(str, parts))}]" if parts else self.name


@dataclass(frozen=True)
class Stage(Generic[S]):
    kind: Kind[S]
    name: str  # unique in a run
    settings: S  # everything that affects the result
    inputs: Mapping[str, "Stage[Any]"] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """A digest of the settings, the inputs' keys and the code. Local files count by what is in them, not by where
        they lie."""
        described = {
            "kind": self.kind.name,
            "code": self.kind.code,
            "settings": by_content(self.settings.model_dump(mode="json")),
            "inputs": {name: stage.key for name, stage in self.inputs.items()},
        }
        text = json.dumps(described, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

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
    recipe: Recipe
    fingerprints: Fingerprints
    borrowed: Mapping[str, Stage[Any]] = field(default_factory=dict)  # scales from other runs, by name
    stages: dict[str, Stage[Any]] = field(default_factory=dict)  # by name, inputs first
    pinned: dict[str, PinnedModel] = field(default_factory=dict)  # models by their settings: most stages have one

    def stage(self, kind: Kind[S], settings: S, inputs: Mapping[str, Stage[Any]], name: str | None = None) -> Stage[S]:
        """Adds a stage, or returns the existing one with this name, which must be the same."""
        new = Stage(kind, name or kind.name, settings, inputs)
        existing: Stage[S] = self.stages.setdefault(new.name, new)
        if existing is not new and (existing.kind is not kind or existing.settings != settings):
            raise UserError(f"two different stages would be named '{new.name}': choose other names in the recipe")
        return existing

    def pin_model(self, model: ModelSource) -> PinnedModel:
        """The model with checksums of the files that affect its output, and its chat template's text."""
        key = model.model_dump_json()
        if key not in self.pinned:
            template = None if model.template is None else read_template(model.template)
            files = self.fingerprints.of_model(model.path)
            self.pinned[key] = PinnedModel(**(dict(model) | {"template": template}), files=files)
        return self.pinned[key]

    def files(self, places: Iterable[str | None]) -> Files:
        return {place: self.fingerprints.of(place) for place in places if place is not None}

    def data_files(self, places: Iterable[str | None]) -> Files:
        return {place: self.fingerprints.of_data(place) for place in places if place is not None}
