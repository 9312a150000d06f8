"""Time and memory of every stage that needs no GPU, at 4,000 and at 40,000 comparisons.

    python -m benchmarks.load [--rows 4000 40000] [--size 120]

Model outputs (log-probabilities, embeddings, answers) are random; the stages that read them are the real ones, each in
a separate process. Prints one line per stage: seconds, microseconds per row, peak memory; then the same for the report
and the verification of a run of twelve policies on 800 prompts. Exits with an error if the time per row grows by more
than a factor of 1.3 from the smallest to the largest number of rows, or if 2 GiB are not enough.
"""

import argparse
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.data import write_rows
from unmdpo.core.files import write_lines
from unmdpo.lab import model_folder
from unmdpo.recipe import Recipe
from unmdpo.report.page import write_report
from unmdpo.results.run import Run, open_run
from unmdpo.results.verify import verify
from unmdpo.stages.shared.base import Stage
from unmdpo.stages.shared.files import (
    COMPARISONS,
    EMBEDDINGS,
    GENERATIONS,
    HELD_OUT,
    METRICS,
    PROMPTS,
    REFERENCE,
    HeldOut,
)
from unmdpo.stages.shared.units import PromptIndex
from unmdpo.store.store import Store

POLICIES, WIDTH, UPDATES = 12, 2048, 150
GROWTH, MEMORY = 1.3, 2.0  # of the time per row; GiB


def longest(prompts: list[Any], responses: list[str]) -> list[float]:
    """A judge that prefers long responses."""
    return [float(len(text)) for text in responses]


def recipe(folder: Path, panel: int) -> Recipe:
    names = ["dpo", *(f"wr-{number}" for number in range(1, POLICIES))]
    described = {
        "name": "load",
        "model": {"path": str(model_folder())},
        "data": {"source": "helpsteer3", "path": str(folder / "train.jsonl"), "validation": {"fraction": 0.1}},
        "scales": {
            "seq": {"estimator": "pooled"},
            "pairs": {"estimator": "cross-fitted", "unit": "pair"},
            "entropy": {"estimator": "entropy", "settings": {"otherwise": "one"}},  # random votes predict nothing
        },
        "policies": {
            name: {"objective": "dpo"} if name == "dpo" else {"objective": "unm-wr", "scale": "seq"} for name in names
        },
        "evaluation": {
            "baseline": "dpo",
            "panels": {"panel": {"size": panel, "seed": 1}},
            "judge": {"function": "benchmarks.load:longest"},
        },
    }
    for number, name in enumerate(names[1:]):  # different seeds, so answers differ
        described["policies"][name]["training"] = {"seed": number}  # type: ignore[index]
    return Recipe.model_validate(described)


# --- What a GPU would have produced -----------------------------------------------------------------------


def _reference(run: Run, stage: Stage, folder: Path, rng: torch.Generator) -> None:
    count = run.artifact("encoded").manifest["notes"]["pairs"]
    REFERENCE.save(folder, -100 - 10 * torch.randn(count, 2, generator=rng))


def _features(run: Run, stage: Stage, folder: Path, rng: torch.Generator) -> None:
    rows = COMPARISONS.load(run.artifact("comparisons"))
    hashes = PromptIndex.of(rows).hashes
    EMBEDDINGS.save(folder, torch.randn(len(hashes), WIDTH, generator=rng))
    PROMPTS.save(folder, hashes)


def _pilot(run: Run, stage: Stage, folder: Path, rng: torch.Generator) -> None:
    comparisons = COMPARISONS.load(run.artifact("comparisons"))
    index = PromptIndex.of(comparisons)
    folds = index.folds(stage.settings.folds, stage.settings.fold_seed)[index.of_row]
    rows = (folds == stage.settings.fold).nonzero().flatten()
    HELD_OUT.save(folder, HeldOut(rows, -100 - 10 * torch.randn(len(rows), 2, generator=rng)))


