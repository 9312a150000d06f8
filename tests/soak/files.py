"""Kills before changes of the file system, and damage to every file that is kept: part of `make soak`, or

    python -m tests.soak.files [CHANGES] [DAMAGES]

kills a small run just before CHANGES of its changes of the store, evenly spread, and compares what the next run makes
of it; then harms every file of a finished store in five ways, and DAMAGES files of unfinished work; exchanges results
and copies one over another; and harms every file of the model.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL

from tests.worlds.faults import CHANGE, Command, contents, goes_on, same_as, small_recipe
from unmdpo.recipe import load_recipe
from unmdpo.results.run import Run, open_run
from unmdpo.results.verify import verify
from unmdpo.stages.shared.base import Stage
from unmdpo.store.store import Store

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
        exchanges(path, folder, expected)
        models(path, folder)
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
    place = store / "artifacts" / Path(*file.relative_to(store / "artifacts").parts[:2])
    for aside in place.parent.glob(f"{place.name}.damaged*"):
        aside.rename(place)
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


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def copy_over(one: Path, other: Path) -> None:
    shutil.rmtree(other)
    shutil.copytree(one, other)


def exchanges(path: Path, folder: Path, expected: dict[str, str]) -> None:
    """Results of one kind in each other's place, while what was made of them is made again."""
    tried, run = 0, open_run(load_recipe(str(path)), Store(folder / "undisturbed"))
    for one, other in neighbours(run):
        for misplace in (exchange, copy_over):
            store = folder / "misplaced"
            shutil.copytree(folder / "undisturbed", store)
            both = {one.name, other.name}
            for name, stage in run.stages.items():
                if name not in both and both & {needed.name for needed in stage.inputs.values()}:
                    shutil.rmtree(store / "artifacts" / stage.place)
            misplace(*(store / "artifacts" / stage.place for stage in (one, other)))
            made_again(path, store)
            same_as(expected, store)
            shutil.rmtree(store)
            tried += 1
    print(f"misplaced: {tried} results in another's place, {tried} made again", flush=True)


def neighbours(run: Run) -> Iterator[tuple[Stage, Stage]]:
    """Stages of one kind, two by two."""
    by_kind: dict[str, list[Stage]] = {}
    for stage in run.stages.values():
        by_kind.setdefault(stage.kind.name, []).append(stage)
    for stages in by_kind.values():
        yield from pairwise(stages)


def made_again(path: Path, store: Path) -> None:
    """What is misplaced stops a run when it is read; then the same command makes it again."""
    for _ in range(6):
        again = Command(path, store, ONE)
        code = again.wait()
        if code == 0:
            return
        assert code == 2, again.said
        assert "was moved or copied here" in again.said, again.said
    raise AssertionError(again.said)


def models(path: Path, folder: Path) -> None:
    """A harmed model is refused in one message, or is simply another model."""
    refused, tried = 0, 0
    for file in sorted((folder / "model").iterdir()):
        whole = file.read_bytes()
        for harmed in HARMS.values():
            harmed(file)
            attempt = Command(path, folder / f"model-{tried}", (*ONE, "--until", "reference"))
            code = attempt.wait()
            assert code in (0, 2), attempt.said
            assert "Traceback" not in attempt.said, attempt.said
            refused, tried = refused + code // 2, tried + 1
            file.write_bytes(whole)
    print(f"models: {tried} damages, {refused} refused, the others make another model", flush=True)


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*[*given, *(120, 60)[len(given) :]])
