"""The lab's world: prompts with a known noise scale q*, responses with a known reward r*.

    r*(y, x) = 3 · (share of the answer that is right) − 3 · (share of words that are wrong or idle)

Annotators see U = r*(x) − r*(x') + q*(y)·η with logistic η. The sign of U says which response is better, and its size
by how much (the paper's heteroskedastic random-utility model). q* depends on the prompt's text: on its domain, and on
whether its wording is vague.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unmdpo.data import identity
from unmdpo.lab.tasks import NOUNS, NUMBERS, OPPOSITES, TASKS, Task, read, worded

RIGHT, IDLE = 3.0, 3.0  # what a right answer is worth, and what idle words cost
IDLE_PHRASES = ("well", "of course", "let me see", "the answer is", "i think it is", "here you go",
                "as you asked", "i hope this helps", "after some thought")  # fmt: skip
# How often responses begin with zero, one or two idle phrases: in comparisons, and in demonstrations for plain and for
# vague prompts.
COMPARED = (6, 2, 2)
DEMONSTRATED = {False: (2, 6, 2), True: (1, 3, 6)}


@dataclass(frozen=True)
class Knobs:
    """The settings an experiment can change."""

    prompts: int = 400
    pairs_per_prompt: int = 2
    annotators: int = 3
    noise: float = 0.8  # geometric mean of q* over kinds of prompts
    noise_spread: float = 0.6  # standard deviation of log q* over kinds of prompts
    length_spread: float = 0.0  # how many more idle phrases a vague prompt's responses may have
    informativeness: float = 1.0  # how closely a stated strength follows |U|; 0 means not at all
    flips: float = 0.0  # share of votes that go the wrong way
    seed: int = 0


@dataclass(frozen=True)
class Prompt:
    task: Task
    vague: bool
    text: str
    scale: float  # q*


@dataclass(frozen=True)
class Compared:
    """One comparison: two responses and each annotator's signed strength, positive for the second."""

    prompt: Prompt
    first: str
    second: str
    votes: tuple[int, ...]

    @property
    def label(self) -> int:
        """One overall preference: the votes' mean, with halves rounded away from zero."""
        mean = sum(self.votes) / len(self.votes)
        return int(math.copysign(math.floor(abs(mean) + 0.5), mean))


def gold_reward(answer: Sequence[str], response: str) -> float:
    """r* of a response's text: right words in the right order add to it, all other words subtract."""
    words = response.lower().split()
    right = _in_order(answer, words)
    idle = (len(words) - right) / max(len(words), len(answer))
    return RIGHT * right / len(answer) - IDLE * idle


def gold(prompts: Sequence[identity.Prompt], responses: Sequence[str]) -> list[float]:
    """r* of each response, from its text and its prompt's text alone: the judge `unmdpo.lab.world:gold`."""
    return [
        gold_reward(read(prompt[-1].content)[0].answer, response)
        for prompt, response in zip(prompts, responses, strict=True)
    ]


def _in_order(answer: Sequence[str], words: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(answer) + 1)
    for word in words:
        before = 0
        for place, wanted in enumerate(answer, start=1):
            before, row[place] = row[place], before + 1 if word == wanted else max(row[place], row[place - 1])
    return row[-1]


def true_scale(task: Task, vague: bool, knobs: Knobs) -> float:
    """q*: the kinds of prompts are equally spaced in log q*, vague ones above plain ones."""
    kinds = [(domain, wording) for wording in (False, True) for domain in sorted(TASKS)]
    place = kinds.index((task.domain, vague))
    steps = [i - (len(kinds) - 1) / 2 for i in range(len(kinds))]
    width = math.sqrt(sum(step**2 for step in steps) / len(steps))
    return knobs.noise * math.exp(knobs.noise_spread * steps[place] / width)


class World:
    """Everything is drawn from one seed."""

    def __init__(self, knobs: Knobs | None = None) -> None:
        self.knobs = knobs or Knobs()

    def prompts(self, count: int | None = None, stream: str = "train") -> list[Prompt]:
        """Distinct prompts; no prompt is in two streams."""
        rng, drawn = self._random(f"prompts:{stream}"), dict[str, Prompt]()
        names = sorted(TASKS)
        wanted = self.knobs.prompts if count is None else count
        while len(drawn) < wanted:
            task, vague = TASKS[rng.choice(names)](rng), rng.random() < 0.5
            text = worded(task, vague, rng)
            if self._stream(text) == stream:
                drawn.setdefault(text, Prompt(task, vague, text, true_scale(task, vague, self.knobs)))
        return list(drawn.values())

    def _stream(self, text: str) -> str:
        """The stream a text belongs to, decided by the text alone; a fifth is held out."""
        return "validation" if random.Random(f"stream:{text}").random() < 0.2 else "train"

    def response(self, prompt: Prompt, rng: random.Random, idle: Sequence[int] = COMPARED) -> str:
        """An answer of random quality and length: some words replaced or dropped, some idle ones added."""
        quality, words = rng.random(), list(prompt.task.answer)
        for place in range(len(words)):
            if rng.random() > quality:
                words[place] = rng.choice([*NUMBERS, *NOUNS.values(), *OPPOSITES.values()])
        if len(words) > 1 and rng.random() < 0.15:
            words.pop(rng.randrange(len(words)))
        extra = self.knobs.length_spread * rng.expovariate(1.0) if prompt.vague else 0.0
        phrases = int(extra) + rng.choices(range(len(idle)), idle)[0]
        return " ".join([*(rng.choice(IDLE_PHRASES) for _ in range(phrases)), *words])

    def compare(self, prompt: Prompt, first: str, second: str, rng: random.Random) -> Compared:
        """Every annotator's vote on a pair."""
        gap = gold_reward(prompt.task.answer, second) - gold_reward(prompt.task.answer, first)
        votes = tuple(self._vote(gap, prompt.scale, rng) for _ in range(self.knobs.annotators))
        return Compared(prompt, first, second, votes)

    def _vote(self, gap: float, scale: float, rng: random.Random) -> int:
        """Thresholds on |U| set the strength; a small |U| is a tie."""
        uniform = min(max(rng.random(), 1e-12), 1 - 1e-12)
        utility = gap + scale * math.log(uniform / (1 - uniform))
        if rng.random() < self.knobs.flips:
            utility = -utility
        size = abs(utility)
        if rng.random() >= self.knobs.informativeness:
            size = rng.expovariate(0.6)
        strength = 0 if size < 0.25 else 1 if size < 1.25 else 2 if size < 2.75 else 3
        return strength if utility > 0 else -strength

    def comparisons(self, stream: str = "train", prompts: int | None = None) -> list[Compared]:
        rng, compared = self._random(f"comparisons:{stream}"), list[Compared]()
        for prompt in self.prompts(prompts, stream):
            for _ in range(self.knobs.pairs_per_prompt):
                first, second = self.response(prompt, rng), self.response(prompt, rng)
                compared.append(self.compare(prompt, first, second, rng))
        return compared

    def demonstrations(self) -> Iterator[tuple[Prompt, str]]:
        """An endless stream that the reference policy learns from: imperfect answers, chattier for vague prompts."""
        rng, prompts = self._random("demonstrations"), self.prompts()
        while True:
            prompt = rng.choice(prompts)
            yield prompt, self.response(prompt, rng, DEMONSTRATED[prompt.vague])

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self.knobs.seed}:{purpose}")
