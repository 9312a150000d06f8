"""Real pairs and a real model, with noise whose truth is known, because we add it.

    python -m benchmarks.noise run MODEL DATA FOLDER [--seeds N] [--first N] [--minutes M]    to FOLDER/noise.jsonl
    python -m benchmarks.noise table FILE…

Labels of a prompt are turned around at a rate r, and strengths drawn anew at twice that rate. r depends on where the
prompt comes from, on how long it is, or on nothing that can be known; in three spreads. Does the check find it, is q̂
near q*, and which policy orders the *clean* pairs of prompts that nobody was trained on? MODEL is a folder; DATA a
folder with arena-bench-v1, ultrafeedback-train, ultrafeedback-eval and pandalm-v1, all .jsonl.gz.
"""

import argparse
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logit
from scipy.stats import spearmanr
from scipy.stats import t as students_t

from unmdpo.core.files import write_lines
from unmdpo.data import Comparison, PairRule, load_comparisons

FILES = {
    "arena": ["arena-bench-v1"],
    "feedback": ["ultrafeedback-train", "ultrafeedback-eval"],
    "votes": ["pandalm-v1"],
}
KINDS = ("source", "length", "unknowable")
NONE = ("source", "none")  # the pairs as they are
SPREADS = {  # rates of quiet and of noisy prompts
    "none": (0.0, 0.0),
    "small": (0.10, 0.20),
    "medium": (0.05, 0.30),
    "large": (0.0, 0.45),
}
OWN = 0.15  # about how many labels are wrong before we touch them
HELD_OUT, LENGTH = 0.2, 1024
LEARNED, ONE, TRUE = "ulnm-wr, q̂", "ulnm-wr, q ≡ 1", "ulnm-wr, q*"
POLICIES = {"dpo": "DPO", "cdpo": "cDPO", "robust": "robust DPO", "one": ONE, "learned": LEARNED, "true": TRUE}


def read(data: Path) -> list[Comparison]:
    rows = []
    for source, names in FILES.items():
        pairing = PairRule(pairs="all", min_gap=1, most=6) if source == "arena" else PairRule()
        for name in names:
            found = load_comparisons(str(data / f"{name}.jsonl.gz"), split="all", pairing=pairing)
            rows += [replace(row, domain=source) for row in found]
    return rows


def rates(kind: str, spread: str, rows: Sequence[Comparison], random: np.random.Generator) -> dict[str, float]:
    """The share of labels to turn around, by prompt."""
    quiet, noisy = SPREADS[spread]
    firsts = {row.prompt_hash: row for row in rows}
    words = {name: len(row.prompt[-1].content.split()) for name, row in firsts.items()}
    typical = {
        source: np.median([words[name] for name, row in firsts.items() if row.domain == source]) for source in FILES
    }
    if kind == "source":
        by_source = dict(zip(FILES, (quiet, noisy, (quiet + noisy) / 2), strict=True))
        return {name: by_source[row.domain] for name, row in firsts.items()}
    if kind == "length":
        return {name: noisy if words[name] > typical[row.domain] else quiet for name, row in firsts.items()}
    return {name: noisy if random.random() < 0.5 else quiet for name in firsts}


def noised(row: Comparison, rate: float, random: np.random.Generator) -> Comparison:
    turned, drawn = random.random(2)
    chosen, rejected = (row.rejected, row.chosen) if turned < rate else (row.chosen, row.rejected)
    strength = int(random.integers(1, 4)) if drawn < 2 * rate else row.strength
    return replace(row, chosen=chosen, rejected=rejected, strength=strength)


def true_scale(rate: float) -> float:
    """q* of logistic noise that turns so many labels around, besides those that are wrong already."""
    return float(1 / logit(1 - (OWN + (1 - 2 * OWN) * rate)))


def recipe(model: str, folder: Path, seed: int, flips: float) -> dict[str, Any]:
    return {
        "name": "noise", "seed": seed, "model": {"path": model},
        "data": {"path": str(folder / "train.jsonl"), "max_length": LENGTH},
        "training": {"epochs": 1, "batch": 32, "learning_rate": 5e-5, "warmup": 10},
        "pilots": {"folds": 3, "epochs": 1, "objective": "fixed-margin"},
        "scales": {
            "hat": {"estimator": "pooled", "fit": "wr", "length_normalized": True},
            "one": {"estimator": "constant"},
            "star": {"estimator": "given", "settings": {"path": str(folder / "true.jsonl")}},
        },
        "policies": {
            "dpo": {"objective": "dpo"},
            "cdpo": {"objective": "cdpo", "settings": {"flips": flips}},
            "robust": {"objective": "robust-dpo", "settings": {"flips": flips}},
            "one": {"objective": "ulnm-wr", "scale": "one"},
            "learned": {"objective": "ulnm-wr", "scale": "hat"},
            "true": {"objective": "ulnm-wr", "scale": "star"},
        },
    }  # fmt: skip


