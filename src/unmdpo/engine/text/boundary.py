"""Where a prompt and a response meet, as text."""

import re
from collections.abc import Callable
from typing import NamedTuple

from unmdpo.data.identity import Prompt
from unmdpo.engine.text.template import Frame

Render = Callable[[Prompt, bool], str]  # more turns of the conversation, and whether the next one is begun

OPENED_TAG = re.compile(r"(<[^<>\s/|]+>)\s*\Z")


class Joint(NamedTuple):
    prompt: str  # with the generation prefix
    whole: str  # with the response
    rebuilt: bool  # not as the template writes it
    spans: tuple[tuple[int, int], ...] = ()  # of the whole, that are scored; none: all that follows the prompt

    @classmethod
    def of(cls, prompt: str, answered: str, response: str, frame: Frame) -> "Joint":
        """As the template writes the answered conversation, unless that would change the prompt or the response."""
        whole = (
            answered if _is_kept(prompt, answered, response) else prompt + frame.around(_unopened(prompt, response))
        )
        return cls(prompt, whole, whole != answered)

    @classmethod
    def of_turns(cls, prompt: str, turns: Prompt, shared: int, render: Render) -> "Joint | None":
        """With a response of several turns. What the assistant says is scored, beginning with the turn where the two
        responses part. None if the template writes a turn otherwise once others follow."""
        whole, spans = render(turns, False), []
        for place, turn in enumerate(turns):
            if turn.role != "assistant" or place < shared:
                continue
            start, end = render(turns[:place], True), render(turns[: place + 1], False).rstrip()
            if not whole.startswith(end) or not end.startswith(start) or not start.startswith(prompt):
                return None
            last = place + 1 == len(turns)
            spans.append((len(start), len(whole) if last else len(end)))
        return cls(prompt, whole, False, tuple(spans))

    @property
    def tail(self) -> str:
        """What follows the prompt."""
        return self.whole[len(self.prompt) :]


def _is_kept(prompt: str, answered: str, response: str) -> bool:
    """Whether the template keeps the prompt as it was, and the response but for its white space. Templates may drop
    reasoning, or move a system message, once there is an answer."""
    if not answered.startswith(prompt):
        return False
    if answered.find(response.strip(), len(prompt)) >= 0:
        return True
    return "".join(response.split()) in "".join(answered[len(prompt) :].split())


def _unopened(prompt: str, response: str) -> str:
    """The response without a tag that the prompt ends with, such as `<think>`, which is not written twice."""
    opened = OPENED_TAG.search(prompt)
    if opened is not None and response.lstrip().startswith(opened[1]):
        return response.lstrip().removeprefix(opened[1]).lstrip("\n")
    return response
