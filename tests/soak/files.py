"""Kills before changes of the file system, and damage to every file that is kept: part of `make soak`, or

    python -m tests.soak.files [CHANGES] [DAMAGES]

kills a small run just before CHANGES of its changes of the store, evenly spread, and compares what the next run makes
of it; then harms every file of a finished store in five ways, and DAMAGES files of unfinished work.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

from tests.worlds.faults import CHANGE, Command, contents, goes_on, same_as, small_recipe
from unmdpo.pipeline.run import open_run
from unmdpo.pipeline.store import Store
from unmdpo.pipeline.verify import verify
from unmdpo.recipe import load_recipe

ONE = ("--jobs", "1")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes() or b"x")
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS: dict[str, Callable[[Path], object]] = {
    "a bit flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": lambda path: path.unlink(),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


def main(changes: int, damages: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        path = small_recipe(folder)
        count = changes_of(path, folder / "undisturbed")
        expected = contents(folder / "undisturbed")
        print(f"undisturbed: {len(expected)} files, {count} changes of the file system", flush=True)
        places = sorted({1 + place * count // changes for place in range(changes)})
        for place in places:
            killed(path, folder / f"change-{place}", place)
            goes_on(path, folder / f"change-{place}", ONE)
            same_as(expected, folder / f"change-{place}")
            shutil.rmtree(folder / f"change-{place}")
        print(f"killed before {len(places)} of {count} changes, {len(places)} results equal", flush=True)
        results(path, folder / "undisturbed")
        work(path, folder, expected, count, damages)
        print(f"all as promised, in {time.monotonic() - began:.0f} s")


def changes_of(path: Path, store: Path) -> int:
    whole = Command(path, store, ONE, (CHANGE, "0", SIGKILL))
    assert whole.wait() == 0, whole.said
    return int(Path(f"{whole.log}.changes").read_text())


def killed(path: Path, store: Path, place: int) -> None:
    first = Command(path, store, ONE, (CHANGE, str(place), SIGKILL))
    assert first.wait() == -SIGKILL, first.said


def results(path: Path, store: Path) -> None:
    """Every file of every result, harmed in every way, is noticed by `verify`, or its stage is no longer finished."""
    tried, recipe = 0, load_recipe(str(path))
    for file in sorted(one for one in (store / "artifacts").rglob("*") if one.is_file()):
        whole = file.read_bytes()
        file.chmod(0o644)
        for harm, harmed in HARMS.items():
            harmed(file)
            run = open_run(recipe, Store(store))
            stages = {name for name, stage in run.stages.items() if stage.place in file.as_posix()}
            told = {finding.stage for finding in verify(run) if finding.problem}
            assert stages & told or not stages & set(run.finished), (file, harm, told)
            restore(store, file, whole)
            tried += 1
    print(f"results: {tried} damages, all noticed", flush=True)


def restore(store: Path, file: Path, whole: bytes) -> None:
    """As it was, also if what was damaged has been set aside."""
    aside = store / "quarantine"
    for other in sorted(aside.iterdir()) if aside.is_dir() else []:
        place = file.relative_to(store / "artifacts").parts[:2]
        other.rename(store / "artifacts" / Path(*place))
    file.write_bytes(whole)


def work(path: Path, folder: Path, expected: dict[str, str], count: int, damages: int) -> None:
    """Files that an interrupted run goes on from: whatever is damaged, the end is the same."""
    tried = 0
    for place in range(count // 2, count, max(1, count // 12)):
        store = folder / f"work-{place}"
        killed(path, store, place)
        files = [file for file in sorted((store / "work").rglob("*")) if file.is_file()]
        for file in files[: max(0, damages - tried)]:
            harm = [*HARMS][tried % len(HARMS)]
            copy = folder / "harmed"
            shutil.copytree(store, copy)
            HARMS[harm](copy / file.relative_to(store))
            goes_on(path, copy, ONE)
            same_as(expected, copy)
            shutil.rmtree(copy)
            tried += 1
    print(f"work: {tried} damages, {tried} results equal", flush=True)


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*[*given, *(120, 60)[len(given) :]])
