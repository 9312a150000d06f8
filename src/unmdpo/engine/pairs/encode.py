"""From messages to tokens: what a model sees of a comparison, and which tokens are scored.

Training, reference, out-of-fold scoring and length counts share one rule: the prompt is rendered with the generation
prefix, and only the response with its end-of-turn token is scored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase

from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.settings import MAX_LENGTH, ModelSource
from unmdpo.errors import DataError, UserError

Tokens = NDArray[np.int32]
CHUNK = 512  # comparisons rendered and tokenized at a time
NO_LIMIT = 2**31


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of one comparison. An invalid pair is never trained on, but keeps its loader slot."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens
    valid: bool

    @property
    def tokens(self) -> int:
        """Length of the shared layout: prompt, chosen, rejected."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)


@dataclass(frozen=True)
class Encoder:
    """Renders with a tokenizer's chat template and checks the result."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int = MAX_LENGTH
    template_arguments: Mapping[str, Any] | None = None  # such as `date_string`

    @classmethod
    def of(cls, source: ModelSource, max_length: int = NO_LIMIT) -> "Encoder":
        """An encoder with the model's tokenizer and the arguments for its chat template."""
        return cls(load_tokenizer(source), max_length, source.chat_template)

    def __post_init__(self) -> None:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise UserError(
                f"{self.tokenizer.name_or_path or 'the tokenizer'} has no chat template; "
                "use an instruction-tuned model, or set tokenizer.chat_template"
            )

    def render(self, messages: list[dict[str, str]], *, prefix: bool) -> str:
        """The conversation as text; `prefix` adds the start of the assistant's turn."""
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prefix, **(self.template_arguments or {})
            )
        except TemplateError as error:
            raise UserError(
                f"the chat template of {self.tokenizer.name_or_path or 'the tokenizer'} fails: {error}; "
                "set another one with model.template, or its arguments with model.chat_template"
            ) from error
        assert isinstance(text, str)
        return text

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of rendered texts. The template writes the BOS token, so none is added here."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def encode(self, comparisons: Iterable[Comparison]) -> Iterator[EncodedPair]:
        """Encodes every comparison in order, tokenizing in chunks on all cores."""
        chunk: list[Comparison] = []
        for comparison in comparisons:
            chunk.append(comparison)
            if len(chunk) == CHUNK:
                yield from self._encode_chunk(chunk)
                chunk = []
        yield from self._encode_chunk(chunk)

    def _encode_chunk(self, comparisons: Sequence[Comparison]) -> Iterator[EncodedPair]:
        texts = []
        for comparison in comparisons:
            messages = as_dicts(comparison.prompt)
            texts.append(self.render(messages, prefix=True))
            for response in (comparison.chosen, comparison.rejected):
                answered = [*messages, {"role": "assistant", "content": response}]
                texts.append(self.render(answered, prefix=False))
        tokens = iter(self.tokenize(texts)) if texts else iter(())
        for comparison in comparisons:
            prompt, chosen, rejected = next(tokens), next(tokens), next(tokens)
            yield self._pair(comparison, prompt, chosen, rejected)

    def _pair(self, comparison: Comparison, prompt: list[int], chosen: list[int], rejected: list[int]) -> EncodedPair:
        responses = []
        for name, whole in (("chosen", chosen), ("rejected", rejected)):
            if whole[: len(prompt)] != prompt:
                raise DataError(
                    comparison.source,
                    f"the prompt's tokens are not a prefix of the tokens of prompt and {name}: the chat template or "
                    "the tokenizer merges them",
                )
            responses.append(self._scored(whole[len(prompt) :]))
        longest = len(prompt) + max(map(len, responses))
        return EncodedPair(
            prompt=np.array(prompt, dtype=np.int32),
            chosen=np.array(responses[0], dtype=np.int32),
            rejected=np.array(responses[1], dtype=np.int32),
            valid=longest <= self.max_length and all(responses),
        )

    def _scored(self, suffix: list[int]) -> list[int]:
        """The response up to and including its end-of-turn token; whatever the template writes after it is dropped."""
        end, after = self._end
        cut = len(suffix) - after
        if end is not None and cut > 0 and suffix[cut - 1] == end:
            return suffix[:cut]
        special = set(self.tokenizer.all_special_ids)
        last = next((i for i in range(len(suffix) - 1, -1, -1) if suffix[i] in special), len(suffix) - 1)
        return suffix[: last + 1]

    @cached_property
    def _end(self) -> tuple[int | None, int]:
        """The token that ends the assistant's turn, and how many the template writes after it: the first token after
        a response that is a token of its own, special or not. Such tokens never merge with the text around them."""
        response = "unmdpo"
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": response}]
        (tail,) = self.tokenize([self.render(turns, prefix=False).rpartition(response)[2]])
        own = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        place = next((i for i, token in enumerate(tail) if token in own), None)
        return (None, 0) if place is None else (tail[place], len(tail) - place - 1)


