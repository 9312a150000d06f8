"""A fitted scale: q for the prompts it was fitted to, and for any others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.core.files import replacing
from unmdpo.data import Prompt, prompt_hash
from unmdpo.data.domains import domain_ids, modal_domains
from unmdpo.data.identity import PromptLike
from unmdpo.data.rows import as_prompts
from unmdpo.data.table import prompt_of, prompt_text
from unmdpo.engine.inference.embed import Embedder, embeddings_of
from unmdpo.engine.models import load_model
from unmdpo.engine.ranks import local_device
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.scale import Units
from unmdpo.stages.shared.files import COMPARISONS, ESTIMATOR, SCALES
from unmdpo.stages.shared.units import UNKNOWN, features_for
from unmdpo.store.artifact import Artifact

SHOWN, TEXT = 5, 80  # prompts at either end in a notebook, and characters of each


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        known = SCALES.load(self.artifact)
        q = torch.as_tensor(known.q, dtype=torch.float64)
        spread = f"q from {q.min():.2f} to {q.max():.2f}, mean {q.mean():.2f}"
        return f"FittedScale {self.name}: {len(q):,} {self.unit}s, {spread}"

    def _repr_html_(self) -> str:
        """For notebooks: a few of the surest and of the least sure prompts."""
        if self.unit != "prompt":
            return f"<p>{escape(repr(self))}</p>"
        table = self.known()
        ends = [*range(min(SHOWN, len(table))), *range(max(SHOWN, len(table) - SHOWN), len(table))]
        shown = [(prompt_of(row["prompt"])[-1].content[:TEXT], row["q"]) for row in table.take(ends).to_pylist()]
        rows = "".join(f"<tr><td>{escape(text)}</td><td>{q:.2f}</td></tr>" for text, q in shown)
        return f"<p>{escape(repr(self))}</p><table><tr><th>prompt</th><th>q</th></tr>{rows}</table>"

    @property
    def unit(self) -> str:
        """What has a q: every prompt, or every pair."""
        return str(ESTIMATOR.load(self.artifact).settings.unit)

    def predict(self, asked: Sequence[PromptLike], domains: Mapping[str, str] | None = None) -> Tensor:
        """(n,) q for any questions or conversations, with everything frozen. `domains` maps prompt hashes to names."""
        prompts = as_prompts(asked)
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
    with replacing(path) as aside:
        pq.write_table(table, aside)


def _by_scale(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[("q", "ascending"), ("prompt_hash", "ascending")]))
