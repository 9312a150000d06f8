"""Progress of a run: one board of all stages on a terminal, plain lines elsewhere."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from unmdpo.errors import printable
from unmdpo.pipeline.view import Lines, View


class Output(Enum):
    """How a run is shown."""

    usual = "usual"
    quiet = "quiet"
    json = "json"


class JsonLines(View):
    """Every event as a line of JSON on standard output, for other programs."""

    def _tell(self, event: str, **facts: object) -> None:
        print(json.dumps({"event": event, "time": round(time.time(), 3), **facts}, ensure_ascii=False), flush=True)

    def noted(self, text: str) -> None:
        self._tell("note", text=text)

    def cached(self, stage: str) -> None:
        self._tell("cached", stage=stage)

    def started(self, stage: str) -> None:
        self._tell("started", stage=stage)

    def progress(self, stage: str, text: str) -> None:
        self._tell("progress", stage=stage, text=text)

    def retried(self, stage: str, why: str) -> None:
        self._tell("retried", stage=stage, text=why)

    def finished(self, stage: str, seconds: float) -> None:
        self._tell("finished", stage=stage, seconds=round(seconds, 3))

    def failed(self, stage: str, problem: str) -> None:
        self._tell("failed", stage=stage, text=problem)


@contextlib.contextmanager
def shown_progress(stages: int, output: Output = Output.usual) -> Iterator[View]:
    """A board if standard error is a terminal, plain lines otherwise; or nothing, or lines of JSON."""
    if output is not Output.usual:
        yield View() if output is Output.quiet else JsonLines()
        return
    if not sys.stderr.isatty():
        yield Lines()
        return
    board = Board(stages)
    with Live(get_renderable=board.drawn, console=Console(stderr=True), refresh_per_second=4) as live:
        yield board
        live.refresh()


@dataclass
class Board(View):
    """Running stages with their progress, and how many stages are done."""

    stages: int
    began: float = field(default_factory=time.monotonic)
    there: int = 0
    made: int = 0
    working: dict[str, tuple[float, str]] = field(default_factory=dict)  # start time, progress
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def noted(self, text: str) -> None:
        self.notes.append(text)

    def cached(self, stage: str) -> None:
        self.there += 1

    def started(self, stage: str) -> None:
        self.working[stage] = (time.monotonic(), "")

    def progress(self, stage: str, text: str) -> None:
        since, _ = self.working.get(stage, (time.monotonic(), ""))
        self.working[stage] = (since, text)

    def retried(self, stage: str, why: str) -> None:
        self.progress(stage, why)

    def finished(self, stage: str, seconds: float) -> None:
        self.working.pop(stage, None)
        self.made += 1

    def failed(self, stage: str, problem: str) -> None:
        self.working.pop(stage, None)
        self.failures.append(stage)

    def drawn(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for stage, (since, text) in list(self.working.items()):  # a copy: this is drawn in another thread
            table.add_row(f"[bold]{escape(stage)}", _seconds(since), escape(text))
        done = f"{self.there + self.made} of {self.stages} stages done"
        parts = [done, *([f"{self.there} reused"] if self.there else []), _seconds(self.began)]
        if self.failures:
            parts.append(f"failed: {', '.join(self.failures)}")
        return Group(*(Text(printable(note)) for note in self.notes), table, Text(", ".join(parts), style="dim"))


def _seconds(since: float) -> str:
    return f"{time.monotonic() - since:.0f} s"
