"""Greedy decoding over a cache of fixed size; on a GPU each token is one replay of a recorded graph.

Measured by `benchmarks.generate` beside the engine's own way. Without a graph, hundreds of small kernels are
started from Python for every token, and a small model waits for Python.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache

from unmdpo.engine.embed import positions

LOOK = 16  # steps between two looks at whether everybody has ended


class StaticDecoding:
    """One batch of left-padded prompts, decoded to the end."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokens: Tensor,
        mask: Tensor,
        new_tokens: int,
        ends: Collection[int],
        pad: int,
    ) -> None:
        """`tokens` and `mask` are (n, p)."""
        count, prompt = tokens.shape
        self.model, self.device, self.pad, self.new_tokens = model, model.device, pad, new_tokens
        self.cache = StaticCache(config=model.config, max_cache_len=prompt + new_tokens)
        self.ends = torch.tensor(sorted(ends), device=self.device)
        self.written = torch.full((count, new_tokens), pad, device=self.device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=self.device)
        self.step = torch.zeros(1, dtype=torch.long, device=self.device)
        self.mask = torch.zeros(count, 1, 1, prompt + new_tokens, dtype=torch.bool, device=self.device)
        self.mask[:, 0, 0, :prompt] = mask.bool()
        self.prompt = prompt
        self._read(tokens, mask)

    def _read(self, tokens: Tensor, mask: Tensor) -> None:
        """The prompts, at once; their last logits give the first token."""
        whole = self.mask.expand(-1, 1, self.prompt, -1).clone()  # (n, 1, p, total)
        whole[..., : self.prompt] &= torch.ones(
            self.prompt, self.prompt, dtype=torch.bool, device=self.device
        ).tril()
        diagonal = torch.arange(self.prompt, device=self.device)
        whole[:, :, diagonal, diagonal] = True  # padding looks at itself: no row may see nothing
        place = positions(mask).to(self.device)
        logits = self.model(
            input_ids=tokens, attention_mask=whole, position_ids=place, past_key_values=self.cache,
            use_cache=True, logits_to_keep=1,
        ).logits  # fmt: skip
        self.place = place[:, -1:] + 1
        self.token = logits[:, -1].argmax(dim=-1, keepdim=True)
        self._note()

    def _note(self) -> None:
        """Writes the token at hand, unless its row has ended."""
        token = torch.where(self.ended[:, None], self.pad, self.token)
        self.written.index_copy_(1, self.step, token)
        self.ended |= torch.isin(token[:, 0], self.ends) & ~self.ended
        self.step.add_(1)

    def _advance(self) -> None:
        """One token more, in place throughout, so that a graph can be made of it."""
        self.mask.index_fill_(3, self.prompt + self.step - 1, True)
        logits = self.model(
            input_ids=self.token, attention_mask=self.mask, position_ids=self.place,
            past_key_values=self.cache, use_cache=True, logits_to_keep=1,
        ).logits  # fmt: skip
        self.token.copy_(logits[:, -1].argmax(dim=-1, keepdim=True))
        self.place.add_(1)
        self._note()

    def run(self) -> Tensor:
        """(n, new tokens), padded after each row's end."""
        advance = self._recorded() if self.device.type == "cuda" else self._advance
        for step in range(1, self.new_tokens):
            if step % LOOK == 0 and bool(self.ended.all()):
                break
            advance()
        return self.written

    def _recorded(self) -> Callable[[], None]:
        """The step as a graph. Warming up runs it for real, so everything it changed is put back."""
        changed = (self.mask, self.token, self.place, self.written, self.ended, self.step)
        kept = [value.clone() for value in changed]
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._advance()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        for value, before in zip(changed, kept, strict=True):
            value.copy_(before)
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.prompt)  # type: ignore[union-attr]
        return graph.replay


@torch.no_grad()
def decode(
    model: PreTrainedModel, tokens: Tensor, mask: Tensor, new_tokens: int, ends: Collection[int], pad: int
) -> Tensor:
    return StaticDecoding(model, tokens, mask, new_tokens, ends, pad).run()
