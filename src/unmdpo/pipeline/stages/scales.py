"""Prompt scales: q of every training prompt (or pair), fitted once and frozen."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor

from unmdpo.data import Comparison
from unmdpo.errors import UserError
from unmdpo.pipeline.common import PromptIndex, pair_hash, strengths, vote_counts
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.stages.data import TRAIN
from unmdpo.pipeline.store import Artifact
from unmdpo.pipeline.tables import read_comparisons
from unmdpo.scale import Rows, Units, make_estimator, save_scale
from unmdpo.scale.base import FrozenScale
from unmdpo.scale.features import DIMENSION, count_sketch
from unmdpo.scale.pair_features import pair_features


def scale(job: Job) -> Notes:
    rows = read_comparisons(job.inputs["comparisons"].file(TRAIN))
    units, names = units_of(rows, job)
    estimator = make_estimator(job.settings["estimator"], job.settings["settings"])
    assert isinstance(estimator, FrozenScale)
    estimator.fit(units, _evidence(rows, names, job))
    save_scale(estimator, job.folder)
    table = {
        "prompt_hash": [names.prompts[i] for i in range(len(units))],
        "pair_hash": [names.pairs[i] for i in range(len(units))],
        "q": estimator.q_.double().tolist(),
    }
    pq.write_table(pa.table(table), job.folder / "q.parquet")
    return {"units": len(units), **estimator.diagnostics_}


class UnitNames:
    """Which prompt (and pair of responses) each unit is, and the unit of each row."""

    def __init__(self, rows: Sequence[Comparison], kind: str) -> None:
        self.index = PromptIndex.of(rows)
        if kind == "prompt":
            self.of_row, self.prompts = self.index.of_row, self.index.hashes
            self.pairs, self.first_row = [""] * len(self.prompts), _first_rows(self.of_row)
            return
        places: dict[tuple[str, str], int] = {}
        for row in rows:
            places.setdefault((row.prompt_hash, pair_hash(row)), len(places))
        self.of_row = torch.tensor([places[row.prompt_hash, pair_hash(row)] for row in rows])
        self.prompts, self.pairs = ([name[i] for name in places] for i in (0, 1))
        self.first_row = _first_rows(self.of_row)


def _first_rows(of_row: Tensor) -> list[int]:
    """The first row of each unit; units are numbered as they first occur."""
    first: dict[int, int] = {}
    for row, unit in enumerate(of_row.tolist()):
        first.setdefault(unit, row)
    return [first[unit] for unit in range(len(first))]


def units_of(rows: Sequence[Comparison], job: Job) -> tuple[Units, UnitNames]:
    """Features, domains and folds of the units that the stage's settings ask for."""
    kind, estimator = job.settings["settings"].get("unit") or "prompt", job.settings["estimator"]
    names = UnitNames(rows, kind)
    index, prompt_of = names.index, names.index.of_row[names.first_row]
    sketches = torch.zeros(len(index.hashes), DIMENSION)
    if "features" in job.inputs:
        sketches = count_sketch(_embeddings(job.inputs["features"], index.hashes))
    features = sketches[prompt_of]
    if kind == "pair":
        pairs = [rows[row].pair for row in names.first_row]
        features = pair_features(features, [a for a, _ in pairs], [b for _, b in pairs])
    count, seed = job.settings["folds"], job.settings["fold_seed"]
    folds = index.entropy_folds(count) if estimator == "entropy" else index.folds(count, seed)
    domains = index.domains(rows)[prompt_of] if job.settings["domains"] else torch.zeros_like(prompt_of)
    return Units(features, domains, folds[prompt_of]), names


def _embeddings(artifact: Artifact, hashes: list[str]) -> Tensor:
    known = {name: place for place, name in enumerate(artifact.json("prompts.json"))}
    missing = [name for name in hashes if name not in known]
    if missing:
        raise UserError(f"{artifact.path}: no features of {len(missing)} prompts, such as {missing[0][:12]}…")
    embeddings = load_file(artifact.file("embeddings.safetensors"))["embeddings"]
    return embeddings[[known[name] for name in hashes]]


def _evidence(rows: Sequence[Comparison], names: UnitNames, job: Job) -> Rows:
    if "oof" not in job.inputs:  # estimators without pilots
        zeros = torch.zeros(len(rows))
        return Rows(names.of_row, zeros, strengths(rows), votes=vote_counts(rows))
    found = load_file(job.inputs["oof"].file("oof.safetensors"))
    evidence = found["evidence_ln" if job.settings["length_normalized"] else "evidence"]
    return Rows(
        unit=names.of_row,
        evidence=evidence,
        strength=strengths(rows),
        valid=found["valid"],
        votes=vote_counts(rows),
        lengths=found["mean_tokens"],
    )


def scale_of_rows(artifact: Artifact, rows: Sequence[Comparison]) -> Tensor:
    """(n,) the frozen q of each row, by what the row says, so that another run's scale serves too."""
    table = pq.read_table(artifact.file("q.parquet")).to_pydict()
    known = dict(zip(zip(table["prompt_hash"], table["pair_hash"], strict=True), table["q"], strict=True))
    of_pairs = any(table["pair_hash"])
    names = [(row.prompt_hash, pair_hash(row) if of_pairs else "") for row in rows]
    missing = [row for row, name in zip(rows, names, strict=True) if name not in known]
    if missing:
        raise UserError(
            f"the scale in {artifact.path} knows nothing of {len(missing)} rows; first: {missing[0].source}"
        )
    return torch.tensor([known[name] for name in names])
