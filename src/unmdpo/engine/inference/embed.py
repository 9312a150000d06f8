"""Prompt embeddings from a frozen model: the input of a prompt scale ("Feature construction").

An embedding is the final hidden state, after the last norm, at the last token of the rendered prompt. Prompts are
padded and truncated on the left.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unmdpo.core.errors import UserError
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.padding import padding_is_harmless, shortest_and_longest
from unmdpo.engine.models import body
from unmdpo.engine.pairs.padding import alike, padded
from unmdpo.engine.pairs.rope import forget_length, rope_limit
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.text.encode import CHUNK, Encoder
from unmdpo.engine.text.encoded import Tokens

LONGEST = 2048  # tokens
BUDGETS = (4096, 65_536)  # tokens in a batch, on a CPU and on a GPU


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


def embeddings_of(embedder: Embedder, encoder: Encoder, prompts: Sequence[Prompt]) -> Tensor:
    """(n, d), in the order of the prompts."""
    found: list[tuple[list[int], Tensor]] = list(embed_prompts(embedder, encoder, prompts))
    return in_order(found, len(prompts))


def in_order(found: Sequence[tuple[list[int], Tensor]], count: int) -> Tensor:
    """(count, d) from the places and embeddings of all batches."""
    embeddings = torch.full((count, found[0][1].shape[1]), torch.nan)
    for places, batch in found:
        embeddings[places] = batch
    assert not embeddings.isnan().any()  # every place is there
    return embeddings


@torch.no_grad()
def embed_prompts(
    embedder: Embedder, encoder: Encoder, prompts: Sequence[Prompt], done: Collection[int] = ()
) -> Iterator[tuple[list[int], Tensor]]:
    """Places and their embeddings (m, d), batch by batch: prompts of similar length go together, longest first. Skips
    those that are `done`. Ranks take turns, and each gets all embeddings."""
    embedder.train(False)
    ranks, rows = Ranks.current(), _tokens(encoder, prompts)
    left = [place for place in range(len(rows)) if place not in done]
    if not left:
        return
    few = [rows[left[place]] for place in shortest_and_longest([len(rows[place]) for place in left])]
    embedder.pads = ranks.agree(_pads(embedder, few), embedder.device)
    lengths, budget = [len(rows[place]) for place in left], BUDGETS[embedder.device.type == "cuda"]
    groups = alike(lengths, budget) if embedder.pads else [[place] for place in range(len(left))]
    for members, counts in ranks.turns([[[left[i] for i in group] for group in groups]]):
        found = _pass(embedder, [rows[place] for place in members]).cpu()
        for places, batch in ranks.gather((members if counts else [], found)):
            if places:
                _check_finite(places, batch)
                yield places, batch


def _tokens(encoder: Encoder, prompts: Sequence[Prompt]) -> list[Tokens]:
    """The last tokens of each prompt."""
    rows = list[Tokens]()
    for start in range(0, len(prompts), CHUNK):
        texts = [encoder.prompt_text(prompt) for prompt in prompts[start : start + CHUNK]]
        rows += [np.array(ids[-LONGEST:], dtype=np.int32) for ids in encoder.tokenize(texts)]
    return rows


def _pass(embedder: Embedder, rows: Sequence[Tokens]) -> Tensor:
    """(n, d). A row by itself goes as the model would have it."""
    forget_length(embedder.model)  # of the prompts before
    tokens, mask = (each.to(embedder.device) for each in padded(rows, pad_token=0, side="left"))
    found: Tensor = embedder(tokens) if len(rows) == 1 else embedder(tokens, mask)
    return found


def _pads(embedder: Embedder, few: Sequence[Tokens]) -> bool:
    """Whether rows may be padded: not where frequencies depend on the longest row, else tried on a few."""
    if max(len(row) for row in few) > rope_limit(embedder.model):
        return False
    alone = torch.cat([_pass(embedder, [row]) for row in few])
    return padding_is_harmless(embedder.model, _pass(embedder, few), alone, "prompts to embed")


def _check_finite(places: Sequence[int], batch: Tensor) -> None:
    bad = (~batch.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if bad:
        first = min(places[place] for place in bad)
        raise UserError(f"the embedding of prompt {first} is not finite: check the model's weights")


def positions(mask: Tensor) -> Tensor:
    """(n, longest) position ids, counted from each row's first token."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)
