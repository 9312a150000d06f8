"""Responses to prompts, greedy or drawn, in batches of similar length, reproducible.

Batches are always laid out from all prompts, so a resumed run computes exactly what an uninterrupted one would: the
last bits of a response can depend on the padding of its neighbors.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel

from unmdpo.core.errors import UserError
from unmdpo.data.identity import Prompt
from unmdpo.engine.cost import available, writing_tokens
from unmdpo.engine.inference.decode import GREEDY, can_decode, decode
from unmdpo.engine.inference.padding import of_one_length, padding_is_harmless, shortest_and_longest
from unmdpo.engine.inference.sampling import Drawing, Picker, seeds_of, uniform_numbers
from unmdpo.engine.models import longest_input
from unmdpo.engine.pairs.padding import alike, padded
from unmdpo.engine.pairs.rope import forget_length, rope_limit
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import MAX_NEW_TOKENS, Sampling
from unmdpo.engine.text.encode import Encoder


@dataclass(frozen=True)
class Generation:
    """One response. `prompt` is the prompt's index in the panel."""

    prompt: int
    text: str
    tokens: int
    finished: bool  # stopped at an end token, not at the limit

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class GenerationSettings:
    max_new_tokens: int = MAX_NEW_TOKENS
    token_budget: int | None = None  # per batch: prompts, responses and padding. None: a default for the device
    sampling: Sampling | None = None  # None: greedy


