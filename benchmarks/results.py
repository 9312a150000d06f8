"""Numbers in docs/results.md beyond the tables that `unmdpo run` prints, computed from the runs in a store.

    python -m benchmarks.results STORE

Win rates at equal length (the recipe `smollm2-135m`), and the cost of pilots (`smollm2-135m-pilots-*`).
"""

import argparse
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

from unmdpo.files import read_lines
from unmdpo.stats.evaluation import Judged, Resamples, compare

MAIN, PANELS, RESAMPLES = "smollm2-135m", ("alpaca", "feedback"), 400
VARIANTS = ("17", "lora", "3", "2", "third")


class Finished:
    """A finished run, read from its record alone: neither its model nor its data need to exist."""

    def __init__(self, store: Path, name: str) -> None:
        records = [
            (path, json.loads(path.read_text("utf-8")))
            for path in sorted((store / "runs").glob(f"{name}-????????????/run.json"))
        ]
        self.store = store
        self.stages = next(record["stages"] for _, record in records if "summary" in record["stages"])

    def path(self, stage: str) -> Path:
        return self.store / "artifacts" / str(self.stages[stage]["place"])

    def judged(self, policy: str, panel: str) -> Judged:
        rows = read_lines(self.path(f"judgement[{policy},{panel}]") / "scores.jsonl")
        scores, characters = ([float(row[key]) for row in rows] for key in ("score", "characters"))
        return Judged(np.array(scores), np.array(characters))

    @cached_property
    def scale(self) -> dict[str, float]:
        table = pq.read_table(self.path("scale[ln]") / "q.parquet").to_pydict()
        return dict(zip(table["prompt_hash"], table["q"], strict=True))

    def flops(self, kind: str) -> float:
        """FLOPs of all stages of a kind, or of a single stage."""
        names = [name for name in self.stages if name == kind or name.startswith(f"{kind}[")]
        manifests = [json.loads((self.path(name) / "manifest.json").read_text("utf-8")) for name in names]
        return float(sum(manifest["notes"]["flops"] for manifest in manifests))


def at_equal_length(ours: Judged, theirs: Judged) -> tuple[float, float, float]:
    """Win rate in % that a logistic curve in tanh of the length difference gives at zero difference, with a bootstrap
    interval over prompts; ties are left out."""
    difference = ours.characters - theirs.characters
    longer = np.tanh(difference / difference.std())[:, None]  # (n, 1)
    won, decided = ours.scores > theirs.scores, ours.scores != theirs.scores
    longer, won = longer[decided], won[decided]

    def level(of: NDArray[np.int64]) -> float:
        fitted = LogisticRegression(C=np.inf).fit(longer[of], won[of])
        return 100 * float(expit(fitted.intercept_[0]))

    rng, whole = np.random.default_rng(42), np.arange(len(won))
    low, high = np.quantile([level(rng.choice(whole, len(whole))) for _ in range(RESAMPLES)], [0.025, 0.975])
    return level(whole), float(low), float(high)


def equal_lengths(run: Finished) -> None:
    print("policy, against, win rate at equal length, Spearman of score and length")
    names = [name[10:].split(",")[0] for name in run.stages if name.startswith("judgement[")]
    for name in dict.fromkeys(names):
        against = "dpo-17" if name.endswith("-17") and name != "dpo-17" else "dpo"
        if name in {"dpo", "initial"}:
            continue
        ours = run.judged(name, "alpaca")
        value, low, high = at_equal_length(ours, run.judged(against, "alpaca"))
        correlation = spearmanr(ours.scores, ours.characters).statistic
        print(f"{name}, {against}, {value:.2f} [{low:.2f}, {high:.2f}], {correlation:.2f}")


def price_of_pilots(full: Finished, store: Path) -> None:
    print("pilots, cost in DPO runs, Spearman with full, win rates of ULNM-WR against DPO and against full ULNM-WR")
    once = full.flops("policy[dpo]")
    for name in ("", *(f"-pilots-{variant}" for variant in VARIANTS)):
        run = Finished(store, f"{MAIN}{name}") if name else full
        rank = spearmanr([*full.scale.values()], [run.scale[prompt] for prompt in full.scale]).statistic
        rates = [f"{panel} {_rates(run, full, panel)}" for panel in PANELS]
        print(f"{name[8:] or 'full'}, {run.flops('pilot') / once:.2f}, {rank:.3f}, {', '.join(rates)}")


def _rates(run: Finished, full: Finished, panel: str) -> str:
    ours, opponents = run.judged("ulnm-wr", panel), {"dpo": full, "ulnm-wr": full}
    rates = []
    for opponent, of in opponents.items():
        theirs = of.judged(opponent, panel)
        rate: Any = compare(ours, theirs, Resamples.draw(len(ours.scores), 42)).to_dict()["win_rate"]
        rates.append(f"{rate['value']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]")
    return " and ".join(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", type=Path)
    store = parser.parse_args().store
    full = Finished(store, MAIN)
    equal_lengths(full)
    price_of_pilots(full, store)


if __name__ == "__main__":
    main()
