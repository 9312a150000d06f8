"""The units of a scale: prompts, or prompts with a pair of responses, and what the rows say about them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import SerializeAsAny
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.core.settings import Strict
from unmdpo.data import Comparison, Prompt, fold_of
from unmdpo.data.domains import domain_ids, modal_domains
from unmdpo.data.identity import entropy_fold_of
from unmdpo.data.panels import read_scales
from unmdpo.data.table import ComparisonTable, prompt_of
from unmdpo.scale import Units
from unmdpo.scale.data import VOTE_CATEGORIES
from unmdpo.scale.features import DIMENSION, count_sketch, pair_features, wide_features
from unmdpo.scale.settings import EstimatorSettings, GivenSettings
from unmdpo.scale.table import ESTIMATORS
from unmdpo.stages.shared.files import EMBEDDINGS, PROMPTS
from unmdpo.store.artifact import Artifact

UNKNOWN = -1  # a domain not seen in training
CATEGORIES = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True)
class PromptIndex:
    """Unique prompts in order of first occurrence, by hash; where each is first, and the index of each row's."""

    hashes: list[str]
    first_row: list[int]
    of_row: Tensor  # (n,)

    @classmethod
    def of(cls, rows: Sequence[Comparison]) -> "PromptIndex":
        places: dict[str, int] = {}
        first, of_row = list[int](), list[int]()
        for number, name in enumerate(ComparisonTable.of(rows).prompt_hashes()):
            place = places.setdefault(name, len(places))
            if place == len(first):
                first.append(number)
            of_row.append(place)
        return cls(list(places), first, torch.tensor(of_row))

    def prompts(self, rows: Sequence[Comparison]) -> list[Prompt]:
        texts = ComparisonTable.of(rows).column("prompt")
        wanted = set(self.first_row)
        return [prompt_of(text) for number, text in enumerate(texts) if number in wanted]

    def domains(self, rows: Sequence[Comparison], numbered_by: Sequence[Comparison]) -> Tensor:
        """(u,) the id of each prompt's modal domain, among those of the second rows."""
        modal, numbers = modal_domains(rows), domain_ids(modal_domains(numbered_by).values())
        if len(numbers) <= 1:
            return torch.zeros(len(self.hashes), dtype=torch.int64)
        return torch.tensor([numbers.get(modal[name], UNKNOWN) for name in self.hashes])

    def folds(self, folds: int, seed: int) -> Tensor:
        return torch.tensor([fold_of(name, folds, seed) for name in self.hashes])

    def entropy_folds(self, folds: int) -> Tensor:
        return torch.tensor([entropy_fold_of(name, folds) for name in self.hashes])


class EstimatorChoice(Strict):
    """An estimator with its settings, and the units it is fitted to."""

    name: str
    settings: SerializeAsAny[EstimatorSettings]
    unit: str
    folds: int
    fold_seed: int
    domains: bool


class UnitNames:
    """The prompt (and pair of responses) of each unit, and the unit of each row."""

    def __init__(self, rows: Sequence[Comparison], kind: str) -> None:
        self.index = PromptIndex.of(rows)
        if kind == "prompt":
            self.of_row, self.prompts = self.index.of_row, self.index.hashes
            self.pairs = [""] * len(self.prompts)
        else:
            places: dict[tuple[str, str], int] = {}
            for row in rows:
                places.setdefault((row.prompt_hash, pair_hash(row)), len(places))
            self.of_row = torch.tensor([places[row.prompt_hash, pair_hash(row)] for row in rows])
            self.prompts, self.pairs = ([name[i] for name in places] for i in (0, 1))
        self.first_row = _first_rows(self.of_row)


def _first_rows(of_row: Tensor) -> list[int]:
    """The first row of each unit; units are numbered in order of first occurrence."""
    first: dict[int, int] = {}
    for row, unit in enumerate(of_row.tolist()):
        first.setdefault(unit, row)
    return [first[unit] for unit in range(len(first))]


def pair_hash(row: Comparison) -> str:
    """A hash of the unordered pair of responses, for scales of pairs."""
    text = "\0".join(row.pair)
    return hashlib.sha256(text.encode()).hexdigest()


