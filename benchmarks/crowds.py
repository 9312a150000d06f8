"""Time and memory where there is much of one thing: comparisons of a single prompt, and results in one store.

    python -m benchmarks.crowds [--comparisons 6000 60000] [--artifacts 500 5000]

Prints one line for each measurement, each in a process of its own. Exits with an error if time per comparison or per
result grows by more than a factor of 1.5 from the smallest to the largest number, or if 2 GiB are not enough.
"""

import argparse
import json
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unmdpo.audit.support import audit_support
from unmdpo.data import load_comparisons
from unmdpo.execute import execute
from unmdpo.lab.demo import WORLD, demo_recipe
from unmdpo.results.run import open_run
from unmdpo.results.verify import verify
from unmdpo.store.runs import runs_of, unused
from unmdpo.store.store import Store

GROWTH, MEMORY = 1.5, 2.0  # of the time for each; GiB
UNTIL = "encoded"


def write_comparisons(folder: Path, count: int) -> None:
    """All of one prompt, between some hundreds of responses."""
    rng = random.Random(0)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(count):
            first, second = rng.sample(range(400), 2)
            row = {"prompt": "Which?", "chosen": f"answer {first}", "rejected": f"answer {second}"}
            file.write(json.dumps(row | {"strength": rng.randint(1, 3)}) + "\n")


def fill(folder: Path, count: int) -> None:
    """A small finished run, and as many other results as make up `count`, with records of runs that name them."""
    run, store = execute(_opened(folder), until=UNTIL), folder / "store"
    there = [artifact.path for artifact in run.finished.values()]
    small = min(there, key=lambda path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    for place in range(count - len(there)):
        name = f"{place:032x}"
        shutil.copytree(small, small.with_name(name))
        if place % 50 == 0:
            record = store / "runs" / f"other-{place:012x}" / "run.json"
            record.parent.mkdir(parents=True)
            stages = {str(other): {"place": f"{small.parent.name}/{other:032x}", "inputs": {}} for other in range(50)}
            record.write_text(json.dumps({"recipe": "", "stages": stages}), "utf-8")


def _opened(folder: Path) -> Any:
    return open_run(demo_recipe(folder / "world", WORLD, []), Store(folder / "store"))


OF_A_PROMPT: dict[str, Callable[[Path], object]] = {
    "read": lambda folder: load_comparisons(str(folder / "pairs.jsonl")),
    "audit support": lambda folder: audit_support(load_comparisons(str(folder / "pairs.jsonl"))),
}
OF_A_STORE: dict[str, Callable[[Path], object]] = {
    "run again": lambda folder: execute(_opened(folder), until=UNTIL),
    "verify": lambda folder: list(verify(_opened(folder))),
    "unused": lambda folder: unused(Store(folder / "store")),
    "runs": lambda folder: [run.size for run in runs_of(Store(folder / "store"))],
}


def measured(what: Callable[[Path], object], folder: Path) -> tuple[float, float]:
    """Seconds and GiB, in a separate process."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def work() -> None:
        started = time.perf_counter()
        what(folder)
        results.put((time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))

    process = context.Process(target=work)
    process.start()
    found: tuple[float, float] = results.get(timeout=1800)
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--comparisons", type=int, nargs="+", default=[6_000, 60_000])
    parser.add_argument("--artifacts", type=int, nargs="+", default=[500, 5_000])
    given = parser.parse_args()
    problems = [
        *grown("comparisons of a prompt", given.comparisons, write_comparisons, OF_A_PROMPT),
        *grown("results in a store", given.artifacts, fill, OF_A_STORE),
    ]
    sys.exit("\n".join(problems) or None)


def grown(
    kind: str, counts: list[int], prepare: Callable[[Path, int], None], measures: dict[str, Callable[[Path], object]]
) -> list[str]:
    """Measures at every count; returns what takes too long, or too much memory."""
    found: dict[tuple[int, str], float] = {}
    problems = []
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name), count)
            for what, do in measures.items():
                found[count, what], memory = measured(do, Path(name))
                line = {kind: count, "what": what, "seconds": round(found[count, what], 2), "GiB": round(memory, 2)}
                print(json.dumps(line), flush=True)
                problems += [f"{what}: {memory:.2f} GiB"] if memory > MEMORY else []
    few, many = min(counts), max(counts)
    for what in measures:
        growth = (found[many, what] / many) / (found[few, what] / few)
        if growth > GROWTH:
            problems.append(f"{what}: each takes {growth:.2f} times as long with {many:,} as with {few:,}")
    return problems


if __name__ == "__main__":
    main()
