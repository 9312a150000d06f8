"""A run's fitted scale, useful by itself: q of the prompts it was fitted to, and of any others."""

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
from unmdpo.engine.embed import embed_prompts
from unmdpo.engine.models import load_model, make_encoder
from unmdpo.engine.ranks import local_device
from unmdpo.errors import UserError
from unmdpo.pipeline.common import model_source
from unmdpo.pipeline.run import Run, finished_inputs
from unmdpo.pipeline.stage import Stage
from unmdpo.pipeline.stages.data import TRAIN
from unmdpo.pipeline.store import Artifact
from unmdpo.pipeline.tables import prompt_text, read_comparisons
from unmdpo.pipeline.training import compute_dtype
from unmdpo.scale import Units, load_scale
from unmdpo.scale.features import count_sketch

UNKNOWN = -1  # a domain that training did not have


@dataclass(frozen=True)
class FittedScale:
    run: Run
    name: str

    def known(self) -> pa.Table:
        """Every training prompt with its q, surest first: prompt, domain, q."""
        rows = read_comparisons(self.run.artifact("comparisons").file(TRAIN))
        domains = modal_domains(rows)
        table = pq.read_table(self._artifact.file("q.parquet"))
        prompts = {row.prompt_hash: row.prompt for row in rows}
        hashes = table["prompt_hash"].to_pylist()
        table = table.append_column("prompt", pa.array([prompt_text(prompts[name]) for name in hashes]))
        return _surest_first(table.append_column("domain", pa.array([domains[name] for name in hashes])))

    def predict(self, prompts: Sequence[Prompt], domains: Mapping[str, str] | None = None) -> Tensor:
        """(n,) q of any prompts, with everything frozen. `domains` maps prompt hashes to names."""
        estimator = load_scale(self._artifact.path)
        if estimator.unit != "prompt":
            raise UserError(f"scale '{self.name}' is one of pairs, and new prompts have no responses yet")
        sketch = torch.zeros(len(prompts), 1)
        if "features" in self._stage.inputs:
            stage = self._stage.inputs["features"]
            device, source = (
                local_device(),
                model_source(stage.settings["model"], finished_inputs(self.run, stage)),
            )
            model = load_model(source, device=device, dtype=compute_dtype(device))
            batches = embed_prompts(model, make_encoder(source, max_length=2**31), prompts)
            sketch = count_sketch(torch.cat(list(batches)))
        return estimator.predict(Units(sketch, self._domain_ids(prompts, domains or {})))

    def table(self, prompts: Sequence[Prompt], domains: Mapping[str, str]) -> pa.Table:
        """New prompts with their q, surest first."""
        hashes = [prompt_hash(prompt) for prompt in prompts]
        columns = {
            "prompt_hash": hashes,
            "q": self.predict(prompts, domains).double().tolist(),
            "prompt": [prompt_text(prompt) for prompt in prompts],
            "domain": [domains.get(name, "") for name in hashes],
        }
        return _surest_first(pa.table(columns))

    def _domain_ids(self, prompts: Sequence[Prompt], domains: Mapping[str, str]) -> Tensor:
        rows = read_comparisons(self.run.artifact("comparisons").file(TRAIN))
        numbers = domain_ids(modal_domains(rows).values())
        names = [domains.get(prompt_hash(prompt)) for prompt in prompts]
        return torch.tensor([UNKNOWN if name is None else numbers.get(name, UNKNOWN) for name in names])

    @property
    def _stage(self) -> Stage:
        return self.run.stages[f"scale[{self.name}]"]

    @property
    def _artifact(self) -> Artifact:
        return self.run.artifact(f"scale[{self.name}]")


def write_table(table: pa.Table, path: Path) -> None:
    aside = path.with_name(f".{path.name}.aside")
    try:
        pq.write_table(table, aside)
        aside.rename(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def _surest_first(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[("q", "ascending"), ("prompt_hash", "ascending")]))