def _policy(run: Run, stage: Stage, folder: Path, rng: torch.Generator) -> None:
    rows = ({"update": n, "loss": 0.7 - n / 1000, "rewards/accuracies": 0.5} for n in range(UPDATES))
    write_lines(folder / METRICS.name, rows)


def _generation(run: Run, stage: Stage, folder: Path, rng: torch.Generator) -> None:
    words = random.Random(stage.key)
    rows = [
        {"prompt_hash": name, "prompt": n, "text": "word " * words.randint(50, 500), "tokens": 9, "finished": True}
        for n, name in enumerate(run.panel("panel").hashes)
    ]
    GENERATIONS.save(folder, rows)


PRETENDED: dict[str, Callable[[Run, Stage, Path, torch.Generator], None]] = {
    "reference": _reference,
    "features": _features,
    "pilot": _pilot,
    "policy": _policy,
    "generation": _generation,
}


def pretend(run: Run, stage: Stage) -> None:
    def work(folder: Path) -> dict[str, Any]:
        PRETENDED[stage.kind.name](run, stage, folder, torch.Generator().manual_seed(len(stage.name)))
        return {}

    run.store.make(stage.place, run.manifest(stage, run.inputs_of(stage)), work)


# --- Measuring ----------------------------------------------------------------------------------------


def measure(folder: Path, panel: int, what: str) -> tuple[float, float]:
    """Seconds and GiB of a stage, the report or the verification, measured in a separate process."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measured, args=(folder, panel, what, results))
    process.start()
    seconds_and_memory: tuple[float, float] = results.get(timeout=1800)
    process.join()
    return seconds_and_memory


def _measured(folder: Path, panel: int, what: str, results: Any) -> None:
    run = open_run(recipe(folder, panel), Store(folder / "store"))
    started = time.perf_counter()
    if what == "report":
        write_report(run, folder / "report.html")
    elif what == "verify":
        problems = [finding for finding in verify(run) if finding.problem]
        assert not problems, problems[:3]
    else:
        run.make(run.stages[what], lambda text: None)
    seconds = time.perf_counter() - started
    results.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def at(rows: int, size: float) -> dict[str, tuple[float, float]]:
    """Stage → seconds and GiB."""
    measured: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, panel = Path(name), min(800, rows // 20)
        write_rows(folder / "train.jsonl", rows, size)
        run = open_run(recipe(folder, panel), Store(folder / "store"))
        run.store.prepare()
        run.record()
        for stage in run.stages.values():
            if stage.kind.name in PRETENDED:
                pretend(run, stage)
            elif stage.kind.name != "judgement" or stage.name == "judgement[dpo,panel]":
                measured[stage.name] = measure(folder, panel, stage.name)
            else:
                run.make(stage, lambda text: None)
        for what in ("report", "verify"):
            measured[what] = measure(folder, panel, what)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[4_000, 40_000])
    parser.add_argument("--size", type=float, default=120.0, help="approximate number of words in a response")
    given = parser.parse_args()
    measured = {}
    for rows in given.rows:
        measured[rows] = at(rows, given.size)
        for stage, (seconds, memory) in measured[rows].items():
            line = {"rows": rows, "stage": stage, "seconds": round(seconds, 3)}
            print(
                json.dumps(line | {"us_per_row": round(1e6 * seconds / rows, 1), "GiB": round(memory, 2)}), flush=True
            )
    sys.exit("\n".join(beyond_bounds(measured)) or None)


def beyond_bounds(measured: dict[int, dict[str, tuple[float, float]]]) -> list[str]:
    """One line for each stage that slows down with the number of rows or takes too much memory."""
    few, many = min(measured), max(measured)
    problems = []
    for stage, (seconds, memory) in measured[many].items():
        growth = (seconds / many) / (measured[few][stage][0] / few)
        if growth > GROWTH:
            problems.append(f"{stage}: each row takes {growth:.2f} times as long at {many:,} rows as at {few:,}")
        if memory > MEMORY:
            problems.append(f"{stage}: {memory:.2f} GiB of memory, more than {MEMORY:g}")
    return problems


if __name__ == "__main__":
    main()
