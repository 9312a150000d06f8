"""Plants one-line mistakes in a copy of the code, one at a time, and counts those that tests notice.

    python -m tests.mistakes [--room ROOM] [--only NUMBER …] [--seconds 300]

The mistakes are in tests/mistakes.yaml: a file, what it says, what it should not say instead, and the tests that have
to notice. Prints a line for each, and in the end how many were noticed in each room.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/unmdpo")


def planted(copy: Path, mistake: dict[str, Any]) -> str:
    """Writes the mistake into the copy, and returns what the file said before."""
    place = copy / PACKAGE / mistake["file"]
    text = place.read_text("utf-8")
    if text.count(mistake["right"]) != 1:
        raise SystemExit(f"{place}: found {text.count(mistake['right'])} times, not once: {mistake['right']}")
    place.write_text(text.replace(mistake["right"], mistake["wrong"]), "utf-8")
    return text


def is_noticed(copy: Path, tests: list[str], seconds: float) -> bool:
    """Whether a test fails, or does not end in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    settings = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=os.environ | settings, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):  # 2: the code cannot even be imported
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--room", help="only mistakes in this folder of src/unmdpo")
    parser.add_argument("--only", type=int, nargs="*", help="only mistakes with these numbers, from 1")
    parser.add_argument("--seconds", type=float, default=300.0, help="for the tests of one mistake")
    given = parser.parse_args()
    mistakes = list(enumerate(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")), start=1))
    noticed, planted_in = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=left_out)
        for number, mistake in mistakes:
            room = mistake["file"].split("/")[0]
            if given.room not in (None, room) or (given.only and number not in given.only):
                continue
            began, before = time.monotonic(), planted(copy, mistake)
            found = is_noticed(copy, mistake["tests"].split(), given.seconds)
            (copy / PACKAGE / mistake["file"]).write_text(before, "utf-8")
            planted_in[room] += 1
            noticed[room] += found
            said, took = "noticed" if found else "NOT NOTICED", time.monotonic() - began
            print(f"{number:3} {said} in {took:.0f} s: {mistake['file']}: {mistake['wrong']}", flush=True)
    for room, count in sorted(planted_in.items()):
        print(f"{room}: {noticed[room]} of {count}")
    print(f"all: {noticed.total()} of {planted_in.total()}")


if __name__ == "__main__":
    main()
