"""Pairwise judging by a language model behind any OpenAI-compatible endpoint.

The model sees a candidate's response and the baseline's, in an order drawn for each prompt, and names the better one
with a single label. Its log-probabilities of the two labels give the probability that the candidate is preferred: that
is the score, and the baseline's own is one half.
"""

import hashlib
import math
import os
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unmdpo.catalog.judges import EndpointSettings
from unmdpo.data.identity import Prompt
from unmdpo.errors import UserError

if TYPE_CHECKING:
    from openai import OpenAI

FIRST, SECOND = "A", "B"
LEAST_SHARE = 0.05  # of probability on the two labels together, for an answer to mean something
WORKERS = 8  # questions at once
ALTERNATIVES = 20  # log-probabilities asked for; the endpoints' usual limit
QUESTION = """Here is a conversation, and two responses to its last message.

<conversation>
{conversation}
</conversation>

<response name="A">
{first}
</response>

<response name="B">
{second}
</response>

Which response is better: more helpful, more correct, better at what was asked?
Answer with one letter, A or B."""


@dataclass(frozen=True)
class Question:
    """One candidate's response beside the baseline's."""

    prompt: Prompt
    prompt_hash: str
    candidate: str
    baseline: str


class PairwiseJudge:
    """`settings.key` names an environment variable: a secret is never part of any settings."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings

    def answers(self, questions: Sequence[Question], seed: int) -> Generator[tuple[int, float]]:
        """Each question's place and the probability that its candidate is preferred, as they come in."""
        given_up, problem = threading.Event(), None
        with self._client() as client, ThreadPoolExecutor(WORKERS) as pool:

            def ask(one: Question) -> float | None:
                return None if given_up.is_set() else self._preference(client, one, seed)

            asked = {pool.submit(ask, one): place for place, one in enumerate(questions)}
            try:
                for done in as_completed(asked):
                    if done.exception() is not None:
                        problem = problem or done.exception()
                        given_up.set()  # answers on their way are still taken: they may have been paid for
                    elif (answer := done.result()) is not None:
                        yield asked[done], answer
            finally:
                given_up.set()
        if problem is not None:
            raise problem

    def _client(self) -> "OpenAI":
        try:
            from openai import OpenAI  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UserError("an endpoint's judge needs its client: pip install 'unmdpo[endpoint]'") from error
        # servers on one's own machine ask for no key, and the client for any
        return OpenAI(base_url=self.settings.endpoint, api_key=os.environ.get(self.settings.key) or "none")

    def _preference(self, client: "OpenAI", asked: Question, seed: int) -> float:
        from openai import OpenAIError  # noqa: PLC0415 - an extra

        ahead = candidate_is_first(asked.prompt_hash, seed)
        first, second = (asked.candidate, asked.baseline) if ahead else (asked.baseline, asked.candidate)
        try:
            said = client.chat.completions.create(
                model=self.settings.model,
                messages=[{"role": "user", "content": question_text(asked.prompt, first, second)}],
                max_tokens=1,
                temperature=0,
                logprobs=True,
                top_logprobs=ALTERNATIVES,
            )
        except OpenAIError as error:
            raise UserError(f"the judge at {self.settings.endpoint} did not answer: {error}") from error
        found = self._alternatives(said, asked)
        preferred = found[FIRST] / (found[FIRST] + found[SECOND])
        return preferred if ahead else 1.0 - preferred

    def _alternatives(self, said: Any, asked: Question) -> dict[str, float]:
        """Label → its probability, summed over spellings such as "A" and " A"."""
        choices = getattr(said, "choices", None)
        if not choices:
            raise UserError(f"the judge at {self.settings.endpoint} answered with something else: {str(said)[:200]}")
        content = choices[0].logprobs and choices[0].logprobs.content
        if not content:
            raise UserError(f"the judge at {self.settings.endpoint} gives no log-probabilities of its answer")
        found = {FIRST: 0.0, SECOND: 0.0}
        for alternative in content[0].top_logprobs or [content[0]]:
            label = alternative.token.strip()
            if label in found:
                found[label] += math.exp(alternative.logprob)
        if sum(found.values()) < LEAST_SHARE:
            raise UserError(
                f"the judge at {self.settings.endpoint} answered {content[0].token!r} about prompt "
                f"{asked.prompt_hash[:12]}…, neither A nor B. A model that thinks first must be served "
                "so that it does not"
            )
        return found


def candidate_is_first(prompt_hash: str, seed: int) -> bool:
    """A fair coin for each prompt, the same in every run: judges favour places, so places are shuffled."""
    return hashlib.sha256(f"{seed}:{prompt_hash}".encode()).digest()[0] % 2 == 0


def question_text(prompt: Prompt, first: str, second: str) -> str:
    conversation = "\n\n".join(f"[{message.role}]\n{message.content}" for message in prompt)
    return QUESTION.format(conversation=conversation, first=first, second=second)
