"""From messages to tokens: what a model sees of a comparison, and which tokens are scored.

Training, reference, out-of-fold scoring and length counts share one rule: the prompt is rendered with the generation
prefix, and only the response with its end-of-turn token is scored. The prompt's tokens are always those that a policy
answers: a response that would merge with them is tokenized by itself.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, takewhile
from typing import Any

import numpy as np
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase

from unmdpo.core.errors import DataError, UserError
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.settings import MAX_LENGTH, ModelSource
from unmdpo.engine.text.boundary import Joint
from unmdpo.engine.text.encoded import EncodedPair, Tokens
from unmdpo.engine.text.template import ADAPTED, TODAY, ChatTemplate, Turn, needs_more
from unmdpo.engine.text.tokenize import Tokenize, batch_tokenizer

CHUNK = 512  # comparisons rendered and tokenized at a time
NO_LIMIT = 2**31
APART, REBUILT, UNWRITTEN = "apart", "rebuilt", "unwritten"
NOTHING = Joint("", "", False)  # a response that is not trained on
REMARKS = {
    UNWRITTEN: "comparisons are not trained on: the chat template does not write their tool calls, or changes earlier "
    "turns when others follow; set another one with model.template",
    APART: "responses begin inside a token: tokenized apart",
    REBUILT: "responses follow their prompts unchanged: the chat template would drop or move a part of the text",
    **ADAPTED,
}


@dataclass(frozen=True)
class Encoder:
    """Renders with a tokenizer's chat template and joins prompts and responses, counting what was out of the ordinary.

    `counts` holds the comparisons that the template cannot write (`unwritten`), the responses tokenized apart from
    their prompt (`apart`), those that the template itself would have altered or put elsewhere (`rebuilt`), and the
    prompts that were adapted to it.
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

    def answered_text(self, prompt: Prompt, response: str | Prompt) -> str:
        """The whole conversation, as the template writes it."""
        turns = (Message("assistant", response),) if isinstance(response, str) else response
        messages = [*self.template.messages(prompt), *(turn.to_dict() for turn in turns)]
        return self.template.render(messages, prefix=False)

    def can_write(self, comparison: Comparison) -> bool:
        """Whether the template has words for all that is said, such as calls of tools."""
        turns = [*comparison.prompt, *chain(*comparison.responses)]
        return self.template.writes_calls or not needs_more(tuple(turns))

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
                pairs = [self._within(self._joints(comparison)) for comparison in chunk]
                texts = [text for one, other in pairs for text in (one.prompt, one.whole, other.whole)]
                texts += [joint.whole[:cut] for joint in chain(*pairs) for cut in chain(*joint.spans)]
                after = (pairs, tokenizing.submit(self.tokenize, texts))
                if before is not None:
                    yield from self._finished(before[0], before[1].result())
                before = after
            if before is not None:
                yield from self._finished(before[0], before[1].result())

    def _finished(self, pairs: Sequence[tuple[Joint, Joint]], tokens: list[list[int]]) -> Iterator[EncodedPair]:
        """From the tokens of each pair's prompt, and of the prompt with either response."""
        joints, beginnings = [joint for pair in pairs for joint in pair], iter(tokens[3 * len(pairs) :])
        tokens = tokens[: 3 * len(pairs)]
        prompts = [prompt for prompt in tokens[0::3] for _ in range(2)]
        wholes = [whole for both in zip(tokens[1::3], tokens[2::3], strict=True) for whole in both]
        found = [self._scored(response) for response in self._responses(joints, prompts, wholes)]
        responses = [
            np.array(ids, dtype=np.int32)
            if not joint.spans
            else _marked(ids, self._cuts(joint, ids, prompt, whole, [next(beginnings) for _ in chain(*joint.spans)]))
            for joint, ids, prompt, whole in zip(joints, found, prompts, wholes, strict=True)
        ]
        for prompt, chosen, rejected in zip(tokens[0::3], responses[0::2], responses[1::2], strict=True):
            fits = len(prompt) + max(len(chosen), len(rejected)) <= self.max_length
            scored = bool((chosen >= 0).any() and (rejected >= 0).any())
            self.counts[UNWRITTEN] += not scored and len(chosen) > 0 < len(rejected)
            yield EncodedPair(np.array(prompt, dtype=np.int32), chosen, rejected, valid=fits and scored)

    def _within(self, pair: tuple[Joint, Joint]) -> tuple[Joint, Joint]:
        """Nothing, for texts that are too long whatever their tokens are: megabytes of text would take gigabytes to
        tokenize."""
        return (NOTHING, NOTHING) if max(len(joint.whole) for joint in pair) > self._most_characters else pair

    @cached_property
    def _most_characters(self) -> float:
        """That can fit, if every token is as long as the longest. Tokenizers that make one token of anything that they
        do not know have no such limit."""
        model = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "model", None)
        splits = isinstance(model, BPE) and not model.fuse_unk
        if not splits and not getattr(model, "byte_fallback", False):
            return math.inf
        return self.max_length * max(map(len, self.tokenizer.get_vocab()), default=1)

    def _joints(self, comparison: Comparison) -> tuple[Joint, Joint]:
        """The prompt with either response."""
        template, messages = self.template, self.template.messages(comparison.prompt)
        self.counts.update(template.way(comparison.prompt))
        if comparison.has_turns or needs_more(comparison.prompt):
            made = self._joints_of_turns(comparison, messages)
            self.counts[UNWRITTEN] += made is None
            return (NOTHING, NOTHING) if made is None else made
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

    def _joints_of_turns(self, comparison: Comparison, messages: list[Turn]) -> tuple[Joint, Joint] | None:
        """None if the template cannot write them."""
        chosen, rejected = comparison.responses
        if not self.can_write(comparison):
            return None
        shared = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False)))
        if shared == len(chosen) or shared == len(rejected):  # one goes on where the other ends, or both are the same
            shared = 0

        def render(turns: Prompt, prefix: bool) -> str:
            return self.template.render([*messages, *(turn.to_dict() for turn in turns)], prefix=prefix)

        try:
            prompt = render((), True)
            one, other = (Joint.of_turns(prompt, turns, shared, render) for turns in (chosen, rejected))
        except UserError:  # a template that refuses such turns
            return None
        return None if one is None or other is None else (one, other)

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

    def _cuts(
        self, joint: Joint, response: list[int], prompt: list[int], whole: list[int], beginnings: list[list[int]]
    ) -> list[int]:
        """Where the spans of a response start and end, in its tokens."""
        if whole[: len(prompt)] == prompt:
            return [max(0, _common(whole, start) - len(prompt)) for start in beginnings]
        tails = [joint.whole[len(joint.prompt) : cut] for cut in chain(*joint.spans)]
        return [_common(response, start) for start in self.tokenize(tails)]

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

    @property
    def end_of_turn(self) -> int | None:
        """The token with which the template ends what the assistant says, if that is a single one."""
        return self._end[0]

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


def _common(tokens: list[int], start: list[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(tokens, start, strict=False)))


def _marked(response: list[int], cuts: list[int]) -> Tokens:
    """The response's tokens: as they are from one cut to the next, and marked from there to the one after."""
    tokens = np.array(response, dtype=np.int32)
    scored = np.zeros(len(tokens), dtype=bool)
    for start, end in zip(cuts[0::2], cuts[1::2], strict=True):
        scored[start:end] = True
    return np.where(scored, tokens, ~tokens)
