"""Strengths cut into three levels against the numbers that they were cut from, on real scores and a real model.

    python -m benchmarks.strengths MODEL DATA FOLDER

MODEL is a folder; DATA a folder with ultrafeedback-train, ultrafeedback-eval and arena-bench-v1, all .jsonl.gz. The
same pairs, split by prompt: policies learn from three quarters, with three seeds, and order the rest. Once τ is 1, so
that a margin is the difference of scores itself; once the mean margin is that of the levels. Prints JSON lines.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.held_out import fitting, margins
from unmdpo.core.files import write_lines
from unmdpo.data import Comparison, PairRule, load_comparisons
from unmdpo.data.strength import StrengthRule

FILES = {"feedback": ["ultrafeedback-train", "ultrafeedback-eval"], "arena": ["arena-bench-v1"]}
EPOCHS = {"feedback": 2, "arena": 1}
OBJECTIVES = {"fixed-margin": {"objective": "fixed-margin"}, "ulnm": {"objective": "ulnm-wr", "scale": "one"}}
SEEDS = [42, 17, 7]
LENGTH, HELD_OUT, DRAWS = 1024, 0.25, 400


def read(data: Path, which: str) -> list[Comparison]:
    """With the difference of scores as the strength."""
    pairing = {"pairing": PairRule(pairs="all", min_gap=0.25, most=10)} if which == "arena" else {}
    settings = {"split": "all", "strength": StrengthRule(continuous=True), **pairing}
    return [row for name in FILES[which] for row in load_comparisons(str(data / f"{name}.jsonl.gz"), **settings)]


def recipe(model: str, train: Path, epochs: int, policies: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": train.stem,
        "model": {"path": model},
        "data": {"path": str(train), "max_length": LENGTH, "strength": {"column": "strength", "continuous": True}},
        "training": {"epochs": epochs, "batch": 32, "learning_rate": 5e-5, "warmup": 10},
        "scales": {"one": {"estimator": "constant"}},
        "policies": {name: {**policy, "seeds": SEEDS} for name, policy in policies.items()},
    }


def trained(model: str, folder: Path, name: str, rows: Sequence[Comparison], epochs: int, **policies: Any) -> Any:
    import unmdpo  # noqa: PLC0415

    train = folder / f"{name}.jsonl"
    texts = ({"prompt": r.prompt[-1].content, "chosen": r.chosen, "rejected": r.rejected} for r in rows)
    write_lines(train, ({**text, "strength": row.strength} for text, row in zip(texts, rows, strict=True)))
    return unmdpo.run(recipe(model, train, epochs, policies), store=folder / "store", jobs=None)


def compared(model: str, data: Path, folder: Path, which: str) -> None:
    """Trains on both, and prints how each orders the other prompts' pairs, and with what distances."""
    scores = fitting(model, read(data, which), LENGTH)
    cut = list(StrengthRule().graded([replace(row, margin=row.strength) for row in scores]))
    names = sorted({row.prompt_hash for row in scores})
    held_out = set(np.random.default_rng(0).choice(names, int(HELD_OUT * len(names)), replace=False))
    kept = [place for place, row in enumerate(scores) if row.prompt_hash not in held_out]
    tau = float(np.mean([cut[i].strength for i in kept]) / np.mean([scores[i].strength for i in kept]))
    scaled = {f"{name}, scaled": {**one, "settings": {"tau": tau}} for name, one in OBJECTIVES.items()}
    found = {
        "cut": trained(model, folder, f"{which}-cut", [cut[i] for i in kept], EPOCHS[which],
                       dpo={"objective": "dpo"}, **OBJECTIVES),
        "continuous": trained(model, folder, f"{which}-continuous", [scores[i] for i in kept], EPOCHS[which],
                              **OBJECTIVES, **{name.replace(", ", "-"): one for name, one in scaled.items()}),
    }  # fmt: skip
    policies = {
        f"{rule}/{policy}@{seed}": run.policy(f"{policy}@{seed}")
        for rule, run in found.items()
        for policy in run.recipe.policies
        for seed in SEEDS
    }
    clean = [row for row in scores if row.prompt_hash in held_out]
    normalized = [name for name in policies if "/ulnm" in name]
    ordered = margins(model, policies, normalized, clean, LENGTH)
    shape = {"data": which, "train": len(kept), "held_out": len(clean), "prompts": len(held_out), "tau": round(tau, 3)}
    for name in dict.fromkeys(one.split("@")[0] for one in policies):
        baseline = f"cut/{name.split('/')[1].removesuffix('-scaled')}"
        mine, theirs = (np.array([ordered[f"{one}@{seed}"] for seed in SEEDS]) for one in (name, baseline))
        print(json.dumps(shape | {"policy": name} | figures(mine, theirs, clean)), flush=True)


def figures(mine: np.ndarray, theirs: np.ndarray, rows: Sequence[Comparison]) -> dict[str, Any]:
    """Means over seeds, and the differences to the same objective on levels, with 95 % intervals: prompts are drawn
    anew, seeds are not. Margins are (seeds, rows)."""
    scores, prompts = np.array([row.strength for row in rows]), [row.prompt_hash for row in rows]
    places = {name: np.array([i for i, one in enumerate(prompts) if one == name]) for name in dict.fromkeys(prompts)}
    groups, random = list(places.values()), np.random.default_rng(0)

    def both(which: np.ndarray) -> np.ndarray:  # (mine or theirs, accuracy in points or rank correlation)
        return np.array([
            [100 * (some[:, which] > 0).mean(), np.mean([spearmanr(one[which], scores[which])[0] for one in some])]
            for some in (mine, theirs)
        ])  # fmt: skip

    whole = both(np.arange(len(rows)))
    drawn = [np.concatenate([groups[i] for i in random.integers(len(groups), size=len(groups))]) for _ in range(DRAWS)]
    changes = np.array([np.subtract(*both(which)) for which in drawn])  # (draws, 2)
    line: dict[str, Any] = {"seeds": [round(100 * float((one > 0).mean()), 1) for one in mine]}
    for place, name in enumerate(("accuracy", "rank_correlation")):
        low, high = np.percentile(changes[:, place], [2.5, 97.5])
        line[name] = round(float(whole[0, place]), 3)
        line[f"{name}_change"] = [round(float(value), 3) for value in (whole[0, place] - whole[1, place], low, high)]
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for which in FILES:
        compared(str(given.model.resolve()), given.data.resolve(), given.folder.resolve(), which)


if __name__ == "__main__":
    main()
