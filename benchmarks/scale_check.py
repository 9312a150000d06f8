"""Are the findings about scales right as often as they say? A simulation in worlds where the truth is known.

    python -m benchmarks.scale_check [--worlds 100] [--prompts 600] [--estimators pooled,ridge]

Worlds of the paper's random-utility model with a standard deviation of log q* of 0, 0.25, 0.5 and 1 (linear in 16
features), and worlds of equal noise whose labels are stated more strongly on some prompts. Prints one line of JSON for
each: how often `check` says informative, better, and each finding; and of the scales that are called better, how many
lose to q ≡ 1 on 100,000 fresh prompts.
"""

import argparse
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.synthetic import random_utility_world
from unmdpo.scale import FrozenScale, Rows, Units, make_estimator
from unmdpo.scale.check import check, gain_of
from unmdpo.scale.fitting import losses_by
from unmdpo.scale.settings import MarginSettings

FRESH, DIMENSION, SPREADS = 100_000, 16, (0.0, 0.25, 0.5, 1.0)


def world(seed: int, spread: float, prompts: int, *, stated: bool = False) -> tuple[Units, Rows]:
    """`prompts` to fit, with two comparisons each, and fresh ones after them, one each."""
    made = random_utility_world(
        prompts + FRESH, rows_per_prompt=2, noise_spread=spread, pilot_noise=0.5, dimension=DIMENSION, seed=seed
    )
    rows = made.rows
    if stated:  # one step stronger on half of the prompts, by a feature
        rows = replace(rows, strength=rows.strength + (made.units.features[rows.unit, 0] > 0))
    return replace(made.units, folds=torch.arange(prompts + FRESH) % 5), rows


def judged(name: str, units: Units, rows: Rows, prompts: int) -> dict[str, Any]:
    """What `check` says, and whether the scale really gains."""
    seen = torch.arange(len(units)) < prompts

    def make() -> FrozenScale:
        estimator = make_estimator(name, {})
        assert isinstance(estimator, FrozenScale)
        return estimator

    found = check(make, units.select(seen), [rows.reindexed(seen)])
    settings = make().settings
    assert isinstance(settings, MarginSettings)
    log_q = make().fit(units.select(seen), rows.reindexed(seen)).predict(units.select(~seen)).double().log()
    true = gain_of(losses_by(settings), rows.reindexed(~seen), log_q - log_q.mean())
    return {
        "finding": found.finding,
        "informative": found.informative,
        "better": found.better,
        "gains": true.value > 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=600)
    parser.add_argument("--estimators", default="pooled,ridge")
    given = parser.parse_args()
    kinds = {f"sd {spread}": partial(world, spread=spread) for spread in SPREADS}
    kinds["stated more strongly"] = partial(world, spread=0.0, stated=True)
    for name in given.estimators.split(","):
        for kind, draw in kinds.items():
            told = [judged(name, *draw(seed, prompts=given.prompts), given.prompts) for seed in range(given.worlds)]
            better = [one for one in told if one["better"]]
            line = {
                "estimator": name,
                "world": kind,
                "worlds": len(told),
                "informative": sum(one["informative"] for one in told),
                "better": len(better),
                "of_these_lose": sum(not one["gains"] for one in better),
                "gains": sum(one["gains"] for one in told),
                "findings": Counter(one["finding"] for one in told),
            }
            print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
