"""Pairwise judging by a language model behind any OpenAI-compatible endpoint.

The model sees a candidate's response and the baseline's, in an order drawn for each prompt, and names the better one
with a single label. Its log-probabilities for the two labels give the probability that the candidate is preferred.
That probability is the score; the baseline itself scores one half.
"""

import hashlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unmdpo.core.errors import UserError
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.endpoints import as_they_arrive, explain_errors, open_client, shown
from unmdpo.engine.inference.judge_prompt import prompt_of_judge
from unmdpo.engine.inference.judges import EndpointSettings

if TYPE_CHECKING:
    from openai import OpenAI

ROUNDING = 0.01  # of probabilities that servers send
LEAST_SHARE = 0.05  # least total probability of the two labels for an answer to count
WORKERS = 8  # concurrent questions
ALTERNATIVES = 20  # log-probabilities requested; the usual limit of endpoints


@dataclass(frozen=True)
class Question:
    """A candidate's response and the baseline's, to the same prompt."""

    prompt: Prompt
    prompt_hash: str
    candidate: str
    baseline: str


class PairwiseJudge:
    """`settings.key` names an environment variable, so the secret itself is never part of the settings."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings, self.prompt = settings, prompt_of_judge(settings)

    def answers(self, questions: Sequence[Question], seed: int) -> Generator[tuple[int, float]]:
        """Yields each question's index and the probability that its candidate is preferred, as answers arrive."""
        with open_client(self.settings) as client:
            yield from as_they_arrive(questions, lambda one: self._preference(client, one, seed), WORKERS)

    def _preference(self, client: "OpenAI", asked: Question, seed: int) -> float:
        ahead = candidate_is_first(asked.prompt_hash, seed)
        first, second = (asked.candidate, asked.baseline) if ahead else (asked.baseline, asked.candidate)
        with explain_errors(self.settings, f"the judge at {self.settings.endpoint}"):
            completion = client.chat.completions.create(
                model=self.settings.model,
                messages=self.prompt.ask(asked.prompt, first, second),
                max_tokens=1,
                temperature=0,
                logprobs=True,
                top_logprobs=ALTERNATIVES,
            )
            probability = self.label_probabilities(completion, asked)
        preferred = probability[0] / sum(probability)
        return preferred if ahead else 1.0 - preferred

    def label_probabilities(self, completion: Any, asked: Question) -> list[float]:
        """Of the label of the first response and of the second, summed over spellings such as "A" and " A"."""
        choice = only_choice(completion, self.settings)
        content = choice.logprobs and choice.logprobs.content
        if not content:
            raise UserError(
                f"the judge at {self.settings.endpoint} returns no log-probabilities for its answer; use an endpoint "
                "that does, or set evaluation.judge.logprobs=false"
            )
        probability = [0.0, 0.0]
        for alternative in content[0].top_logprobs or [content[0]]:
            label = alternative.token.strip()
            if label in self.prompt.labels:
                probability[self.prompt.labels.index(label)] += math.exp(alternative.logprob)
        if not sum(probability) <= 1 + ROUNDING:  # nor NaN
            raise ValueError(f"probabilities of {self.prompt.labels} are {probability}")
        if sum(probability) < LEAST_SHARE:
            said = shown(content[0].token, self.settings)
            raise UserError(
                f"the judge at {self.settings.endpoint} answered {said!r} about prompt "
                f"{asked.prompt_hash[:12]}…, neither {' nor '.join(self.prompt.labels)}. If the model thinks before "
                "it answers, serve it with thinking turned off"
            )
        return probability


def only_choice(completion: Any, settings: EndpointSettings) -> Any:
    choices = getattr(completion, "choices", None)
    if not choices:
        sent = shown(completion, settings)
        raise UserError(f"the judge at {settings.endpoint} returned an unexpected response: {sent}")
    return choices[0]


def candidate_is_first(prompt_hash: str, seed: int) -> bool:
    """A fair coin flip per prompt, the same in every run: judges favor a position, so the order is shuffled."""
    return hashlib.sha256(f"{seed}:{prompt_hash}".encode()).digest()[0] % 2 == 0
