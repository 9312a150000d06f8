"""One table, for a paper and for a colleague: a row for each policy, over all its seeds, a column for each measure."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from unmdpo.results.run import Run
from unmdpo.results.tables import EVEN, judged_by
from unmdpo.results.tasks import task_results
from unmdpo.stages.policy import POLICY_STAGE


class Measure(NamedTuple):
    """How the paper writes one kind of number."""

    name: str
    latex: str
    digits: int
    signed: bool = False
    neutral: float | None = None  # the baseline's own


WIN = Measure("win %", r"Win (\%) \(\uparrow\)", 2, neutral=EVEN)
EQUAL = Measure("win % at equal length", r"Win (\%), equal length \(\uparrow\)", 2, neutral=EVEN)
REWARD = Measure("ΔR", r"\(\Delta R\;\uparrow\)", 3, signed=True, neutral=0.0)
LENGTH = Measure("L/L_D", r"\(L/L_D\)", 3, neutral=1.0)
COST = Measure("training s", "Training (s)", 0)
KEYS = {WIN: "win_rate", EQUAL: "length_adjusted", REWARD: "reward_difference", LENGTH: "length_ratio"}
WITHOUT_INTERVAL = (LENGTH, COST)
LATEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | {"~": r"\textasciitilde{}"})


class Column(NamedTuple):
    group: str  # a panel and its judge
    measure: Measure


class Number(NamedTuple):
    value: float
    low: float | None = None
    high: float | None = None

    def write(self, measure: Measure, form: str = "{0} [{1}, {2}]") -> str:
        sign = "+" if measure.signed else ""
        said = [f"{one:{sign}.{measure.digits}f}" for one in self if one is not None]
        return form.format(*said) if len(said) > 1 and measure not in WITHOUT_INTERVAL else said[0]


@dataclass(frozen=True)
class Grid:
    columns: list[Column]
    rows: list[tuple[str, dict[Column, Number]]]
    notes: list[str]  # what a reader should know about judges

    @classmethod
    def of(cls, runs: Mapping[str, Run]) -> "Grid":
        """The policies of finished runs against their baselines. Several runs stand below each other, by name."""
        rows, notes = list[tuple[str, dict[Column, Number]]](), dict[str, None]()
        for run_name, run in runs.items():
            before = f"{run_name}: " if len(runs) > 1 else ""
            rows += [(before + policy, cells) for policy, cells in _rows(run).items()]
            marks = (judged_by(judge, mark) for judge, mark in run.judge_marks.items() if mark)
            notes |= dict.fromkeys(before + mark for mark in (*marks, *run.world_differences))
        columns = dict.fromkeys(column for _, cells in rows for column in cells)
        return cls([*columns], rows, [*notes])

    def cells(self, form: str = "{0} [{1}, {2}]") -> list[list[str]]:
        """Everything as text, without the heads; what a run does not have is empty."""
        return [
            [name, *(row[column].write(column.measure, form) if column in row else "" for column in self.columns)]
            for name, row in self.rows
        ]

    def heads(self) -> list[str]:
        return ["policy", *(", ".join(part for part in (one.group, one.measure.name) if part) for one in self.columns)]

    def markdown(self) -> str:
        align = ["---", *("---:" for _ in self.columns)]
        lines = [self.heads(), align, *([cell.replace("|", "\\|") for cell in row] for row in self.cells())]
        noted = "".join(f"\n{note}\n" for note in self.notes)
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n{noted}"

    def latex(self) -> str:
        r"""As the paper has it: \winci of a value and its interval, which is defined on top."""
        groups = list[tuple[str, int]]()
        for one in self.columns:
            if groups and groups[-1][0] == one.group:
                groups[-1] = one.group, groups[-1][1] + 1
            else:
                groups.append((one.group, 1))
        spans = " & ".join(rf"\multicolumn{{{wide}}}{{c}}{{\textbf{{{_plain(name)}}}}}" for name, wide in groups)
        lines = [rf"\begin{{tabular}}{{@{{}}l{'r' * len(self.columns)}@{{}}}}", r"\toprule", rf" & {spans} \\"]
        lines += [" & ".join(["Method", *(one.measure.latex for one in self.columns)]) + r" \\", r"\midrule"]
        for name, *cells in self.cells(r"\winci{{{0}}}{{{1}}}{{{2}}}"):
            lines.append(" & ".join([_plain(name), *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*(f"% {note}" for note in self.notes), WINCI, *lines]) + "\n"

    def records(self) -> list[dict[str, Any]]:
        """One for each number."""
        return [
            {"policy": name, "group": column.group, "measure": column.measure.name, **number._asdict()}
            for name, row in self.rows
            for column, number in row.items()
        ]

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, ["policy", "group", "measure", *Number._fields], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records())
        return text.getvalue()

    def json(self) -> str:
        return json.dumps({"rows": self.records(), "notes": self.notes}, ensure_ascii=False, indent=1) + "\n"


WINCI = r"\providecommand{\winci}[3]{\begin{tabular}[t]{@{}r@{}}#1\\{[#2,\,#3]}\end{tabular}}"


def _plain(text: str) -> str:
    return text.translate(LATEX)


def _rows(run: Run) -> dict[str, dict[Column, Number]]:
    """Policy → its numbers against the baseline, which comes first."""
    evaluation = run.recipe.evaluation
    assert evaluation is not None
    order = [evaluation.baseline, *(name for name in run.recipe.candidates if name != evaluation.baseline)]
    rows: dict[str, dict[Column, Number]] = {name: {} for name in order}
    for panel, report in run.summary.items():
        for judge, tables in report["judges"].items():
            group = f"{panel}, by {judge}" if judge else panel
            outcomes = tables["against"][report["baseline"]]
            for measure, key in KEYS.items():
                column = Column(group, measure)
                found = {policy: _number(outcome[key]) for policy, outcome in outcomes.items() if outcome[key]}
                if found and measure.neutral is not None:
                    rows[report["baseline"]][column] = Number(measure.neutral)
                for policy, number in found.items():
                    rows[policy][column] = number
    for one in task_results(run):
        row = rows.setdefault(one.policy, {})  # the initial model has one of its own
        unit = ", %" if one.share else ""
        measure = Measure(f"{one.task}, {one.metric}{unit}", _plain(f"{one.task}{' (%)' if unit else ''}"), 1)
        row[Column("", measure)] = Number(one.value)
        if one.change is not None:
            since = Measure(f"{one.task}, from initial", rf"\(\Delta\) {_plain(one.task)}", 1, signed=True)
            row[Column("", since)] = Number(one.change.value, one.change.low, one.change.high)
    for policy, seconds in _seconds(run).items():
        rows[policy][Column("", COST)] = Number(seconds)
    return rows


def _number(estimate: Mapping[str, float]) -> Number:
    return Number(estimate["value"], estimate["low"], estimate["high"])


def _seconds(run: Run) -> dict[str, float]:
    """What training a policy took, in the mean over its seeds; nothing for answers that were made elsewhere."""
    found = dict[str, float]()
    for policy, trainings in run.recipe.runs.items():
        stages: Sequence[Any] = [run.finished.get(POLICY_STAGE.stage_name(one.name)) for one in trainings]
        if stages and all(stage is not None for stage in stages):
            found[policy] = fmean(stage.manifest["seconds"] for stage in stages)
    return found
