"""Prompt embeddings from a frozen model: the input of a prompt scale ("Feature construction").

An embedding is the final hidden state, after the last norm, at the last token of the rendered prompt. Prompts are
padded and truncated on the left.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.padding import padding_is_harmless, shortest_and_longest
from unmdpo.engine.models import body
from unmdpo.engine.pairs.encode import Encoder
from unmdpo.engine.pairs.padding import padded
from unmdpo.engine.ranks import Ranks
from unmdpo.errors import UserError

LONGEST, BATCH = 2048, 32


class Embedder(nn.Module):
    """A model as a function from padded prompts to embeddings; the root module if it is sharded."""

    pads = True  # whether rows may be padded

    def __init__(self, model: PreTrainedModel, device: torch.device | None = None) -> None:
        super().__init__()
        if body(model) is model:
            raise UserError(f"{type(model).__name__} has no body separate from its head: use a causal language model")
        self.model, self.device = model, device or model.device

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, d) float32. Without a mask, rows have one length, and the model counts positions its own way."""
        padding = {} if mask is None else {"attention_mask": mask, "position_ids": positions(mask)}
        hidden: Tensor = body(self.model)(input_ids=tokens, use_cache=False, **padding).last_hidden_state
        return hidden[:, -1].float()


@torch.no_grad()
def embed_prompts(embedder: Embedder, encoder: Encoder, prompts: Sequence[Prompt], start: int = 0) -> Iterator[Tensor]:
    """(≤32, d) for each batch of prompts, in order; `start` skips prompts that are already embedded. Ranks take turns,
    and each gets all embeddings."""
    embedder.train(False)
    ranks, embedder.pads = Ranks.current(), True
    firsts = range(start, len(prompts), BATCH)
    for place in range(0, len(firsts), ranks.world):
        turn = firsts[place : place + ranks.world]
        own = turn[min(ranks.rank, len(turn) - 1)]  # a rank with nothing left repeats the last batch
        rows = _tokens(encoder, prompts[own : own + BATCH])
        if place == 0:  # tried on the same rows everywhere: all ranks must pass equally often
            few = _tokens(encoder, prompts[start : start + BATCH])
            embedder.pads = ranks.agree(_pads(embedder, few), embedder.device)
        found = _embed(embedder, rows)
        yield from _shared(found, turn, own, len(prompts), ranks)


def _tokens(encoder: Encoder, prompts: Sequence[Prompt]) -> list[list[int]]:
    texts = [encoder.prompt_text(prompt) for prompt in prompts]
    return [ids[-LONGEST:] for ids in encoder.tokenize(texts)]


def _embed(embedder: Embedder, rows: Sequence[list[int]]) -> Tensor:
    """(n, d). Without padding, each row goes alone, and all ranks pass equally often."""
    if embedder.pads:
        return _pass(embedder, rows)
    several = BATCH if Ranks.current().world > 1 else len(rows)
    return torch.cat([_plain(embedder, rows[min(place, len(rows) - 1)]) for place in range(several)])[: len(rows)]


def _plain(embedder: Embedder, row: list[int]) -> Tensor:
    """(1, d)"""
    found: Tensor = embedder(torch.tensor([row], device=embedder.device))
    return found


def _pass(embedder: Embedder, rows: Sequence[list[int]]) -> Tensor:
    tokens, mask = padded(rows, pad_token=0, side="left")
    found: Tensor = embedder(tokens.to(embedder.device), mask.to(embedder.device))
    return found


def _pads(embedder: Embedder, rows: Sequence[list[int]]) -> bool:
    """Whether rows may be padded, tried on a few."""
    few = [rows[place] for place in shortest_and_longest(rows)]
    alone = torch.cat([_plain(embedder, row) for row in few])
    return padding_is_harmless(embedder.model, _pass(embedder, few), alone, "prompts to embed")


def _shared(found: Tensor, turn: range, own: int, count: int, ranks: Ranks) -> Iterator[Tensor]:
    """Every rank's batch of this turn, on the CPU, checked."""
    together = found.new_zeros(len(turn), BATCH, found.shape[1])
    if ranks.rank < len(turn):
        together[turn.index(own), : len(found)] = found
    for first, embeddings in zip(turn, ranks.total(together).cpu(), strict=True):
        batch = embeddings[: count - first]
        if not batch.isfinite().all():
            bad = first + int((~batch.isfinite().all(dim=1)).nonzero()[0])
            raise UserError(f"the embedding of prompt {bad} is not finite: check the model's weights")
        yield batch


def positions(mask: Tensor) -> Tensor:
    """(n, longest) position ids, counted from each row's first token."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)
