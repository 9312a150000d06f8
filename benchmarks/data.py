"""How fast data is loaded as comparisons, and how fast both audits run, at HelpSteer3's size.

    python -m benchmarks.data [--rows 38459] [--file PATH]

Writes a synthetic file of HelpSteer3's shape (about 700 MB of random words, a fifth of them in other scripts, with
repeated prompts and duplicate rows in the real proportions), then measures the wall time and peak memory of each job
in a separate process.
"""

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from unmdpo.audit import audit_strength, audit_support
from unmdpo.data import fold_of, load_comparisons, rows_of
from unmdpo.data.domains import modal_domains

DOMAINS = {"general": 0.45, "stem": 0.12, "code": 0.22, "multilingual": 0.21}


def words(rng: random.Random, alphabet: str, count: int) -> str:
    pool = ["".join(rng.choices(alphabet, k=rng.randint(2, 9))) for _ in range(60)]
    return " ".join(rng.choices(pool, k=count))


def row(rng: random.Random, size: float) -> dict[str, object]:
    domain = rng.choices(list(DOMAINS), list(DOMAINS.values()))[0]
    alphabet = "的一是不了人我在有他这" if domain == "multilingual" else "etaoinshrdlucmfwyp"
    length = int(size * rng.lognormvariate(0, 0.6))
    turns = 2 * rng.choice([0, 0, 0, 1, 2]) + 1
    roles = ["user", "assistant"]
    label = rng.choice([-3, -2, -2, -1, -1, 0, 1, 1, 2, 2, 3])
    votes = [max(-3, min(3, (label or 1) + rng.choice([-1, 0, 0, 1]))) or 1 for _ in range(3)]
    return {
        "domain": domain,
        "language": "chinese" if domain == "multilingual" else "english",
        "context": [{"role": roles[i % 2], "content": words(rng, alphabet, length // turns)} for i in range(turns)],
        "response1": words(rng, alphabet, length),
        "response2": words(rng, alphabet, length),
        "overall_preference": label,
        "individual_preference": [
            {
                "score": vote,
                "reasoning": words(rng, alphabet, 40),
                "feedback1": words(rng, alphabet, 60),
                "feedback2": words(rng, alphabet, 60),
            }
            for vote in votes
        ],
    }


def write_rows(path: Path, rows: int, size: float = 480.0) -> None:
    """Writes rows, three in eight of which repeat an earlier one, as in the released training file."""
    rng, recent = random.Random(0), list[str]()
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            if recent and rng.random() < 0.375:
                file.write(rng.choice(recent))
                continue
            line = json.dumps(row(rng, size), ensure_ascii=False) + "\n"
            recent = [*recent[-200:], line]
            file.write(line)


def load(path: str) -> None:
    data = load_comparisons(path, source="helpsteer3")
    folds = {comparison.prompt_hash: fold_of(comparison.prompt_hash) for comparison in data}
    domains = modal_domains(data)
    print(f"  {len(data):,} comparisons, {len(folds):,} prompts, {len(set(domains.values()))} domains")


def support(path: str) -> None:
    print(f"  {audit_support(load_comparisons(path, source='helpsteer3')).prompts_identified} identified")


def strength(path: str) -> None:
    audit = audit_strength(rows_of(path, split="all", source="helpsteer3"))
    print(f"  {audit.train.votes + audit.development.votes:,} held-out votes")


def measured(name: str, job: Callable[[str], None], path: str) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_timed, args=(name, job, path))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{name} failed")


def _timed(name: str, job: Callable[[str], None], path: str) -> None:
    started = time.perf_counter()
    job(path)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: {seconds:.1f} s, {peak:.2f} GiB peak", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=38_459)
    parser.add_argument("--file", type=Path, help="reuse or create this file instead of a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or Path(folder) / "train.jsonl"
        if not path.exists():
            write_rows(path, arguments.rows)
        print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB")
        for name, job in (("comparisons", load), ("audit support", support), ("audit strength", strength)):
            measured(name, job, str(path))


if __name__ == "__main__":
    main()