def as_dicts(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in prompt]


def longest(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n,) tokens of each pair's longer sequence, from (n, 3)."""
    tokens: NDArray[np.int32] = lengths[:, 0] + lengths[:, 1:].max(axis=1, initial=0)
    return tokens


@dataclass(frozen=True)
class EncodedPairs:
    """All encoded pairs in flat arrays: small in memory, and saved without pickle."""

    tokens: Tokens  # all token ids, pair after pair: prompt, chosen, rejected
    lengths: NDArray[np.int32]  # (n, 3)
    valid: NDArray[np.bool_]  # (n,)

    @classmethod
    def of(cls, pairs: Iterable[EncodedPair]) -> "EncodedPairs":
        parts, lengths, valid = [], [], []
        for pair in pairs:
            parts += [pair.prompt, pair.chosen, pair.rejected]
            lengths.append([len(pair.prompt), len(pair.chosen), len(pair.rejected)])
            valid.append(pair.valid)
        return cls(
            np.concatenate(parts) if parts else np.empty(0, dtype=np.int32),
            np.array(lengths, dtype=np.int32).reshape(-1, 3),
            np.array(valid, dtype=np.bool_),
        )

    def __len__(self) -> int:
        return len(self.valid)

    def save(self, path: Path) -> None:
        """Saves as safetensors; a dataset is tokenized once for all runs that share it."""
        save_file({name: np.ascontiguousarray(array) for name, array in self._arrays().items()}, path)

    @classmethod
    def load(cls, path: Path) -> "EncodedPairs":
        return cls(**load_file(path))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {"tokens": self.tokens, "lengths": self.lengths, "valid": self.valid}

    def within(self, most: int) -> int:
        """How many pairs have sequences of at most this many tokens."""
        return int((longest(self.lengths) <= most).sum())

    @property
    def valid_lengths(self) -> NDArray[np.int32]:
        """(m, 3) lengths of the valid pairs."""
        lengths: NDArray[np.int32] = self.lengths[self.valid]
        return lengths

    @property
    def valid_tokens(self) -> int:
        """Total tokens of the valid pairs, each prompt counted once."""
        return int(self.valid_lengths.sum())

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(n,) where each pair's tokens begin."""
        totals = self.lengths.sum(axis=1, dtype=np.int64)
        starts: NDArray[np.int64] = np.cumsum(totals) - totals
        return starts

    def pair(self, index: int) -> EncodedPair:
        start = int(self.starts[index])
        a, b, c = (int(length) for length in self.lengths[index])
        tokens = self.tokens[start : start + a + b + c]
        return EncodedPair(tokens[:a], tokens[a : a + b], tokens[a + b :], bool(self.valid[index]))

    def select(self, indices: Iterable[int]) -> list[EncodedPair]:
        return [self.pair(i) for i in indices]
