"""What a stage is: settings that change its result, the stages it needs, and the work itself."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unmdpo.errors import UserError
from unmdpo.pipeline.store import Artifact
from unmdpo.recipe.training import ComputeRecipe

# As the process began. PyTorch turns oneDNN off for good after one bfloat16 product on a processor without
# bfloat16, and later float32 results then round otherwise: each stage starts as if it were the first.
ONEDNN = bool(torch.backends.mkldnn.enabled)

Notes = dict[str, Any]  # what a stage wants its manifest to say: tokens, FLOPs, …


@dataclass(frozen=True)
class Kind:
    """A sort of stage. The version changes when the same settings would give another result."""

    name: str
    version: int
    work: Callable[["Job"], Notes]
    ranked: bool = False  # several ranks can share the work


@dataclass(frozen=True)
class Stage:
    kind: Kind
    name: str  # unique in a run, such as `pilot[2]`
    settings: Mapping[str, Any]  # JSON values; everything that changes the result
    inputs: Mapping[str, "Stage"] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The digest of the settings, the inputs' keys and the code's version."""
        described = {
            "kind": self.kind.name,
            "version": self.kind.version,
            "settings": self.settings,
            "inputs": {name: stage.key for name, stage in self.inputs.items()},
        }
        text = json.dumps(described, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def place(self) -> str:
        """Where its artifact lies in a store."""
        return f"{self.kind.name}/{self.key}"


@dataclass(frozen=True)
class Job:
    """A stage at work: an unfinished folder of its own, which survives a crash, and finished inputs."""

    stage: Stage
    folder: Path
    inputs: Mapping[str, Artifact]
    compute: ComputeRecipe
    report: Callable[[str], None]  # says how far the work is

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.stage.settings

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
                "at once, lower compute.token_budget, or set compute.activation_checkpointing=true; what is "
                "finished is kept"
            ) from error
