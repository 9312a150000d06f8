"""Pairwise judging by what a language model says, where its endpoint returns no log-probabilities.

Each pair is asked about in both orders, since judges favour a position. The score is the mean of both verdicts: 1 if
the candidate is better, 0 if the baseline is, one half for a tie. The judge may give reasons first, as in MT-Bench.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.endpoints import as_they_arrive, explain_errors, open_client
from unmdpo.engine.inference.judge_prompt import LONG, prompt_of_judge
from unmdpo.engine.inference.judges import EndpointSettings
from unmdpo.engine.inference.pairwise import WORKERS, Question, only_choice

if TYPE_CHECKING:
    from openai import OpenAI

MOST_UNCLEAR = 0.05  # share of the answers without a verdict that is still a judge
EARLY = 20  # answers after which a judge that mostly says nothing is not asked on


class TextJudge:
    """Counts what it costs in `spent`: questions, tokens read and written, and answers without a verdict."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings, self.spent, self._lock = settings, Counter[str](), threading.Lock()
        self.prompt = prompt_of_judge(settings)
        self.expected = 0  # answers that the whole panel takes, also those of earlier attempts
        self._plain = True  # whether the server takes the usual limits

    def answers(self, questions: Sequence[Question], seed: int) -> Generator[tuple[int, float]]:
        """Yields each question's index and the mean of both verdicts, as answers arrive. Nothing is drawn, so `seed`
        does not matter."""
        unsure: list[tuple[int, float]] = []  # yielded last: they only count if they are few
        with open_client(self.settings) as client:
            for place, (score, clear) in as_they_arrive(questions, lambda one: self._preference(client, one), WORKERS):
                if clear:
                    yield place, score
                else:
                    unsure.append((place, score))
        asked, unclear = self.spent["asked"], self.spent["unclear"]
        if unclear > MOST_UNCLEAR * max(asked, self.expected):
            raise self._speechless()
        if unclear:
            warnings.warn(
                f"{unclear} of {asked} answers of the judge had no verdict, and count as ties",
                UnmdpoWarning,
                stacklevel=2,
            )
        yield from unsure

    def _speechless(self) -> UserError:
        return UserError(
            f"the judge at {self.settings.endpoint} gave no verdict in {self.spent['unclear']} of "
            f"{self.spent['asked']} answers: ask another model, or one that may explain itself "
            "(evaluation.judge.reasons: true)"
        )

    def _preference(self, client: "OpenAI", asked: Question) -> tuple[float, bool]:
        """The mean of both verdicts, and whether there were two."""
        ahead = self._ask(client, asked.prompt, asked.candidate, asked.baseline)
        behind = self._ask(client, asked.prompt, asked.baseline, asked.candidate)
        score = ((0.5 if ahead is None else ahead) + 1.0 - (0.5 if behind is None else behind)) / 2
        return score, ahead is not None and behind is not None

    def _ask(self, client: "OpenAI", prompt: Prompt, first: str, second: str) -> float | None:
        with explain_errors(self.settings, f"the judge at {self.settings.endpoint}"):
            completion = self._completion(client, self.prompt.ask(prompt, first, second))
            found = self.prompt.verdict(only_choice(completion, self.settings).message.content or "")
            self._count(completion, found is None)
        if self.spent["asked"] >= EARLY and 2 * self.spent["unclear"] > self.spent["asked"]:
            raise self._speechless()  # the rest would cost as much
        return found

    def _completion(self, client: "OpenAI", messages: Any) -> Any:
        """Some hosted models refuse a temperature, and a limit under its usual name."""
        from openai import BadRequestError  # noqa: PLC0415 - an extra

        most = max(LONG, self.prompt.tokens)
        asked: dict[str, Any] = {"model": self.settings.model, "messages": messages}
        if self._plain:
            try:
                return client.chat.completions.create(**asked, max_tokens=self.prompt.tokens, temperature=0)
            except BadRequestError:
                completion = client.chat.completions.create(**asked, max_completion_tokens=most)
                self._plain = False
                return completion
        return client.chat.completions.create(**asked, max_completion_tokens=most)

    def _count(self, completion: Any, unclear: bool) -> None:
        usage = getattr(completion, "usage", None)
        with self._lock:
            self.spent.update(asked=1, unclear=int(unclear))
            if usage is not None:
                self.spent.update(tokens_read=usage.prompt_tokens, tokens_written=usage.completion_tokens)
