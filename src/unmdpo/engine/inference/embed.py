"""Prompt embeddings from a frozen model: the input of a prompt scale ("Feature construction").

An embedding is the final hidden state, after the last norm, at the last token of the rendered prompt. Prompts are
padded and truncated on the left.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from unmdpo.data.identity import Prompt
from unmdpo.engine.models import body
from unmdpo.engine.pairs.encode import Encoder, as_dicts
from unmdpo.engine.pairs.padding import padded
from unmdpo.errors import UserError

LONGEST, BATCH = 2048, 32


@torch.no_grad()
def embed_prompts(
    model: PreTrainedModel, encoder: Encoder, prompts: Sequence[Prompt], start: int = 0
) -> Iterator[Tensor]:
    """(≤32, d) float32 for each batch of prompts, in order; `start` skips prompts that are already embedded."""
    model.train(False)
    for first in range(start, len(prompts), BATCH):
        texts = [encoder.render(as_dicts(p), prefix=True) for p in prompts[first : first + BATCH]]
        rows = [ids[-LONGEST:] for ids in encoder.tokenize(texts)]
        tokens, mask = padded(rows, pad_token=0, side="left")
        hidden = body(model)(
            input_ids=tokens.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=positions(mask).to(model.device),
            use_cache=False,
        ).last_hidden_state
        embeddings = hidden[:, -1].float().cpu()
        if not embeddings.isfinite().all():
            bad = first + int((~embeddings.isfinite().all(dim=1)).nonzero()[0])
            raise UserError(f"the embedding of prompt {bad} is not finite: check the model's weights")
        yield embeddings


def positions(mask: Tensor) -> Tensor:
    """(n, longest) position ids, counted from each row's first token."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)
