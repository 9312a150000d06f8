"""The lab's experiments: vary one knob of a world with known noise, with several seeds, and plot the results.

python -m benchmarks.lab                                       lists the experiments
python -m benchmarks.lab noise --seeds 8 --folder unmdpo-lab   runs one
python -m benchmarks.lab build FOLDER                          trains the demo's model again, from scratch
"""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.lab.charts import write_sweep
from benchmarks.lab.reference import UPDATES, build
from benchmarks.lab.sweep import sweep
from benchmarks.lab.table import EXPERIMENTS, experiment
from unmdpo.core.errors import UserError
from unmdpo.core.processes import cores, let_threads_sleep

JOBS_PER_GPU = 8  # its models are tiny


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(name: str, seeds: int, folder: Path, jobs: int) -> None:
    chosen = experiment(name)
    print(chosen.question)
    results = []
    for result in sweep(chosen, folder, range(seeds), jobs, report=report):
        results.append(result)
        value, low, high = result.estimate.value, result.estimate.low, result.estimate.high
        print(
            f"{result.point.label}\t{result.chart}\t{result.series}\t{value:.3f} [{low:.3f}, {high:.3f}]", flush=True
        )
    for path in write_sweep(chosen, name, results, folder):
        print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", help="an experiment, or build")
    parser.add_argument("out", nargs="?", type=Path, help="with build: a folder that does not exist yet")
    parser.add_argument("--seeds", type=int, default=3, help="each for its own world and training")
    parser.add_argument("--folder", type=Path, default=Path("unmdpo-lab"), help="for runs, numbers and figures")
    parser.add_argument("--jobs", type=int, help="runs at once; default: one on each core, or eight on each GPU")
    parser.add_argument("--updates", type=int, default=UPDATES, help="with build")
    given = parser.parse_args()
    let_threads_sleep()
    if given.what is None:
        for name, known in EXPERIMENTS.items():
            print(f"{name:18}{known.question}")
    elif given.what == "build":
        if given.out is None or given.out.exists():
            parser.error("build needs a folder that does not exist yet")
        build(given.out, given.updates, report)
    else:
        try:
            run(
                given.what,
                given.seeds,
                given.folder,
                given.jobs or JOBS_PER_GPU * torch.cuda.device_count() or cores(),
            )
        except UserError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
