"""Decoding of one batch, fast enough that generating answers is a small part of an evaluation.

Four things make it fast, and none of them changes what is computed. Space for keys and values is allocated for a whole
stretch of tokens, so nothing is copied per token. Heads that share keys read them once. Rows that have ended are
dropped at the end of a stretch. On a GPU, each token is one replay of a recorded graph, because launching hundreds of
small kernels from Python would leave the GPU waiting.
"""

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from unmdpo.engine.inference.embed import positions
from unmdpo.engine.inference.sampling import Picker

STRETCH = 128  # tokens per allocation and per recorded graph
LOOK = 16  # tokens between checks for whether every row has ended
GROUPED = "unmdpo-grouped"
GREEDY = Picker()


def can_decode(model: torch.nn.Module) -> bool:
    """Whether the model is on one device, lets us choose its attention, and never changes cached keys."""
    if not isinstance(model, PreTrainedModel) or len({weight.device for weight in model.parameters()}) > 1:
        return False  # wrapped, or split
    if not model._supports_attention_backend or model.config._attn_implementation != "sdpa":
        return False
    rope = str(getattr(model.config.get_text_config(), "rope_parameters", ""))
    changing = "longrope" in rope or "dynamic" in rope  # with length, which would make old keys wrong
    return _has_plain_cache(model) and not changing


def _has_plain_cache(model: PreTrainedModel) -> bool:
    """Whether every layer caches all keys and values: no sliding windows, no recurrent states."""
    try:
        layers = DynamicCache(config=model.config).layers
    except AttributeError:  # no cache can be built from this configuration
        return False
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    tokens: Tensor,
    mask: Tensor,
    new_tokens: int,
    ends: Collection[int],
    filler: int,
    pick: Picker = GREEDY,
) -> Tensor:
    """(n, new tokens), with `filler` after a row's end. `tokens` and `mask` are (n, p), left-padded."""
    written = torch.full((len(tokens), new_tokens), filler, device=model.device)
    end_tokens = torch.tensor(sorted(ends), device=model.device)
    with _attention(model, GROUPED):
        rows = _read(model, tokens.to(model.device), mask.to(model.device), pick)
        done = 0
        while done < new_tokens and len(rows.number):
            steps = min(STRETCH, new_tokens - done)
            stretch = Stretch(model, rows, steps, end_tokens, filler, pick.rows(rows.number, done + 1, steps))
            stretch.run(last=done + stretch.steps == new_tokens)
            written[rows.number, done : done + stretch.steps] = stretch.written
            done += stretch.steps
            rows = stretch.unfinished()
    return written


@dataclass(frozen=True)
class OpenRows:
    """The rows that have not ended, before `token` is written."""

    number: Tensor  # (n,) their positions in the batch
    token: Tensor  # (n, 1)
    place: Tensor  # (n, 1) position of `token`
    seen: Tensor  # (n, columns) whether a column holds a token of the row
    layers: list[tuple[Tensor, Tensor]]  # keys and values (n, heads, columns, d); the next stretch empties this list


def _read(model: PreTrainedModel, tokens: Tensor, mask: Tensor, pick: Picker) -> OpenRows:
    """Reads all prompts in one pass."""
    place = positions(mask)
    cache = DynamicCache(config=model.config)
    logits = model(
        input_ids=tokens, attention_mask=mask, position_ids=place, past_key_values=cache, use_cache=True,
        logits_to_keep=1,
    ).logits  # fmt: skip
    layers: list[Any] = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr]
    number = torch.arange(len(tokens), device=tokens.device)
    first = pick(logits[:, -1], torch.zeros(1, dtype=torch.long, device=tokens.device))
    return OpenRows(number, first, place[:, -1:] + 1, mask.bool(), layers)


