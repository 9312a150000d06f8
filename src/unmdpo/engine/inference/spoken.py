"""Pairwise judging by what a language model says, where its endpoint tells no log-probabilities.

Each pair is asked about in both orders, since judges favour a position. The score is the mean of both verdicts: 1 if
the candidate is better, 0 if the baseline is, one half for a tie. The judge may give reasons first, as in MT-Bench.
"""

import re
import threading
import warnings
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from unmdpo.catalog.judges import EndpointSettings
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.endpoint import (
    FIRST,
    SECOND,
    WORKERS,
    Question,
    as_they_arrive,
    open_client,
    question_text,
)
from unmdpo.engine.inference.replies import shown, understood
from unmdpo.errors import UnmdpoWarning, UserError

if TYPE_CHECKING:
    from openai import OpenAI

SHORT, LONG = 8, 1024  # tokens of an answer, without reasons and with them
MOST_UNCLEAR = 0.1  # share of the answers without a verdict that is still a judge
VERDICT = re.compile(rf"\[\[\s*({FIRST}|{SECOND}|tie)\s*\]\]", re.IGNORECASE)
WORD = re.compile(rf"\b({FIRST}|{SECOND}|[Tt]ie)\b")
BRIEFLY = "\nIf neither is better, answer: tie."
WITH_REASONS = (
    "\nFirst compare them in a few sentences, without regard to their length, their order or how sure they sound. "
    "Then end with your verdict on a line of its own: [[A]], [[B]] or [[tie]]."
)


def verdict(said: str) -> float | None:
    """1 for the first response, 0 for the second, one half for a tie, None if nothing is said."""
    found = VERDICT.findall(said) or WORD.findall(said)
    if not found:
        return None
    return {FIRST: 1.0, SECOND: 0.0}.get(found[-1].upper(), 0.5)


class SpokenJudge:
    """Counts what it costs in `spent`: questions, tokens read and written, and answers without a verdict."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings, self.spent, self._lock = settings, Counter[str](), threading.Lock()

    def answers(self, questions: Sequence[Question], seed: int) -> Generator[tuple[int, float]]:
        """Yields each question's index and the mean of both verdicts, as answers arrive. Nothing is drawn, so `seed`
        does not matter."""
        with open_client(self.settings) as client:
            yield from as_they_arrive(questions, lambda one: self._preference(client, one), WORKERS)
        asked, unclear = self.spent["asked"], self.spent["unclear"]
        if unclear > MOST_UNCLEAR * asked:
            raise UserError(
                f"the judge at {self.settings.endpoint} gave no verdict in {unclear} of {asked} answers: ask another "
                "model, or one that may explain itself (evaluation.judge.reasons: true)"
            )
        if unclear:
            warnings.warn(
                f"{unclear} of {asked} answers of the judge had no verdict, and count as ties",
                UnmdpoWarning,
                stacklevel=2,
            )

    def _preference(self, client: "OpenAI", asked: Question) -> float:
        first = self._ask(client, asked.prompt, asked.candidate, asked.baseline)
        return (first + 1.0 - self._ask(client, asked.prompt, asked.baseline, asked.candidate)) / 2

    def _ask(self, client: "OpenAI", prompt: Prompt, first: str, second: str) -> float:
        reasons = self.settings.reasons
        question = question_text(prompt, first, second)
        if reasons:
            question = question.rpartition("\n")[0]  # not only one letter
        with understood(f"the judge at {self.settings.endpoint}", self.settings.key):
            completion = client.chat.completions.create(
                model=self.settings.model,
                messages=[{"role": "user", "content": question + (WITH_REASONS if reasons else BRIEFLY)}],
                max_tokens=LONG if reasons else SHORT,
                temperature=0,
            )
            found = verdict(self._said(completion))
            self._count(completion, found is None)
        return 0.5 if found is None else found

    def _said(self, completion: Any) -> str:
        choices = getattr(completion, "choices", None)
        if not choices:
            sent = shown(completion, self.settings.key)
            raise UserError(f"the judge at {self.settings.endpoint} sent something else: {sent}")
        return choices[0].message.content or ""

    def _count(self, completion: Any, unclear: bool) -> None:
        usage = getattr(completion, "usage", None)
        with self._lock:
            self.spent.update(asked=1, unclear=int(unclear))
            if usage is not None:
                self.spent.update(tokens_read=usage.prompt_tokens, tokens_written=usage.completion_tokens)
