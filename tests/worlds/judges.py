"""Judge functions. They run in processes of their own, so nothing heavy is imported here."""

import os
import signal
from pathlib import Path

NASTY = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe <script>alert(1)</script>"


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
