"""Recomputes a summary's numbers from the raw scores, in a different way than the summary did."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmdpo.pipeline.artifacts import GENERATIONS, PANEL, SCORES, SUMMARY, Line, Panel
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stages.answers import GENERATION_STAGE
from unmdpo.pipeline.stages.data import PANEL_STAGE
from unmdpo.pipeline.stages.evaluation import judgement_name
from unmdpo.pipeline.stages.summary import MEASURES, SUMMARY_STAGE
from unmdpo.pipeline.told import tables_of
from unmdpo.recipe.seeds import paired
from unmdpo.stats.evaluation import LONGEST, Judged
from unmdpo.stats.recomputed import corrected, equal_length, recomputed

Reported = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """The result of one check; `problem` is empty if it passed."""

    stage: str
    what: str
    problem: str = ""


def recheck(run: Run) -> Iterator[Finding]:
    for name, reported in SUMMARY.peek(run.artifact(SUMMARY_STAGE.name)).items():
        panel = PANEL.peek(run.artifact(PANEL_STAGE.called(name)))
        for judge, tables in tables_of(reported).items():
            yield from _Table(run, name, panel, judge, reported["baseline"], tables).findings()


@dataclass(frozen=True)
class _Table:
    """One judge's numbers on one panel."""

    run: Run
    name: str
    panel: Panel
    judge: str
    baseline: str
    reported: Reported

    def findings(self) -> Iterator[Finding]:
        for policy, mean in self.reported["mean_score"].items():
            yield from self._raw(policy, mean)
        for opponent, outcomes in self.reported["against"].items():
            for policy, outcome in outcomes.items():
                yield from self._outcome(policy, opponent, outcome)
            yield from self._family(opponent, outcomes)
        for policy, domains in self.reported["by_domain"].items():
            for domain, outcome in domains.items():
                rows = [place for place, other in enumerate(self.panel.domains) if other == domain]
                yield self._checked(f"{policy} in {domain}", self._sides(policy, self.baseline, rows), outcome)
        yield self._selection()

    @property
    def _where(self) -> str:
        return f"on {self.name}{f', by {self.judge}' if self.judge else ''}"

    def _found(self, what: str, problem: str) -> Finding:
        return Finding(SUMMARY_STAGE.name, f"{what} {self._where}", problem)

    def _raw(self, policy: str, mean: float) -> Iterator[Finding]:
        means = []
        for training in self.run.recipe.runs[policy]:
            rows = self._scores(training.name)
            if not rows:
                raise ValueError(f"there are no scores of {training.name} {self._where}")
            answers = GENERATIONS.peek(self.run.artifact(GENERATION_STAGE.called(training.name, self.name)))
            ordered = [row["prompt_hash"] for row in rows] == self.panel.hashes
            lengths = [len(row["text"]) for row in answers] == [row["characters"] for row in rows]
            yield self._found(f"{training.name}: prompt order", "" if ordered else "not in the panel's order")
            yield self._found(f"{training.name}: lengths", "" if lengths else "do not match the responses")
            means.append(np.mean([row["score"] for row in rows]))
        close = np.isclose(float(np.mean(means)), mean, rtol=1e-9, atol=1e-9)
        yield self._found(f"{policy}: mean score", "" if close else "differs from the reported value")

    def _outcome(self, policy: str, opponent: str, outcome: Reported) -> Iterator[Finding]:
        what, sides = f"{policy} against {opponent}", self._sides(policy, opponent)
        yield self._checked(what, sides, outcome)
        runs = self.run.recipe.runs
        for pair in paired(runs[policy], runs[opponent]) if outcome["seeds"] else []:
            alone = self._judged([pair.ours], None), self._judged([pair.theirs], None)
            yield self._checked(f"{what}, seed {pair.seed}", alone, outcome["seeds"][str(pair.seed)])
        if outcome["length_adjusted"] is not None:
            close = np.isclose(equal_length(*sides), outcome["length_adjusted"]["value"], rtol=1e-5, atol=1e-4)
            yield self._found(f"{what}, at equal length", "" if close else "differs from the reported value")

    def _family(self, opponent: str, outcomes: Mapping[str, Reported]) -> Iterator[Finding]:
        for measure in MEASURES:
            expected = corrected({policy: outcome[f"p_{measure}"] for policy, outcome in outcomes.items()})
            wrong = [name for name, p in expected.items() if not np.isclose(p, outcomes[name][f"holm_{measure}"])]
            what = f"Holm's p-values of {measure} against {opponent}"
            yield self._found(what, f"differ for {', '.join(wrong)}" if wrong else "")

    def _selection(self) -> Finding:
        evaluation = self.run.recipe.evaluation
        competing = [] if evaluation is None else evaluation.selected_among
        ranked = sorted(
            (outcome["reward_difference"]["value"], outcome["win_rate"]["value"], -place, policy)
            for place, (policy, outcome) in enumerate(self.reported["against"][self.baseline].items())
            if outcome["reward_difference"]["value"] > 0 and outcome["length_ratio"]["value"] <= LONGEST
            if policy in (competing or [policy])
        )
        best = ranked[-1][-1] if ranked else None
        return self._found("selection", "" if best == self.reported["selected"] else f"should be {best}")

    def _checked(self, what: str, sides: tuple[Judged, Judged], outcome: Reported) -> Finding:
        expected = recomputed(*sides, self.run.recipe.seed)
        wrong = [name for name, value in expected.items() if not _same(value, outcome[name])]
        return self._found(what, f"differs from the reported value: {', '.join(wrong)}" if wrong else "")

    def _sides(self, policy: str, opponent: str, rows: list[int] | None = None) -> tuple[Judged, Judged]:
        """(s, n) of both, seed by seed."""
        runs = self.run.recipe.runs
        pairs = paired(runs[policy], runs[opponent])
        return self._judged([pair.ours for pair in pairs], rows), self._judged([pair.theirs for pair in pairs], rows)

    def _judged(self, trainings: list[str], rows: list[int] | None) -> Judged:
        tables = [self._scores(name) for name in trainings]
        if rows is not None:
            tables = [[table[place] for place in rows] for table in tables]
        columns = ([[float(row[name]) for row in table] for table in tables] for name in ("score", "characters"))
        return Judged(*(np.array(column) for column in columns))

    def _scores(self, training: str) -> list[Line]:
        return SCORES.peek(self.run.artifact(judgement_name(training, self.name, self.judge)))


def _same(expected: list[float], reported: Any) -> bool:
    flat = [reported[end] for end in ("value", "low", "high")] if isinstance(reported, dict) else [reported]
    return np.allclose(expected, flat, rtol=1e-9, atol=1e-9)
