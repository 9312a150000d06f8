"""A fitted scale: q for the prompts it was fitted to, and for any others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from unmdpo.data import Prompt, prompt_hash
from unmdpo.data.domains import domain_ids, modal_domains
from unmdpo.data.table import prompt_text
from unmdpo.engine.inference.embed import Embedder, embeddings_of
from unmdpo.engine.models import load_model
from unmdpo.engine.pairs.encode import Encoder
from unmdpo.engine.ranks import local_device
from unmdpo.engine.settings import ModelSource
from unmdpo.errors import UserError
from unmdpo.files import replacing
from unmdpo.pipeline.artifacts import COMPARISONS, ESTIMATOR, SCALES
from unmdpo.pipeline.stages.scales import features_for
from unmdpo.pipeline.store import Artifact
from unmdpo.pipeline.units import UNKNOWN
from unmdpo.scale import Units


@dataclass(frozen=True)
class FittedScale:
    name: str
    artifact: Artifact
    comparisons: Artifact  # what it was fitted to
    model: ModelSource | None  # the model for its embeddings, if it uses any
    domains: bool  # whether it has a term for each domain, or one for all

    def known(self) -> pa.Table:
        """Every training prompt with its q, smallest (surest) first: prompt, domain, q."""
        rows = COMPARISONS.load(self.comparisons)
        domains, prompts = modal_domains(rows), {row.prompt_hash: row.prompt for row in rows}
        table = pa.table(SCALES.load(self.artifact)._asdict())
        hashes = table["prompt_hash"].to_pylist()
        table = table.append_column("prompt", pa.array([prompt_text(prompts[name]) for name in hashes]))
        return _by_scale(table.append_column("domain", pa.array([domains[name] for name in hashes])))

    def predict(self, prompts: Sequence[Prompt], domains: Mapping[str, str] | None = None) -> Tensor:
        """(n,) q for any prompts, with everything frozen. `domains` maps prompt hashes to domain names."""
        estimator = ESTIMATOR.load(self.artifact)
        if estimator.settings.unit != "prompt":
            raise UserError(f"scale '{self.name}' is for pairs, and cannot predict q for prompts without responses")
        known = torch.zeros(len(prompts), 1)
        if self.model is not None:
            embedder = Embedder(load_model(self.model, device=local_device()))
            known = features_for(estimator.settings, embeddings_of(embedder, Encoder.of(self.model), prompts), prompts)
        return estimator.predict(Units(known, self._domain_ids(prompts, domains or {})))

    def table(self, prompts: Sequence[Prompt], domains: Mapping[str, str]) -> pa.Table:
        """New prompts with their q, smallest q first."""
        hashes = [prompt_hash(prompt) for prompt in prompts]
        columns = {
            "prompt_hash": hashes,
            "q": self.predict(prompts, domains).double().tolist(),
            "prompt": [prompt_text(prompt) for prompt in prompts],
            "domain": [domains.get(name, "") for name in hashes],
        }
        return _by_scale(pa.table(columns))

    def _domain_ids(self, prompts: Sequence[Prompt], domains: Mapping[str, str]) -> Tensor:
        """Where all training prompts were of one domain, or counted as such, new ones are of it too."""
        numbers = domain_ids(modal_domains(COMPARISONS.load(self.comparisons)).values()) if self.domains else {}
        if len(numbers) <= 1:
            return torch.zeros(len(prompts), dtype=torch.int64)
        names = [domains.get(prompt_hash(prompt), "") for prompt in prompts]
        return torch.tensor([numbers.get(name, UNKNOWN) for name in names])


def write_table(table: pa.Table, path: Path) -> None:
    try:
        with replacing(path) as aside:
            pq.write_table(table, aside)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def _by_scale(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[("q", "ascending"), ("prompt_hash", "ascending")]))
