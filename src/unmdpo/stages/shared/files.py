"""Every file that a stage may write: its name, how it is written and how it is read.

Stages save and load through these definitions; file names appear nowhere else.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmdpo.core.files import read_lines, write_json, write_lines
from unmdpo.data import Prompt
from unmdpo.data.table import ComparisonTable, prompt_of, prompt_text
from unmdpo.engine.pairs.score import Part
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.loop import METRICS as METRICS_FILE
from unmdpo.scale import ScaleEstimator, load_scale, save_scale
from unmdpo.scale.check import Check
from unmdpo.scale.data import mean_of_valid
from unmdpo.store.artifact import ArtifactFile, Line

T = TypeVar("T")


@dataclass(frozen=True)
class Panel:
    """The prompts to evaluate on, in order."""

    hashes: list[str]
    prompts: list[Prompt]
    domains: list[str]
    ids: list[str]  # that came with the prompts; empty if none did

    def __len__(self) -> int:
        return len(self.hashes)

    def write(self, path: Path) -> None:
        prompts = [prompt_text(prompt) for prompt in self.prompts]
        write_json(path, {"hashes": self.hashes, "prompts": prompts, "domains": self.domains, "ids": self.ids})

    @classmethod
    def read(cls, path: Path) -> "Panel":
        values = _read_json(path)
        prompts = [prompt_of(text) for text in values["prompts"]]
        return cls(values["hashes"], prompts, values["domains"], values["ids"])


class HeldOut(NamedTuple):
    """A pilot's scores for the comparisons it was not trained on."""

    rows: Tensor  # (m,)
    logps: Tensor  # (m, 2) of chosen and rejected


class Evidence(NamedTuple):
    """Out-of-fold values for every comparison."""

    evidence: Tensor  # (n,) β₀·A
    evidence_ln: Tensor  # (n,) β_LN·A^LN
    valid: Tensor  # (n,) bool
    mean_tokens: Tensor  # (n,) mean over the two responses
    beta_ln: Tensor  # ()

    def of(self, length_normalized: bool) -> Tensor:
        return self.evidence_ln if length_normalized else self.evidence

    @classmethod
    def mean(cls, seeds: Sequence["Evidence"]) -> "Evidence":
        """Over pilots trained with several seeds; of a comparison, over those that have evidence for it."""
        first = seeds[0]
        if len(seeds) == 1:
            return first
        valid = [one.valid for one in seeds]
        evidence, normalized = (mean_of_valid([one.of(way) for one in seeds], valid) for way in (False, True))
        return first._replace(evidence=evidence, evidence_ln=normalized, valid=torch.stack(valid).any(dim=0))


class ScaleTable(NamedTuple):
    """q for every unit. `pair_hash` is empty if units are prompts."""

    prompt_hash: list[str]
    pair_hash: list[str]
    q: list[float]


def _one_tensor(name: str, tensor: str) -> ArtifactFile[Tensor]:
    return ArtifactFile(
        name, lambda path, value: save_file({tensor: value}, path), lambda path: load_file(path)[tensor]
    )


def _tensors(name: str, kind: Callable[..., T]) -> ArtifactFile[T]:
    """A named tuple of tensors."""

    def write(path: Path, value: Any) -> None:
        save_file(value._asdict(), path)

    return ArtifactFile(name, write, lambda path: kind(**load_file(path)))


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))  # of any size: its checksum was verified


def _written_by_the_engine(path: Path, value: object) -> None:
    raise TypeError(f"{path.name} is written by the engine")


def _write_estimator(path: Path, estimator: ScaleEstimator) -> None:
    save_scale(estimator, path)


COMPARISONS = ArtifactFile("comparisons.parquet", lambda path, rows: rows.write(path), ComparisonTable.read)
BAD_ROWS: ArtifactFile[list[Line]] = ArtifactFile("bad-rows.jsonl", write_lines, read_lines)  # only if there are any
PANEL = ArtifactFile("panel.json", lambda path, panel: panel.write(path), Panel.read)
PAIRS = ArtifactFile("pairs.safetensors", lambda path, pairs: pairs.save(path), EncodedPairs.load)
REFERENCE = _one_tensor("reference.safetensors", "logps")  # (n, 2)
EMBEDDINGS = _one_tensor("embeddings.safetensors", "embeddings")  # (u, d)
PART = _tensors("part.safetensors", Part)
PROMPTS: ArtifactFile[list[str]] = ArtifactFile("prompts.json", write_json, _read_json)  # their hashes
HELD_OUT = _tensors("held-out.safetensors", HeldOut)
EVIDENCE = _tensors("oof.safetensors", Evidence)
CHECK = ArtifactFile[Check](
    "check.json", lambda path, value: write_json(path, value.to_dict()), lambda path: Check.of_dict(_read_json(path))
)
SCALES = ArtifactFile(
    "q.parquet",
    lambda path, table: pq.write_table(pa.table(table._asdict()), path),
    lambda path: ScaleTable(**pq.read_table(path).to_pydict()),
)
ESTIMATOR: ArtifactFile[ScaleEstimator] = ArtifactFile("", _write_estimator, load_scale)  # the whole folder
POLICY_SCALE: ArtifactFile[ScaleEstimator] = ArtifactFile("scale", _write_estimator, load_scale)
MODEL: ArtifactFile[Path] = ArtifactFile("model", _written_by_the_engine, Path)  # a folder for `from_pretrained`
ADAPTER: ArtifactFile[Path] = ArtifactFile("adapter", _written_by_the_engine, Path)  # of a policy that is merged
METRICS: ArtifactFile[list[Line]] = ArtifactFile(METRICS_FILE, _written_by_the_engine, read_lines)
GENERATIONS: ArtifactFile[list[Line]] = ArtifactFile("generations.jsonl", write_lines, read_lines)
SCORES: ArtifactFile[list[Line]] = ArtifactFile("scores.jsonl", write_lines, read_lines)
MEASURED: ArtifactFile[dict[str, Any]] = ArtifactFile("measured.json", write_json, _read_json)
TASKS: ArtifactFile[dict[str, Any]] = ArtifactFile("tasks.json", write_json, _read_json)
SUMMARY: ArtifactFile[dict[str, Any]] = ArtifactFile("summary.json", write_json, _read_json)