def strengths(rows: Sequence[Comparison]) -> Tensor:
    return torch.from_numpy(ComparisonTable.of(rows).numbers("strength")).float()


def weights(rows: Sequence[Comparison], valid: Tensor) -> Tensor | None:
    """(n,) how much each row counts, 1 on average over those that are `valid`; a row that does not say so counts as
    much as the average of those that do. None if no row says so."""
    table = ComparisonTable.of(rows)
    if not table.has("weight"):
        return None
    given = torch.from_numpy(table.numbers("weight")).double()  # NaN where nothing is said
    said = ~given.isnan() & valid
    if not said.any():
        return None
    mean = given[said].mean()
    if not mean.isfinite():
        raise UserError("the weights of all comparisons are too large to add up: divide them by their mean")
    if not mean:
        raise UserError("the weights of all comparisons are zero: give some of them a positive weight")
    return torch.where(given.isnan(), 1.0, given / mean).float()


def vote_counts(rows: Sequence[Comparison]) -> Tensor | None:
    """(n, 6) how many annotators said −3, −2, −1, 1, 2, 3; None if no row has votes."""
    counts = torch.zeros(len(rows), VOTE_CATEGORIES, dtype=torch.int64)
    voted = False
    for place, votes in enumerate(ComparisonTable.of(rows).column("votes")):
        voted = voted or bool(votes)
        for vote in votes:
            if vote in CATEGORIES:
                counts[place, CATEGORIES.index(vote)] += 1
    return counts if voted else None


def units_of(
    rows: Sequence[Comparison],
    choice: EstimatorChoice,
    features: Artifact | None,
    fitted_to: Sequence[Comparison] | None = None,
) -> tuple[Units, UnitNames]:
    """Features, domains and folds of the units that an estimator uses. Domains are numbered as in the rows that it is
    fitted to, if those are others."""
    names = UnitNames(rows, choice.unit)
    index, prompt_of = names.index, names.index.of_row[names.first_row]
    known, settings = torch.zeros(len(index.hashes), DIMENSION), choice.settings
    if isinstance(settings, GivenSettings):
        known = _given(settings, index.hashes)
    if features is not None:
        embeddings = _embeddings(features, index.hashes)
        known = features_for(settings, embeddings, index.prompts(rows))
    inputs = known[prompt_of]
    if choice.unit == "pair":
        pairs = [rows[row].pair for row in names.first_row]
        inputs = pair_features(inputs, [a for a, _ in pairs], [b for _, b in pairs])
    own_folds = ESTIMATORS[choice.name].own_folds
    folds = index.entropy_folds(choice.folds) if own_folds else index.folds(choice.folds, choice.fold_seed)
    domains = index.domains(rows, fitted_to or rows)[prompt_of] if choice.domains else torch.zeros_like(prompt_of)
    return Units(inputs, domains, folds[prompt_of]), names


def features_for(settings: EstimatorSettings, embeddings: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    """What an estimator knows about prompts: the paper's sketch of their embeddings, or more."""
    if getattr(settings, "features", "sketch") == "sketch":
        return count_sketch(embeddings)
    return wide_features(embeddings, ["\n".join(message.content for message in prompt) for prompt in prompts])


def _given(settings: GivenSettings, hashes: list[str]) -> Tensor:
    """(u, 1) log q from a file."""
    scales = read_scales(Path(settings.path))
    missing = [name for name in hashes if name not in scales]
    if missing:
        raise UserError(
            f"{settings.path}: no q for {len(missing)} of {len(hashes)} prompts, such as the one with "
            f"prompt_hash {missing[0]}"
        )
    return torch.tensor([scales[name] for name in hashes]).log()[:, None]


def _embeddings(artifact: Artifact, hashes: list[str]) -> Tensor:
    known = {name: place for place, name in enumerate(PROMPTS.load(artifact))}
    missing = [name for name in hashes if name not in known]
    if missing:
        raise UserError(f"{artifact.path}: no features for {len(missing)} prompts, such as {missing[0][:12]}…")
    return EMBEDDINGS.load(artifact)[[known[name] for name in hashes]]
