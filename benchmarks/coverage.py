"""Do intervals over seeds cover the truth, and are p-values as rare as they say? A simulation.

    python -m benchmarks.coverage [--worlds 2000] [--seeds 2,3,5,10] [--sd 0,0.05,0.1,0.2,0.3] [--prompts 50,150,800]
                                  [--baseline-once]

Two equal policies, compared seed by seed, or with a baseline that was trained once. A score difference is what its
seeds add (standard deviation --sd), what its prompt adds (0.7) and chance (0.7); the judge likes length, and lengths
differ. Prints one line of JSON for each
setting: how often the 95 % interval of the win rate, of ΔR and of the win rate at equal length contains the truth, and
how often p < 0.05 for the first two.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import product

import numpy as np

from unmdpo.stats.evaluation import Estimate, Judged, Resamples, compare
from unmdpo.stats.length_adjusted import length_adjusted

OF_PROMPT, OF_CHANCE, LIKING = 0.7, 0.7, 0.3


def world(rng: np.random.Generator, seeds: int, sd: float, prompts: int, once: bool = False) -> tuple[Judged, Judged]:
    shape = seeds, prompts
    ours, theirs = (rng.lognormal(6, 0.5, shape) for _ in range(2))
    of_seeds = rng.normal(0, sd, (seeds, 1))
    if once:  # half of the variance is the baseline's, and the same in all
        of_seeds = (of_seeds + rng.normal(0, sd)) / np.sqrt(2)
    difference = of_seeds + rng.normal(0, OF_PROMPT, prompts) + rng.normal(0, OF_CHANCE, shape)
    difference += LIKING * np.log(ours / theirs)
    return Judged(difference, ours), Judged(np.zeros(shape), theirs)


def measured(seeds: int, sd: float, prompts: int, worlds: int, once: bool = False) -> dict[str, float]:
    """Shares in percent."""
    counts = dict.fromkeys(("win_rate", "reward_difference", "equal_length", "p_win_rate", "p_reward_difference"), 0)
    resamples = Resamples.draw(prompts, 0, 2 if seeds > 1 else 2000)
    for number in range(worlds):
        sides = world(np.random.default_rng([number, seeds, prompts]), seeds, sd, prompts, once)
        found, adjusted = compare(*sides, resamples), length_adjusted(*sides)
        assert adjusted is not None
        counts["win_rate"] += _covers(found.win_rate, 50)
        counts["reward_difference"] += _covers(found.reward_difference, 0)
        counts["equal_length"] += _covers(adjusted, 50)
        counts["p_win_rate"] += found.p_win_rate < 0.05
        counts["p_reward_difference"] += found.p_reward_difference < 0.05
    return {name: round(100 * count / worlds, 1) for name, count in counts.items()}


def _covers(found: Estimate, truth: float) -> bool:
    return found.low <= truth <= found.high


def all_settings(given: argparse.Namespace) -> Iterator[tuple[int, float, int]]:
    for seeds, sd, prompts in product(given.seeds.split(","), given.sd.split(","), given.prompts.split(",")):
        yield int(seeds), float(sd), int(prompts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--seeds", default="2,3,5,10")
    parser.add_argument("--sd", default="0,0.05,0.1,0.2,0.3")
    parser.add_argument("--prompts", default="50,150,800")
    parser.add_argument("--baseline-once", action="store_true", help="the baseline was trained once")
    given = parser.parse_args()
    for seeds, sd, prompts in all_settings(given):
        line = {"seeds": seeds, "sd": sd, "prompts": prompts}
        print(json.dumps(line | measured(seeds, sd, prompts, given.worlds, given.baseline_once)), flush=True)


if __name__ == "__main__":
    main()
