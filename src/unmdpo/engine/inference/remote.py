"""Answers from an OpenAI-compatible server: a policy that is served there, or someone else's model."""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from unmdpo.core.errors import UserError
from unmdpo.data.identity import Prompt, as_chat
from unmdpo.engine.inference.endpoints import Endpoint, as_they_arrive, explain_errors, open_client, shown
from unmdpo.engine.inference.generate import Generation
from unmdpo.engine.inference.sampling import seeds_of
from unmdpo.engine.settings import Sampling

if TYPE_CHECKING:
    from openai import OpenAI

WORKERS = 32  # answers at once: servers batch them
LONGEST = 200  # characters of a token
RETRIES = 6  # of an answer, with growing pauses: servers are busy, restarted, or limit their rate


class RemoteGenerator:
    """Answers to prompts, greedy or drawn; the server has its own tokenizer and chat template."""

    def __init__(
        self,
        server: Endpoint,
        tokenizer: PreTrainedTokenizerBase,
        max_new_tokens: int,
        sampling: Sampling | None = None,
    ) -> None:
        self.server, self.tokenizer, self.max_new_tokens, self.sampling = server, tokenizer, max_new_tokens, sampling

    def generate(self, prompts: Sequence[Prompt], done: Collection[int] = ()) -> Iterator[list[Generation]]:
        """Yields answers as they arrive, skipping the prompts in `done`. If one fails, those under way are kept."""
        left = [place for place in range(len(prompts)) if place not in done]
        self.seeds = [] if self.sampling is None else seeds_of(prompts, self.sampling.seed)
        with open_client(self.server, retries=RETRIES) as client:
            arriving = as_they_arrive(left, lambda place: self._answer(client, place, prompts[place]), WORKERS)
            for _, generation in arriving:
                yield [generation]

    def _answer(self, client: "OpenAI", place: int, prompt: Prompt) -> Generation:
        messages, tools = as_chat(prompt)
        more: Any = {"messages": messages} | ({} if tools is None else {"tools": tools})
        advice = (
            f"prompt {place} as '{self.server.model}' (answers so far are kept; the same command asks for the rest)"
        )
        with explain_errors(self.server, self.server.endpoint, advice):
            completion = client.chat.completions.create(
                model=self.server.model, max_tokens=self.max_new_tokens, **self._drawn(place), **more
            )
            choices = getattr(completion, "choices", None)
            text = _said(choices[0].message) if choices else None
            if choices is None or not isinstance(text, str):
                sent = shown(completion, self.server)
                raise UserError(f"{self.server.endpoint} returned an unexpected response: {sent}")
            if len(text) > LONGEST * self.max_new_tokens:
                raise UserError(
                    f"{self.server.endpoint} answered {len(text):,} characters when asked for at most "
                    f"{self.max_new_tokens} tokens"
                )
            return Generation(place, text, self._count(completion, text), choices[0].finish_reason != "length")

    def _drawn(self, place: int) -> dict[str, Any]:
        if self.sampling is None:
            return {"temperature": 0}
        seed = self.seeds[place] % 2**31  # servers that take a seed take a small one
        return {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p, "seed": seed}

    def _count(self, completion: Any, text: str) -> int:
        """Tokens, as the server counts them if it does."""
        counted = getattr(getattr(completion, "usage", None), "completion_tokens", None)
        if isinstance(counted, int) and counted >= 0:
            return counted
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _said(message: Any) -> Any:
    """A text, and the tools that it calls as JSON."""
    calls = [call.model_dump(exclude_none=True) for call in getattr(message, "tool_calls", None) or ()]
    if not calls:
        return message.content
    return "\n".join(part for part in (message.content, json.dumps(calls, ensure_ascii=False)) if part)
