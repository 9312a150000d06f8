"""What several stages share: models as recipes name them, training data, prompts and their units."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmdpo.data import Comparison, Prompt, fold_of
from unmdpo.data.domains import domain_ids, modal_domains
from unmdpo.data.identity import entropy_fold_of
from unmdpo.engine.models import ModelSource
from unmdpo.errors import UserError
from unmdpo.pipeline.store import Artifact
from unmdpo.scale.data import VOTE_CATEGORIES

CONVERTED = "converted"  # a stage, and the name of its artifact among the inputs of others
CATEGORIES = (-3, -2, -1, 1, 2, 3)


def model_source(settings: Mapping[str, Any], inputs: Mapping[str, Artifact] | None = None) -> ModelSource:
    """`settings` is a recipe's model, perhaps with checksums of its files; among a stage's `inputs` may be
    that model converted."""
    given = {key: value for key, value in settings.items() if key != "files"}
    if inputs is not None and CONVERTED in inputs:
        given |= {"path": str(inputs[CONVERTED].file("model")), "revision": None, "gguf_file": None}
    return ModelSource(template_arguments=given.pop("chat_template"), **given)


@dataclass(frozen=True)
class PromptIndex:
    """Unique prompts in the order in which they first occur, and each row's place among them."""

    hashes: list[str]
    prompts: list[Prompt]
    of_row: Tensor  # (n,)

    @classmethod
    def of(cls, rows: Sequence[Comparison]) -> "PromptIndex":
        places: dict[str, int] = {}
        prompts = []
        for row in rows:
            if row.prompt_hash not in places:
                places[row.prompt_hash] = len(places)
                prompts.append(row.prompt)
        return cls(list(places), prompts, torch.tensor([places[row.prompt_hash] for row in rows]))

    def domains(self, rows: Sequence[Comparison]) -> Tensor:
        """(u,) the number of each prompt's modal domain."""
        modal = modal_domains(rows)
        numbers = domain_ids(modal.values())
        return torch.tensor([numbers[modal[name]] for name in self.hashes])

    def folds(self, folds: int, seed: int) -> Tensor:
        return torch.tensor([fold_of(name, folds, seed) for name in self.hashes])

    def entropy_folds(self, folds: int) -> Tensor:
        return torch.tensor([entropy_fold_of(name, folds) for name in self.hashes])


def check_finite_logps(logps: Tensor, valid: Tensor, whose: str) -> None:
    """Names the valid comparisons, counted from 0, of which a model says what is not a number."""
    bad = (valid.bool() & ~logps.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise UserError(
            f"log-probabilities of {len(bad)} comparisons under {whose} are not finite, of numbers {bad[:8]} "
            "for example; look at the model's weights, or lower the learning rate"
        )


def pair_hash(row: Comparison) -> str:
    """The unordered pair of responses, for scales of pairs."""
    text = "\0".join(row.pair)
    return hashlib.sha256(text.encode()).hexdigest()


def strengths(rows: Sequence[Comparison]) -> Tensor:
    return torch.tensor([float(row.strength) for row in rows])


def vote_counts(rows: Sequence[Comparison]) -> Tensor | None:
    """(n, 6) how many annotators said −3, −2, −1, 1, 2, 3; None if no one's votes are known."""
    if not any(row.votes for row in rows):
        return None
    counts = torch.zeros(len(rows), VOTE_CATEGORIES, dtype=torch.int64)
    for place, row in enumerate(rows):
        for vote in row.votes:
            if vote in CATEGORIES:
                counts[place, CATEGORIES.index(vote)] += 1
    return counts
