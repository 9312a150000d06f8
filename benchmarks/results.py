"""The cost of pilots in docs/evidence/results.md, from the runs `smollm2-135m` and `smollm2-135m-pilots-*` in a store.

python -m benchmarks.results STORE
"""

import argparse
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from unmdpo.core.files import read_lines
from unmdpo.stats.evaluation import Judged, Resamples, compare

MAIN, PANELS, SEED = "smollm2-135m", ("alpaca", "feedback"), 42
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
        """The policy's answers, of the first seed if it has several."""
        names = (f"judgement[{policy},{panel}]", f"judgement[{policy}@{SEED},{panel}]")
        rows = read_lines(self.path(next(name for name in names if name in self.stages)) / "scores.jsonl")
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


def price_of_pilots(full: Finished, store: Path) -> None:
    print("pilots, cost in DPO runs, Spearman with full, win rates of ULNM-WR against DPO and against full ULNM-WR")
    once = full.flops(f"policy[dpo@{SEED}]")
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
        rate: Any = compare(ours, theirs, Resamples.draw(len(ours.scores), SEED)).to_dict()["win_rate"]
        rates.append(f"{rate['value']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]")
    return " and ".join(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", type=Path)
    store = parser.parse_args().store
    full = Finished(store, MAIN)
    price_of_pilots(full, store)


if __name__ == "__main__":
    main()