class Slots(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values in preallocated columns; `column` is the next one to fill."""

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.column, self.is_initialized = keys, values, column, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.column, key_states)
        self.values.index_copy_(2, self.column, value_states)
        return self.keys, self.values


class Stretch:
    """Decodes a few more tokens for each row. Steps change tensors in place, so they can be recorded as a graph."""

    def __init__(
        self, model: PreTrainedModel, rows: OpenRows, steps: int, ends: Tensor, filler: int, pick: Picker
    ) -> None:
        self.model, self.rows, self.steps, self.ends, self.filler, self.pick = model, rows, steps, ends, filler, pick
        columns = rows.seen.shape[1]
        width = -(-(columns + steps) // 8) * 8  # GPU kernels want multiples of eight
        count, device = len(rows.number), rows.token.device
        self.column = torch.tensor([columns], device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.token, self.place = rows.token.clone(), rows.place.clone()
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)
        self.written = torch.full((count, steps), filler, device=device)
        dtype = rows.layers[0][0].dtype
        self.mask = torch.full((count, 1, 1, width), torch.finfo(dtype).min, dtype=dtype, device=device)
        self.mask[:, 0, 0, :columns].masked_fill_(rows.seen, 0)
        self.slots = [Slots(k, v, self.column) for k, v in _widened(rows.layers, width)]

    def _write_token(self) -> None:
        """Writes the current token, unless its row has ended."""
        token = torch.where(self.ended[:, None], self.filler, self.token)
        self.written.index_copy_(1, self.step, token)
        self.ended |= (token == self.ends).any(dim=1)

    def _find_next(self) -> None:
        """Finds the next token. Counters move last, so an interrupted step can be repeated."""
        self.mask.index_fill_(3, self.column, 0)
        logits = self.model(
            input_ids=self.token, attention_mask=self.mask, position_ids=self.place,
            past_key_values=Cache(layers=list(self.slots)), use_cache=True, logits_to_keep=1,
        ).logits  # fmt: skip
        self.token.copy_(self.pick(logits[:, -1], self.step))
        for counter in (self.place, self.column, self.step):
            counter.add_(1)

    def _advance(self) -> None:
        self._write_token()
        self._find_next()

    def run(self, *, last: bool) -> None:
        """`last`: no tokens follow these, so the model does not need to read the final one."""
        forwards = self.steps - last
        if forwards > 0:
            self._write_token()
            recordable = _runs_without_host(self._find_next, self.token.device) and forwards > LOOK
            advance = _recorded(self._advance, self.token.device) if recordable else self._advance
            for step in range(1, forwards):
                if step % LOOK == 0 and bool(self.ended.all()):
                    return
                advance()
        if last:
            self._write_token()

    def unfinished(self) -> OpenRows:
        """The rows that have not ended, with their keys and values so far."""
        left = (~self.ended).nonzero()[:, 0]
        columns = self.rows.seen.shape[1] + self.steps
        layers = []
        while self.slots:  # one at a time, to save memory, as in `_widened`
            layer = self.slots.pop(0)
            layers.append((layer.keys[left, :, :columns], layer.values[left, :, :columns]))
        seen = self.mask[left, 0, 0, :columns] == 0
        return OpenRows(self.rows.number[left], self.token[left], self.place[left], seen, layers)


def _widened(layers: list[tuple[Tensor, Tensor]], width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Each layer with room for more columns. The old one is released first, since two copies of all may not fit."""
    while layers:
        keys, values = layers.pop(0)
        room = (0, 0, 0, width - keys.shape[2])
        yield pad(keys, room), pad(values, room)  # (n, heads, width, d)


def _runs_without_host(step: Callable[[], None], device: torch.device) -> bool:
    """Runs one step outside a graph, since first calls may do setup, which is not allowed while recording.

    Returns whether the step can be recorded: only on a GPU, and only if it never waits for the host (some mixtures of
    experts do).
    """
    if device.type != "cuda":
        step()
        return False
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")  # a prototype: all it finds is welcome
            torch.cuda.set_sync_debug_mode("error")
        step()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        torch.cuda.set_sync_debug_mode(before)
        step()
        return False
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return True


def _recorded(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=_recording_stream(device)):
        step()
    return graph.replay


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """For a single token, treats heads that share keys as rows of one query, so keys are not repeated.

    `query` is (n, heads, tokens, d), `key` and `value` (n, shared heads, columns, d).
    """
    count, heads, tokens, size = query.shape
    per_head = attention_mask is not None and attention_mask.shape[1] > 1  # heads see different keys
    if tokens > 1 or per_head or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows = query.reshape(count, key.shape[1], -1, size)
    attended = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    return attended.reshape(count, 1, heads, -1), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)


@contextlib.contextmanager
def _attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    own = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(own)
