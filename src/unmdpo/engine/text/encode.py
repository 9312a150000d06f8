"""From messages to tokens: what a model sees of a comparison, and which tokens are scored.

Training, reference, out-of-fold scoring and length counts share one rule: the prompt is rendered with the generation
prefix, and only the response with its end-of-turn token is scored. The prompt's tokens are always those that a policy
answers: a response that would merge with them is tokenized by itself.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase

from unmdpo.core.errors import DataError, UserError
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.settings import MAX_LENGTH, ModelSource
from unmdpo.engine.text.boundary import Joint
from unmdpo.engine.text.template import ADAPTED, TODAY, ChatTemplate
from unmdpo.engine.text.tokenize import Tokenize, batch_tokenizer

Tokens = NDArray[np.int32]
CHUNK = 512  # comparisons rendered and tokenized at a time
NO_LIMIT = 2**31
APART, REBUILT = "apart", "rebuilt"
REMARKS = {
    APART: "responses begin inside a token: tokenized apart",
    REBUILT: "responses follow their prompts unchanged: the chat template would drop or move a part of the text",
    **ADAPTED,
}


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
    """Renders with a tokenizer's chat template and joins prompts and responses, counting what was out of the ordinary.

    `counts` holds the responses tokenized apart from their prompt (`apart`), those that the template itself would have
    altered or put elsewhere (`rebuilt`), and the prompts that were adapted to it.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int = MAX_LENGTH
    template_arguments: Mapping[str, Any] | None = None  # such as `date_string`
    counts: Counter[str] = field(default_factory=Counter, compare=False)

    @classmethod
    def of(cls, source: ModelSource, max_length: int = NO_LIMIT) -> "Encoder":
        """An encoder with the model's tokenizer and the arguments for its chat template."""
        return cls(load_tokenizer(source), max_length, source.chat_template)

    def __post_init__(self) -> None:
        self.template  # noqa: B018 - raises if there is none

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer, self.template_arguments)

    def prompt_text(self, prompt: Prompt) -> str:
        """What the model sees before it answers."""
        return self.template.render(self.template.messages(prompt), prefix=True)

    def answered_text(self, prompt: Prompt, response: str) -> str:
        """The whole conversation, as the template writes it."""
        turns = [*self.template.messages(prompt), {"role": "assistant", "content": response}]
        return self.template.render(turns, prefix=False)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of rendered texts. The template writes the BOS token, so none is added here."""
        return self._tokenize(texts)

    @cached_property
    def _tokenize(self) -> Tokenize:
        return batch_tokenizer(self.tokenizer)

    def encode(self, comparisons: Iterable[Comparison]) -> Iterator[EncodedPair]:
        """Encodes every comparison in order. The tokenizer works on all cores, and while it does, the next chunk is
        rendered and the one before is finished."""
        rows = iter(comparisons)
        self._tokenize  # noqa: B018 - settled before threads use it
        with ThreadPoolExecutor(1) as tokenizing:
            before: tuple[list[tuple[Joint, Joint]], Future[list[list[int]]]] | None = None
            while chunk := list(islice(rows, CHUNK)):
                pairs = [self._joints(comparison) for comparison in chunk]
                texts = [text for one, other in pairs for text in (one.prompt, one.whole, other.whole)]
                after = (pairs, tokenizing.submit(self.tokenize, texts))
                if before is not None:
                    yield from self._finished(before[0], before[1].result())
                before = after
            if before is not None:
                yield from self._finished(before[0], before[1].result())

    def _finished(self, pairs: Sequence[tuple[Joint, Joint]], tokens: list[list[int]]) -> Iterator[EncodedPair]:
        """From the tokens of each pair's prompt, and of the prompt with either response."""
        joints = [joint for pair in pairs for joint in pair]
        prompts = [prompt for prompt in tokens[0::3] for _ in range(2)]
        wholes = [whole for both in zip(tokens[1::3], tokens[2::3], strict=True) for whole in both]
        responses = [self._scored(response) for response in self._responses(joints, prompts, wholes)]
        for prompt, chosen, rejected in zip(tokens[0::3], responses[0::2], responses[1::2], strict=True):
            yield EncodedPair(
                prompt=np.array(prompt, dtype=np.int32),
                chosen=np.array(chosen, dtype=np.int32),
                rejected=np.array(rejected, dtype=np.int32),
                valid=len(prompt) + max(len(chosen), len(rejected)) <= self.max_length and bool(chosen and rejected),
            )

    def _joints(self, comparison: Comparison) -> tuple[Joint, Joint]:
        """The prompt with either response."""
        template, messages = self.template, self.template.messages(comparison.prompt)
        self.counts.update(template.way(comparison.prompt))
        try:
            prompt = template.render(messages, prefix=True)
            chosen, rejected = (
                template.render([*messages, {"role": "assistant", "content": said}], prefix=False)
                for said in (comparison.chosen, comparison.rejected)
            )
        except UserError as error:
            raise DataError(comparison.source, str(error)) from error
        return (
            Joint.of(prompt, chosen, comparison.chosen, template.frame),
            Joint.of(prompt, rejected, comparison.rejected, template.frame),
        )

    def _responses(
        self, joints: Sequence[Joint], prompts: list[list[int]], wholes: list[list[int]]
    ) -> list[list[int]]:
        """The tokens after each prompt. Where the tokens of prompt and response together begin with the prompt's,
        they are the rest; where they do not, the response is tokenized apart, as a policy would write it after those
        of the prompt."""
        found = [_after(prompt, whole) for prompt, whole in zip(prompts, wholes, strict=True)]
        apart = [place for place, rest in enumerate(found) if rest is None]
        self.counts.update({APART: len(apart), REBUILT: sum(joint.rebuilt for joint in joints)})
        alone = self._alone(
            prompts=[prompts[place] for place in apart],
            tails=[joints[place].tail for place in apart],
            wanted=[self._decoded(wholes[place]) for place in apart],
        )
        return [next(alone) if rest is None else rest for rest in found]

    def _alone(self, prompts: list[list[int]], tails: list[str], wanted: list[str]) -> Iterator[list[int]]:
        """Texts tokenized by themselves, such that they read on from their prompts without another space: tokenizers
        with a dummy prefix write one at the start of every text, but not after a line break."""
        if not tails:
            return
        after_line = self.tokenize(["\n", *("\n" + tail for tail in tails)])
        rest = [_after(after_line[0], tokens) for tokens in after_line[1:]]
        for prompt, plain, other, text in zip(prompts, self.tokenize(tails), rest, wanted, strict=True):
            fits = other is None or self._decoded(prompt + plain) == text or self._decoded(prompt + other) != text
            yield plain if fits or other is None else other

    def _decoded(self, tokens: list[int]) -> str:
        text = self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def remarks(self) -> list[str]:
        """What was out of the ordinary so far, in words."""
        remarks = [f"{self.counts[what]:,} {words}" for what, words in REMARKS.items() if self.counts[what]]
        before = self.template.frame.before
        if before.strip():
            remarks.append(
                f"the chat template writes {before!r} before every response, and it is scored with it; "
                "model.chat_template (such as enable_thinking: false) may change that"
            )
        if self.template.writes_today:
            remarks.append(
                f"the chat template writes the day's date: it is {TODAY:%d %b %Y} here, whenever this runs; "
                "model.chat_template.date_string may change it"
            )
        return remarks

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
        (tail,) = self.tokenize([self.template.frame.after])
        own = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        place = next((i for i, token in enumerate(tail) if token in own), None)
        return (None, 0) if place is None else (tail[place], len(tail) - place - 1)


def _after(start: list[int], tokens: list[int]) -> list[int] | None:
    """The rest of `tokens`, if they begin with `start`."""
    return tokens[len(start) :] if tokens[: len(start)] == start else None


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

    @cached_property
    def digest(self) -> str:
        """Of all tokens, and where they belong."""
        found = hashlib.sha256()
        for array in self._arrays().values():
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

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
