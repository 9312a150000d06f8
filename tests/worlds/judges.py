"""Judge functions. They run in processes of their own, so nothing heavy is imported here."""

import os
import signal


def longest(prompts, responses):
    """Prefers long responses."""
    return [float(len(response.split())) for response in responses]


def broken_judge(prompts, responses):
    raise RuntimeError("out of order")


def deadly_judge(prompts, responses):
    os.kill(os.getpid(), signal.SIGKILL)


def all_equal(prompts, responses):
    return [1.5 for _ in responses]


def not_a_number(prompts, responses):
    return [float("nan") if place == 1 else 0.0 for place, _ in enumerate(responses)]
