"""Does q̂ differ between prompts by more than chance? A permutation test on a finished run's pilots.

    python -m benchmarks.chance STORE RUN SCALE [--times 200]

RUN is a folder in STORE/runs. The scale is fitted again as its recipe says, then many times with the features shuffled
between prompts: what remains of the fit is what a head finds in noise. There are two statistics: the loss of the fit
itself, and the loss of predictions for prompts that a cross-fitted head has not seen.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn.functional import softplus

from unmdpo.scale import Rows, Units, make_estimator
from unmdpo.scale.base import FrozenScale
from unmdpo.scale.features import count_sketch
from unmdpo.stages.shared.files import COMPARISONS, EMBEDDINGS, EVIDENCE, PROMPTS
from unmdpo.stages.shared.units import PromptIndex, strengths
from unmdpo.store.artifact import Artifact


def wr_loss(q: Tensor, rows: Rows) -> float:
    """Mean ζ((k − B)/q) over valid rows (Eq. global-wr-scale-fit, τ = 1)."""
    loss = softplus((rows.strength - rows.evidence) / q[rows.unit])
    return float(loss[rows.mask].mean())


def fitted(name: str, units: Units, rows: Rows) -> float:
    estimator = make_estimator(name, {"placement": "wr"})
    assert isinstance(estimator, FrozenScale)
    estimator.fit(units, rows)
    return wr_loss(estimator.q_, rows)


def read(store: Path, run: str, scale: str) -> tuple[Units, Rows]:
    stages = json.loads((store / "runs" / run / "run.json").read_text("utf-8"))["stages"]
    recipe: dict[str, Any] = yaml.safe_load((store / "runs" / run / "recipe.yaml").read_text("utf-8"))

    def artifact(stage: str) -> Artifact:
        return Artifact(store / "artifacts" / str(stages[stage]["place"]))

    rows = COMPARISONS.load(artifact("comparisons"))
    index, evidence = PromptIndex.of(rows), EVIDENCE.load(artifact("oof"))
    places = {name: place for place, name in enumerate(PROMPTS.load(artifact("features")))}
    pilots, of = recipe["pilots"], [places[name] for name in index.hashes]
    units = Units(
        count_sketch(EMBEDDINGS.load(artifact("features"))[of]),
        index.domains(rows, rows),
        index.folds(pilots["folds"], pilots["fold_seed"]),
    )
    values = evidence.of(recipe["scales"][scale]["length_normalized"])
    return units, Rows(index.of_row, values, strengths(rows), valid=evidence.valid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("run")
    parser.add_argument("scale")
    parser.add_argument("--times", type=int, default=200)
    given = parser.parse_args()
    units, rows = read(given.store, given.run, given.scale)
    print(f"q ≡ 1: {wr_loss(torch.ones(len(units)), rows):.4f}")
    for name in ("pooled", "cross-fitted"):
        rng, own = torch.Generator().manual_seed(0), fitted(name, units, rows)
        by_chance = []
        for _ in range(given.times):
            shuffled = units.features[torch.randperm(len(units), generator=rng)]
            by_chance.append(fitted(name, Units(shuffled, units.domains, units.folds), rows))
        as_low = sum(loss <= own for loss in by_chance)
        print(
            f"{name}: {own:.4f}; by chance {sum(by_chance) / len(by_chance):.4f} "
            f"({min(by_chance):.4f} to {max(by_chance):.4f}); p = {(1 + as_low) / (1 + len(by_chance)):.4f}"
        )


if __name__ == "__main__":
    main()
