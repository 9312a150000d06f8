"""Where a prompt and a response meet, as text."""

import re
from typing import NamedTuple

from unmdpo.engine.pairs.template import Frame

OPENED_TAG = re.compile(r"(<[^<>\s/|]+>)\s*\Z")


class Joint(NamedTuple):
    """Where a prompt and a response meet."""

    text: str  # of the prompt, with the generation prefix
    answered: str  # the conversation with the response, as the template writes it
    response: str

    @property
    def is_kept(self) -> bool:
        """Whether the template keeps the prompt as it was, and the response but for its white space. Templates may
        drop reasoning, or move a system message, once there is an answer."""
        if not self.answered.startswith(self.text):
            return False
        if self.answered.find(self.response.strip(), len(self.text)) >= 0:
            return True
        return "".join(self.response.split()) in "".join(self.answered[len(self.text) :].split())

    def whole(self, frame: Frame) -> str:
        """The prompt with the response: as the template writes it, unless that would change one of them."""
        return self.answered if self.is_kept else self._rebuilt(frame)

    def _rebuilt(self, frame: Frame) -> str:
        """The response as it stands; a tag that the prompt ends with, such as `<think>`, is not written twice."""
        opened = OPENED_TAG.search(self.text)
        response = self.response
        if opened is not None and response.lstrip().startswith(opened[1]):
            response = response.lstrip().removeprefix(opened[1]).lstrip("\n")
        return self.text + frame.around(response)
