"""Short instructions in readable English, with one right answer each.

Words are few, so that a very small model can learn to answer, and every answer is a list of words, so
that it can be partly right.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
           "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen")  # fmt: skip
NOUNS = {"cat": "cats", "dog": "dogs", "box": "boxes", "fox": "foxes", "baby": "babies", "city": "cities",
         "leaf": "leaves", "wolf": "wolves", "child": "children", "mouse": "mice", "bus": "buses",
         "berry": "berries"}  # fmt: skip
OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "old": "young", "dark": "light", "high": "low",
             "full": "empty", "loud": "quiet", "wet": "dry", "early": "late"}  # fmt: skip
COLOURS = ("red", "blue", "green", "white", "black", "brown")


@dataclass(frozen=True)
class Task:
    """An instruction and its right answer."""

    domain: str
    instruction: str
    answer: tuple[str, ...]


def _addition(rng: random.Random) -> Task:
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return Task("addition", f"add {NUMBERS[a]} and {NUMBERS[b]}", (NUMBERS[a + b],))


def _sorting(rng: random.Random) -> Task:
    places = rng.sample(range(10), rng.randint(3, 4))
    given = " ".join(NUMBERS[i] for i in places)
    return Task("sorting", f"sort {given}", tuple(NUMBERS[i] for i in sorted(places)))


def _reversing(rng: random.Random) -> Task:
    words = rng.sample([*NOUNS, *COLOURS], rng.randint(3, 4))
    return Task("reversing", f"reverse {' '.join(words)}", tuple(reversed(words)))


def _plurals(rng: random.Random) -> Task:
    words = rng.sample([*NOUNS], rng.randint(1, 3))
    return Task("plurals", f"write the plural of {' '.join(words)}", tuple(NOUNS[word] for word in words))


def _opposites(rng: random.Random) -> Task:
    words = rng.sample([*OPPOSITES], rng.randint(1, 3))
    return Task(
        "opposites", f"write the opposite of {' '.join(words)}", tuple(OPPOSITES[word] for word in words)
    )


TASKS: dict[str, Callable[[random.Random], Task]] = {
    "addition": _addition,
    "sorting": _sorting,
    "reversing": _reversing,
    "plurals": _plurals,
    "opposites": _opposites,
}

# How an instruction is worded: plainly, or so that people disagree about what a good answer is.
PLAIN = ("please {}", "{}", "{} now", "{} for me")
VAGUE = ("could you perhaps {}", "maybe {} or so", "{} somehow", "i think you should {} i guess")


def worded(task: Task, vague: bool, rng: random.Random) -> str:
    return rng.choice(VAGUE if vague else PLAIN).format(task.instruction)