class Generator:
    def __init__(self, model: PreTrainedModel, encoder: Encoder, settings: GenerationSettings | None = None) -> None:
        self.model, self.encoder = model, encoder
        model.train(False)
        self.settings, self.ranks = settings or GenerationSettings(), Ranks.current()
        self.budget = self.ranks.share(self.settings.token_budget or default_budget(model))
        self.ends = self._end_tokens()
        self.can_decode = self.ranks.world == 1 and can_decode(model)

    def batches(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Groups prompts of similar length, longest first, each batch within the budget."""
        self.rows = self.encoder.tokenize([self.encoder.prompt_text(p) for p in prompts])
        self._check_lengths()
        sampling = self.settings.sampling
        self.seeds = [] if sampling is None else seeds_of(self.rows, sampling.seed)
        lengths = [len(row) + self.settings.max_new_tokens for row in self.rows]
        pads, room = self._pads(lengths), self._context or max(lengths, default=0)
        # a long prompt leaves less room for its answer, and must not take it from those beside it
        crowded, free = ([i for i, length in enumerate(lengths) if (length > room) == over] for over in (True, False))
        groups = [(crowded, of_one_length), (free, alike if pads else of_one_length)]
        return [
            [places[i] for i in members]
            for places, group in groups
            for members in group([lengths[i] for i in places], self.budget)
        ]

    def _pads(self, lengths: Sequence[int]) -> bool:
        """Whether rows may be padded: tried on a few, and not where frequencies depend on the longest row."""
        if len(set(lengths)) < 2:
            return True
        if max(lengths) > rope_limit(self.model):
            return False
        few = [self.rows[place] for place in shortest_and_longest(lengths)]
        alone = torch.cat([self._first_logits([row]) for row in few])
        harmless = padding_is_harmless(self.model, self._first_logits(few), alone, "prompts to answer")
        return self.ranks.agree(harmless, self.model.device)

    @torch.no_grad()
    def _first_logits(self, rows: Sequence[list[int]]) -> Tensor:
        """(n, v) for the first token of each response."""
        tokens, mask = (each.to(self.model.device) for each in padded(rows, self._pad, "left"))
        settings = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=1, do_sample=False, pad_token_id=self._pad, output_logits=True, return_dict_in_generate=True
        )
        with _plain_generation(self.model):
            made = self.model.generate(input_ids=tokens, attention_mask=mask, generation_config=settings)  # type: ignore[operator]
        logits: Tensor = made.logits[0]
        return logits.float()

    def _check_lengths(self) -> None:
        for place, row in enumerate(self.rows):
            if self._context is not None and len(row) >= self._context:
                raise UserError(f"prompt {place} has {len(row)} tokens, but the model takes {self._context}")

    @property
    def _context(self) -> int | None:
        return longest_input(self.model.config)

    def generate(self, prompts: Sequence[Prompt], done: Collection[int] = ()) -> Iterator[list[Generation]]:
        """Yields one list per batch, skipping the prompts in `done`. Ranks take turns, and each gets all responses."""
        batches = [[place for place in members if place not in done] for members in self.batches(prompts)]
        for members, counts in self.ranks.turns([[left for left in batches if left]]):
            made = self._batch(members)
            yield from (batch for batch in self.ranks.gather(made if counts else []) if batch)

    @torch.no_grad()
    def _batch(self, members: list[int]) -> list[Generation]:
        tokens, mask = padded([self.rows[i] for i in members], self._pad, "left")
        limit = self._limit(tokens)
        forget_length(self.model)  # of other batches
        pick = self._picker(members, limit)
        if self.can_decode:
            written = decode(self.model, tokens, mask, limit, self.ends, self._pad, pick)
        else:
            written = self._generate_with_transformers(tokens, mask, limit, pick)
        return [self._generation(place, row) for place, row in zip(members, written.tolist(), strict=True)]

    def _picker(self, members: list[int], limit: int) -> Picker:
        if self.settings.sampling is None:
            return GREEDY
        uniform = uniform_numbers([self.seeds[i] for i in members], self.settings.max_new_tokens)[:, :limit]
        return Picker(self.settings.sampling, uniform.to(self.model.device))

    def _generate_with_transformers(self, tokens: Tensor, mask: Tensor, limit: int, pick: Picker) -> Tensor:
        """(n, at most max_new_tokens), for models whose cache is of another kind: sliding windows, states."""
        settings = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=limit, do_sample=False, pad_token_id=self._pad, eos_token_id=sorted(self.ends)
        )
        drawing = [] if self.settings.sampling is None else [Drawing(pick, tokens.shape[1])]
        tokens, mask = tokens.to(self.model.device), mask.to(self.model.device)
        with _plain_generation(self.model):
            whole = self.model.generate(
                input_ids=tokens,
                attention_mask=mask,
                generation_config=settings,
                synced_gpus=self.ranks.world > 1,
                logits_processor=LogitsProcessorList(drawing),
            )  # type: ignore[operator]
        written: Tensor = whole[:, tokens.shape[1] :]
        return written

    def _limit(self, tokens: Tensor) -> int:
        """The most tokens that a batch may write within the model's context."""
        room = self._context - tokens.shape[1] if self._context is not None else self.settings.max_new_tokens
        return min(self.settings.max_new_tokens, room)

    def _generation(self, place: int, row: list[int]) -> Generation:
        end = next((i for i, token in enumerate(row) if token in self.ends), None)
        text = self.encoder.tokenizer.decode(row[:end], skip_special_tokens=True)
        assert isinstance(text, str)
        return Generation(place, text, len(row) if end is None else end + 1, finished=end is not None)

    def _end_tokens(self) -> set[int]:
        """Every token that the model, the tokenizer or the chat template treats as an end."""
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        listed = configured if isinstance(configured, list) else [configured]
        own = [self.encoder.tokenizer.eos_token_id, self.encoder.end_of_turn]
        return {token for token in [*listed, *own] if token is not None}

    @property
    def _pad(self) -> int:
        pad = self.encoder.tokenizer.pad_token_id
        return pad if isinstance(pad, int) else 0


def default_budget(model: PreTrainedModel) -> int:
    """Tokens per batch. It depends on the kind of GPU but not on what else runs there: answers can be repeated, and a
    neighbor that leaves little memory makes them fail and be tried again, not trickle."""
    if model.device.type != "cuda":
        return 32_768
    return writing_tokens(model, available(model.device), token_bytes(model))


@torch.no_grad()
def token_bytes(model: PreTrainedModel) -> int:
    """Bytes the model caches per token, measured on one token."""
    seen = model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=True)
    layers = getattr(getattr(seen, "past_key_values", None), "layers", [])
    kept = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    return max(1, sum(tensor.nbytes for tensor in kept if isinstance(tensor, Tensor)))


@contextlib.contextmanager
def _plain_generation(model: PreTrainedModel) -> Iterator[None]:
    """Sets the model's own generation settings aside. Transformers would fill in missing ones from them, and greedy
    should mean greedy, without penalties or beams that happen to be in the model's folder."""
    own = model.generation_config
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        model.generation_config = own
