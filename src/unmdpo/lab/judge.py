"""The gold judge: what every response is really worth, from its text and its prompt's alone."""

from collections.abc import Sequence

from unmdpo.data.identity import Prompt
from unmdpo.lab.tasks import read
from unmdpo.lab.world import gold_reward


def gold(prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
    """r* of each response; a recipe names it as `unmdpo.lab.judge:gold`."""
    return [
        gold_reward(read(prompt[-1].content)[0].answer, response)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
