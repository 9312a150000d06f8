"""Judges that are Python functions of the user, called in a process of their own. Nothing here imports torch."""

import math
from collections.abc import Sequence
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.core.isolated import isolated
from unmdpo.data.identity import Prompt
from unmdpo.engine.inference.judges import FunctionSettings, Judge

SCORES, FIND = "unmdpo.engine.inference.user_code:scores", "unmdpo.engine.inference.user_code:find"
ADVICE = "name it as package.module:function, importable from the current folder or PYTHONPATH"


def open_function(settings: FunctionSettings) -> Judge:
    """A judge that calls `package.module:function`."""

    def judge(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        turns = [[list(message) for message in prompt] for prompt in prompts]
        scores: list[float] = isolated(SCORES, settings.function, turns, [*responses], who="the judge")
        return scores

    return judge


def check_function(settings: FunctionSettings) -> None:
    """Raises now what judging would raise hours later: a function that cannot be imported or called."""
    isolated(FIND, settings.function, who=f"judge function '{settings.function}'", advice=ADVICE)


def checked(judge: Judge, prompts: Sequence[Prompt], responses: Sequence[Any]) -> list[float]:
    """A judge's scores: one finite number per response, or an error that says which are not."""
    found = judge(prompts, responses)
    if len(found) != len(responses):
        raise UserError(f"the judge returned {len(found)} scores for {len(responses)} responses")
    bad = [place for place, score in enumerate(found) if not math.isfinite(score)]
    if bad:
        raise UserError(f"the judge's scores of prompts {bad[:8]} are not finite")
    return found
