"""The full fault matrix: `make soak`, or python -m tests.soak [MOMENTS] [PAIRS_OF_RUNS].

Kills and stops a small run at random moments and at every stage boundary, and starts two runs at once. Each time,
every byte of the store is compared with an undisturbed run's. Prints what was tried.
"""

import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.worlds.faults import Command, contents, disturbed, disturbed_at, same_as, small_recipe
from unmdpo.recipe import load_recipe
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
ONE, TWO = ("--jobs", "1"), ("--jobs", "2")


def main(moments: int, doubles: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        path = small_recipe(folder)
        expected, seconds = undisturbed(path)
        print(f"undisturbed: {len(expected)} files in {seconds[ONE]:.1f} s")
        boundaries(path, expected)
        random_moments(path, expected, seconds, moments)
        at_once(path, expected, doubles)
        print(f"all equal, in {time.monotonic() - began:.0f} s")


def undisturbed(path: Path) -> tuple[dict[str, str], dict[tuple[str, ...], float]]:
    """The bytes of a run, and how long it takes at best with one stage at a time and with two."""
    seconds: dict[tuple[str, ...], float] = {}
    for number, options in enumerate((ONE, ONE, TWO)):
        command = Command(path, path.parent / f"undisturbed-{number}", options)
        assert command.wait() == 0, command.said
        seconds[options] = min(command.seconds, seconds.get(options, command.seconds))
    same_as(contents(path.parent / "undisturbed-0"), path.parent / "undisturbed-2")
    return contents(path.parent / "undisturbed-0"), seconds


def boundaries(path: Path, expected: dict[str, str]) -> None:
    """Kills the run just before and just after every stage, and stops it there with SIGINT and SIGTERM in turn."""
    stages = [*open_run(load_recipe(str(path)), Store(path.parent / "none")).stages]
    places = [(event, stage) for stage in stages for event in ("started", "finished")]
    for number, (event, stage) in enumerate(places):
        for sent in (signal.SIGKILL, SIGNALS[1 + number % 2]):
            store = path.parent / f"boundary-{number}-{sent.name}"
            disturbed_at(path, store, event, stage, sent, ONE)
            same_as(expected, store)
            shutil.rmtree(store)
    count = len(places)
    print(f"stage boundaries: {count} kills and {count} stops, {2 * count} results equal", flush=True)


def random_moments(path: Path, expected: dict[str, str], seconds: dict[tuple[str, ...], float], moments: int) -> None:
    """Any signal at any moment, until `moments` runs were cut short; every fifth time with two stages at once."""
    rng, codes, tried = random.Random(0), Counter[str](), 0
    while sum(codes.values()) < moments:
        place = sum(codes.values())
        sent, options = SIGNALS[place % 3], TWO if place % 5 == 4 else ONE
        moment = rng.uniform(0, seconds[options])
        code = disturbed(path, path.parent / f"moment-{tried}", sent, moment, options)
        same_as(expected, path.parent / f"moment-{tried}")
        tried += 1
        if code != 0:  # otherwise it ended before the signal
            codes[f"{sent.name} → {code}"] += 1
    print(f"random moments: {moments} runs cut short, {moments} results equal; {dict(codes)}")


def at_once(path: Path, expected: dict[str, str], doubles: int) -> None:
    for number in range(doubles):
        both = [Command(path, path.parent / f"both-{number}", ONE) for _ in range(2)]
        assert [command.wait() for command in both] == [0, 0], both[0].said + both[1].said
        same_as(expected, path.parent / f"both-{number}")
    print(f"two at once: {doubles} times, {doubles} results equal")


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*[*given, *(50, 20)[len(given) :]])
