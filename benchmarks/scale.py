"""How fast scales are fitted and features computed at HelpSteer3's size, and how well q̂ ranks a known q*.

Usage:

    python -m benchmarks.scale             times on this machine
    python -m benchmarks.scale --recovery [--estimator ridge] [--prompts 500 4000]
                                           Spearman correlations in worlds with a known noise scale
"""

import argparse
import random
import time
from collections.abc import Callable

import torch
from scipy.stats import spearmanr

from benchmarks.synthetic import random_utility_world
from unmdpo.scale import FrozenScale, PooledScale, Rows, Units, make_estimator
from unmdpo.scale.features import count_sketch, pair_features

ROWS, PROMPTS, PAIRS = 35_945, 22_756, 36_299


def seconds(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def times() -> None:
    rng = torch.Generator().manual_seed(0)
    units = Units(torch.randn(PROMPTS, 64, generator=rng), torch.randint(4, (PROMPTS,), generator=rng))
    rows = Rows(
        unit=torch.randint(PROMPTS, (ROWS,), generator=rng),
        evidence=torch.randn(ROWS, generator=rng),
        strength=torch.randint(1, 4, (ROWS,), generator=rng).float(),
    )
    print(f"pooled fit, {ROWS:,} rows over {PROMPTS:,} prompts, 150 updates: ", end="", flush=True)
    print(f"{seconds(lambda: PooledScale().fit(units, rows)):.2f} s")
    embeddings = torch.randn(PROMPTS, 4096, generator=rng)
    count_sketch(embeddings[:1])  # builds the hash table, which is cached per dimension
    print(f"sketch of {PROMPTS:,} × 4,096: {seconds(lambda: count_sketch(embeddings)):.2f} s")
    words = random.Random(0)
    vocabulary = ["".join(words.choices("etaoinshrdlu", k=words.randint(1, 9))) for _ in range(50_000)]
    texts = [" ".join(words.choices(vocabulary, k=words.randint(50, 500))) for _ in range(2 * PAIRS)]
    sketches = torch.randn(PAIRS, 64, generator=rng)
    print(f"pair features of {PAIRS:,} pairs: ", end="", flush=True)
    print(f"{seconds(lambda: pair_features(sketches, texts[:PAIRS], texts[PAIRS:])):.1f} s")


WORLDS: dict[str, dict[str, float]] = {
    "noise varies between prompts": {},
    "noise varies, a rough pilot": {"pilot_noise": 1.5},
    "noise varies, and so do gaps": {"gap_spread": 0.7},
    "only gaps vary (q* ≡ 1)": {"noise_spread": 0.0, "gap_spread": 0.7},
    "nothing varies": {"noise_spread": 0.0},
}


def recovery(estimator: str, sizes: list[int], seeds: int = 5) -> None:
    print("world | prompts | Spearman with q* | with gap size | std of log q̂")
    for name, knobs in WORLDS.items():
        for prompts in sizes:
            results = []
            for seed in range(seeds):
                world = random_utility_world(prompts, seed=seed, **knobs)  # type: ignore[arg-type]
                fitted = make_estimator(estimator, {})
                assert isinstance(fitted, FrozenScale)
                fitted.fit(world.units, world.rows)
                noise, gaps = (
                    float(spearmanr(fitted.q_, truth).statistic)
                    if truth.std() > 0 and fitted.q_.std() > 0
                    else (0.0 if truth.std() > 0 else float("nan"))
                    for truth in (world.true_scale, world.gap_size)
                )
                results.append([noise, gaps, fitted.diagnostics_["log_std"]])
            means, spread = torch.tensor(results).mean(0), torch.tensor(results).std(0)
            cells = [f"{m:.2f} ± {s:.2f}" for m, s in zip(means, spread, strict=True)]
            print(f"{name} | {prompts:,} | {' | '.join(cells)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recovery", action="store_true")
    parser.add_argument("--estimator", default="pooled")
    parser.add_argument("--prompts", type=int, nargs="+", default=[500, 4_000, 22_756])
    given = parser.parse_args()
    if given.recovery:
        recovery(given.estimator, given.prompts)
    else:
        times()
