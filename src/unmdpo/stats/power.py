"""What a comparison can show, before it is paid for: the difference that is found in 80 % of cases."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmdpo.stats.few_seeds import MeanOverSeeds

OFTEN = 0.842  # standard normal quantile of 80 %
NORMAL = 1.960
MOST = 1_000_000  # prompts


@dataclass(frozen=True)
class Noise:
    """Standard deviations of what an answer's seed, its prompt and chance add to its points, where a win is 100."""

    seed: float
    prompt: float
    chance: float

    @classmethod
    def of(cls, points: NDArray[np.float64]) -> "Noise":
        """From points (s, n). One seed cannot tell how much seeds differ."""
        s, n = points.shape
        if s == 1 or n == 1:
            return cls(USUAL.seed, float(points.std()), 0.0)
        mean = MeanOverSeeds.of(points)
        rest = points - points.mean(axis=1, keepdims=True) - points.mean(axis=0) + points.mean()
        chance = float((rest**2).sum()) / ((s - 1) * (n - 1))
        seed = max(0.0, s * mean.of_seeds - chance / n)
        return cls(seed**0.5, (n * mean.of_prompts) ** 0.5, chance**0.5)

    def detectable(self, prompts: int, seeds: int) -> float:
        """Points of win rate."""
        of_seeds, of_prompts = (self.seed**2 + self.chance**2 / prompts) / seeds, self.prompt**2 / prompts
        if seeds == 1:  # whose own part is in no interval
            of_seeds = self.chance**2 / prompts
            margin = NORMAL * (of_seeds + of_prompts) ** 0.5
        else:
            margin = MeanOverSeeds(0.0, of_seeds, of_prompts, (seeds - 1, max(1, prompts - 1))).margin()
        return float(margin + OFTEN * (of_seeds + of_prompts) ** 0.5)

    def prompts_for(self, difference: float, seeds: int) -> int | None:
        """How many show this difference; None if no number does."""
        prompts = 2
        while self.detectable(prompts, seeds) > difference:
            if prompts > MOST:
                return None
            prompts = -(-prompts * 21 // 20)
        return prompts


USUAL = Noise(seed=3.0, prompt=22.0, chance=38.0)  # about that of the five-seed runs in docs/evidence/results.md
