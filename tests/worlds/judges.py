"""Judge functions. They run in processes of their own, so nothing heavy is imported here."""

import os
import signal
from pathlib import Path

NASTY = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe <script>alert(1)</script>"


def longest(prompts, responses):
    """Prefers long responses."""
    return [float(len(response.split())) for response in responses]


def broken_judge(prompts, responses):
    """Not on the two answers that it is tried on."""
    if "Yes." not in responses:
        raise RuntimeError("out of order")
    return [0.0 for _ in responses]


def deadly_judge(prompts, responses):
    """Not on the two answers that it is tried on."""
    if "Yes." not in responses:
        os.kill(os.getpid(), signal.SIGKILL)
    return [0.0 for _ in responses]


def reads_turns(prompts, responses):
    """As dictionaries, as tuples, and by attribute."""
    turns = [prompt[-1] for prompt in prompts]
    assert all(turn["content"] == turn.content == turn[1] and turn["role"] == turn[0] for turn in turns)
    return [float(len(turn["content"])) for turn in turns]


def all_equal(prompts, responses):
    return [1.5 for _ in responses]


def not_a_number(prompts, responses):
    return [float("nan") if place == 1 else 0.0 for place, _ in enumerate(responses)]


def shortest(prompts, responses):
    return [-float(len(response)) for response in responses]


def nasty_judge(prompts, responses):
    raise ValueError(f"cannot judge {NASTY}")


def kills_its_worker_once(prompts, responses):
    """Kills the process of the stage on its first call."""
    marker = Path(os.environ["UNMDPO_TEST_MARKER"])
    if not marker.exists():
        marker.touch()
        os.kill(os.getppid(), signal.SIGKILL)
    return [float(len(response)) for response in responses]