def one_world(model: str, data: Path, folder: Path, kind: str, spread: str, seed: int) -> dict[str, Any]:
    import unmdpo  # noqa: PLC0415 - `table` needs no torch

    began, random = time.time(), np.random.default_rng([KINDS.index(kind), list(SPREADS).index(spread), seed])
    rows = read(data)
    names = sorted({row.prompt_hash for row in rows})
    held_out = set(np.random.default_rng(seed).choice(names, int(HELD_OUT * len(names)), replace=False))
    train = [row for row in rows if row.prompt_hash not in held_out]
    rate = rates(kind, spread, train, random)
    flips = float(np.mean([rate[row.prompt_hash] for row in train]))
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "train.jsonl", (as_row(noised(row, rate[row.prompt_hash], random)) for row in train))
    true = {row.prompt_hash: (row.prompt[-1].content, true_scale(rate[row.prompt_hash])) for row in train}
    write_lines(folder / "true.jsonl", ({"prompt": text, "q": q} for text, q in true.values()))
    run = unmdpo.run(recipe(model, folder, seed, flips), store=folder / "store", jobs=None)
    check, table = run.check("hat"), run.scale("hat").known()
    assert check is not None
    q_hat = dict(zip(table["prompt_hash"].to_pylist(), table["q"].to_pylist(), strict=True))
    clean = [row for row in rows if row.prompt_hash in held_out]
    return {
        "kind": kind, "spread": spread, "seed": seed, "pairs": len(train), "flipped": round(flips, 3),
        "sd_log_q*": round(float(np.std([np.log(q) for _, q in true.values()])), 3),
        "q_hat": {name: round(q, 4) for name, q in q_hat.items()},
        "q*": {name: round(q, 4) for name, (_, q) in true.items()},
        "chance": check.chance, "gain": check.gain._asdict(), "finding": check.finding,
        "right": right(model, {name: run.policy(name) for name in POLICIES}, clean),
        "seconds": round(time.time() - began, 1),
    }  # fmt: skip


def as_row(row: Comparison) -> dict[str, Any]:
    return {
        "prompt": row.prompt[-1].content, "chosen": row.chosen, "rejected": row.rejected,
        "strength": row.strength, "domain": row.domain,
    }  # fmt: skip


def right(model: str, policies: dict[str, Path], clean: Sequence[Comparison]) -> dict[str, list[int]]:
    """Which pairs each policy orders as their own labels do, by the reward that it was trained with."""
    from benchmarks.held_out import margins  # noqa: PLC0415 - `table` needs no torch

    normalized = {"one", "learned", "true"}
    found = margins(model, policies, normalized, clean, LENGTH)
    return {name: [int(margin > 0) for margin in some] for name, some in found.items()}


def run_all(model: str, data: Path, folder: Path, seeds: Sequence[int], minutes: float) -> None:
    """Every world in turn, seed by seed, until the time is up; goes on where it stopped."""
    ends, log = time.time() + 60 * minutes, folder / "noise.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    done = {(line["kind"], line["spread"], line["seed"]) for line in lines([log])} if log.exists() else set()
    grid = [NONE, *((kind, spread) for kind in KINDS for spread in SPREADS if spread != "none")]
    for world in ((*which, seed) for seed in seeds for which in grid):
        if world in done or time.time() > ends:
            continue
        found = one_world(model, data.resolve(), (folder / "world").resolve(), *world)
        with log.open("a") as file:
            file.write(json.dumps(found) + "\n")
        shown = {key: value for key, value in found.items() if key not in ("right", "q_hat", "q*")}
        print(json.dumps(shown | {name: np.mean(some).round(4) for name, some in found["right"].items()}), flush=True)
        for part in ("artifacts", "runs"):  # a world's policies take gigabytes; what is known of the model stays
            shutil.rmtree(folder / "world" / "store" / part)


def lines(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for file in files for line in file.read_text().splitlines())


def table(files: Sequence[Path]) -> None:
    """Accuracy in points, and differences with Student's intervals over worlds: each has its own noise and split."""
    worlds, every = defaultdict[tuple[str, str], list[dict[str, Any]]](list), list(lines(files))
    clean = {line["seed"]: line["q_hat"] for line in every if line["spread"] == "none" and "q_hat" in line}
    for line in every:
        line["near"] = near(line, clean.get(line["seed"]))
        for group in ((line["kind"], line["spread"]), (line["kind"], "all"), ("all", line["spread"]), ("all", "all")):
            worlds[group].append(line)
    for (kind, spread), found in sorted(worlds.items()):
        percent = {name: 100 * np.array([np.mean(one["right"][name]) for one in found]) for name in POLICIES}
        cells = [f"{kind}, {spread} ({len(found)} worlds)", f"sd {np.mean([one['sd_log_q*'] for one in found]):.2f}"]
        cells += [f"ρ {np.mean([one['near'] for one in found]):.2f}"]
        cells += [f"informative {sum(one['chance'] <= 0.05 for one in found)}"]
        cells += [f"better {sum(one['gain']['value'] > 1.96 * one['gain']['error'] for one in found)}"]
        cells += [f"{POLICIES[name]} {values.mean():.1f}" for name, values in percent.items()]
        pairs = (("true", "one"), ("learned", "one"), ("one", "dpo"), ("robust", "dpo"), ("cdpo", "dpo"))
        cells += [f"{a} − {b} {_mean(percent[a] - percent[b])}" for a, b in pairs]
        print(" | ".join(cells))


def near(world: dict[str, Any], clean: dict[str, float] | None) -> float:
    """How what the noise has changed in q̂ goes with q*: pairs differ between prompts before anyone adds noise."""
    if clean is None or "q_hat" not in world or world["spread"] == "none":
        return float("nan")
    names = world["q_hat"].keys() & clean.keys()
    change = [np.log(world["q_hat"][name] / clean[name]) for name in names]
    return float(spearmanr(change, [world["q*"][name] for name in names]).statistic)


def _mean(values: np.ndarray) -> str:
    if len(values) < 2:
        return f"{values.mean():+.1f}"
    half = students_t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.1f} [{values.mean() - half:+.1f}, {values.mean() + half:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["run", "table"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--minutes", type=float, default=600, help="begin no other world after this time")
    given = parser.parse_args()
    if given.command == "table":
        table(given.paths)
    else:
        model, data, folder = given.paths
        run_all(str(model.resolve()), data, folder, range(given.first, given.seeds), given.minutes)


if __name__ == "__main__":
    main()
