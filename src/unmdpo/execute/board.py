"""Progress of a run: one board of all stages on a terminal, plain lines elsewhere."""

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unmdpo.core.errors import printable
from unmdpo.execute.progress import Events, Lines, View, Working, fraction

BAR = 16  # characters


class Output(Enum):
    """How a run is shown."""

    usual = "usual"
    quiet = "quiet"
    json = "json"


def print_json(event: dict[str, Any]) -> None:
    """A line on standard output, for other programs."""
    print(json.dumps(event, ensure_ascii=False), flush=True)


@contextlib.contextmanager
def shown_progress(stages: int, output: Output = Output.usual) -> Iterator[View]:
    """A board on a terminal or in a notebook, plain lines otherwise; or nothing, or lines of JSON."""
    if output is not Output.usual:
        yield View() if output is Output.quiet else Events(print_json)
        return
    console = Console(file=sys.stderr)  # as it is now: what is silenced meanwhile does not silence the board
    if not (sys.stderr.isatty() or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)):
        yield Lines(stages=stages)
        return
    board = Board(stages)
    with Live(get_renderable=board.drawn, console=console, refresh_per_second=4) as live:
        yield board
        live.refresh()


@dataclass
class Board(View):
    """Running stages with their progress, and how much of the run is done."""

    stages: int
    began: float = field(default_factory=time.monotonic)
    reused: int = 0
    made: int = 0
    working: dict[str, Working] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def noted(self, text: str) -> None:
        self.notes.append(text)

    def cached(self, stage: str) -> None:
        self.reused += 1

    def started(self, stage: str, where: str = "") -> None:
        now = time.monotonic()
        self.working[stage] = Working(where, now, now)

    def progress(self, stage: str, text: str) -> None:
        now = time.monotonic()
        began = self.working[stage].began if stage in self.working else now
        self.working[stage] = Working(text, began, now)

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
        for stage, working in list(self.working.items()):  # a copy: this is drawn in another thread
            bar = _bar(fraction(working.text))
            table.add_row(f"[bold]{escape(stage)}", bar, _seconds(working.began), escape(working.shown))
        done = self.reused + self.made
        parts = [f"{done} of {self.stages} stages done", f"{len(self.working)} at work", _seconds(self.began)]
        if self.reused:
            parts.insert(1, f"{self.reused} reused")
        if self.failures:
            parts.append(f"failed: {', '.join(self.failures)}")
        whole = Table.grid(padding=(0, 2))
        whole.add_row(_bar(done / max(1, self.stages)), Text(", ".join(parts), style="dim"))
        return Group(*(Text(printable(note)) for note in self.notes), table, whole)


def _bar(share: float | None) -> ProgressBar:
    """How much is done; one that moves, if that is not known."""
    return ProgressBar(1.0, share or 0.0, width=BAR, pulse=share is None)


def _seconds(since: float) -> str:
    return f"{time.monotonic() - since:.0f} s"
