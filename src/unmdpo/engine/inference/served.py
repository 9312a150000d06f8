"""Answers from an OpenAI-compatible server: a policy that is served there, or someone else's model."""

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from unmdpo.catalog.endpoints import Endpoint
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.endpoint import as_they_arrive, open_client
from unmdpo.engine.inference.generate import Generation
from unmdpo.errors import UserError

if TYPE_CHECKING:
    from openai import OpenAI

WORKERS = 32  # answers at once: servers batch them
RETRIES = 6  # of an answer, with growing pauses: servers are busy, restarted, or limit their rate


class ServedGenerator:
    """Greedy answers to prompts; the server has its own tokenizer and chat template."""

    def __init__(self, server: Endpoint, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int) -> None:
        self.server, self.tokenizer, self.max_new_tokens = server, tokenizer, max_new_tokens

    def generate(self, prompts: Sequence[Prompt], done: Collection[int] = ()) -> Iterator[list[Generation]]:
        """Yields answers as they arrive, skipping the prompts in `done`. If one fails, those under way are kept."""
        left = [place for place in range(len(prompts)) if place not in done]
        with open_client(self.server, retries=RETRIES) as client:
            arriving = as_they_arrive(left, lambda place: self._answer(client, place, prompts[place]), WORKERS)
            for _, generation in arriving:
                yield [generation]

    def _answer(self, client: "OpenAI", place: int, prompt: Prompt) -> Generation:
        from openai import OpenAIError  # noqa: PLC0415 - an extra

        messages: Any = [{"role": message.role, "content": message.content} for message in prompt]
        try:
            completion = client.chat.completions.create(
                model=self.server.model, messages=messages, max_tokens=self.max_new_tokens, temperature=0
            )
        except OpenAIError as error:
            raise UserError(
                f"{self.server.endpoint} did not answer prompt {place} as '{self.server.model}': {error}; answers so "
                "far are kept, and the same command asks for the rest"
            ) from error
        choices = getattr(completion, "choices", None)
        if not choices or choices[0].message.content is None:
            raise UserError(f"{self.server.endpoint} sent something else: {str(completion)[:200]}")
        text = choices[0].message.content
        usage = getattr(completion, "usage", None)
        tokens = usage.completion_tokens if usage is not None else self._count(text)
        return Generation(place, text, tokens, finished=choices[0].finish_reason != "length")

    def _count(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
