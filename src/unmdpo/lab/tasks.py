"""Short instructions in readable English, each with one right answer.

The vocabulary is small enough for a tiny model to learn, and every answer is a list of words, so it can be partly
right.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unmdpo.core.errors import UserError

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
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


def _some(rng: random.Random, words: Sequence[str]) -> list[str]:
    return rng.sample(words, rng.randint(2, 4))


def _addition(rng: random.Random) -> Task:
    words = _some(rng, NUMBERS[:10])
    return Task("addition", f"add one to {' '.join(words)}", tuple(_plus_one(words)))


def _sorting(rng: random.Random) -> Task:
    words = _some(rng, NUMBERS[:10])
    return Task("sorting", f"sort {' '.join(words)}", tuple(sorted(words, key=NUMBERS.index)))


def _reversing(rng: random.Random) -> Task:
    words = _some(rng, [*NOUNS, *COLOURS])
    return Task("reversing", f"reverse {' '.join(words)}", tuple(reversed(words)))


def _plurals(rng: random.Random) -> Task:
    words = _some(rng, [*NOUNS])
    return Task("plurals", f"write the plural of {' '.join(words)}", tuple(NOUNS[word] for word in words))


def _opposites(rng: random.Random) -> Task:
    words = _some(rng, [*OPPOSITES])
    return Task("opposites", f"write the opposite of {' '.join(words)}", tuple(OPPOSITES[word] for word in words))


TASKS: dict[str, Callable[[random.Random], Task]] = {
    "addition": _addition,
    "sorting": _sorting,
    "reversing": _reversing,
    "plurals": _plurals,
    "opposites": _opposites,
}

# How an instruction is worded: plainly, or in a way that makes people disagree about what a good answer is.
PLAIN = ("please {}", "{}", "{} now", "{} for me")
VAGUE = ("could you perhaps {}", "maybe {} or so", "{} somehow", "i think you should {} i guess")


def worded(task: Task, vague: bool, rng: random.Random) -> str:
    return rng.choice(VAGUE if vague else PLAIN).format(task.instruction)


def read(text: str) -> tuple[Task, bool]:
    """The task stated by a prompt's text, and whether its wording is vague. The text alone decides both."""
    for wording in (*VAGUE, *PLAIN):
        before, _, after = wording.partition("{}")
        if text.startswith(before) and text.endswith(after):
            task = _explained(text[len(before) : len(text) - len(after)])
            if task is not None:
                return task, wording in VAGUE
    raise UserError(f"this is not one of the lab's prompts: {text!r}")


def _explained(instruction: str) -> Task | None:
    """The task an instruction states, or None."""
    for start, (domain, answer) in READERS.items():
        words = instruction.removeprefix(start).split()
        if instruction.startswith(start) and words:
            try:
                return Task(domain, instruction, tuple(answer(words)))
            except (KeyError, ValueError):
                return None
    return None


def _plus_one(words: list[str]) -> list[str]:
    return [NUMBERS[NUMBERS[:10].index(word) + 1] for word in words]


def _reversed(words: list[str]) -> list[str]:
    if not set(words) <= {*NOUNS, *COLOURS}:
        raise ValueError(words)
    return words[::-1]


READERS: dict[str, tuple[str, Callable[[list[str]], list[str]]]] = {
    "add one to ": ("addition", _plus_one),
    "sort ": ("sorting", lambda words: sorted(words, key=NUMBERS.index)),
    "reverse ": ("reversing", _reversed),
    "write the plural of ": ("plurals", lambda words: [NOUNS[word] for word in words]),
    "write the opposite of ": ("opposites", lambda words: [OPPOSITES[word] for word in words]),
}
