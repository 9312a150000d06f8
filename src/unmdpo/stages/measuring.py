"""Any judge, measured on labelled pairs or on RewardBench 2."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.data import Comparison
from unmdpo.data.load import DataRef, Reading, load
from unmdpo.data.reward_bench import BenchRow, read_reward_bench
from unmdpo.engine.inference.judges import JudgeSettings, kind_of
from unmdpo.engine.inference.pairwise import PairwiseJudge, candidate_is_first
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.engine.tally import Report
from unmdpo.stages.scoring import margins, questions_of, spent_by, turns_of
from unmdpo.stages.shared.base import Notes
from unmdpo.stages.shared.judge_measure import Floats, Measured, on_reward_bench
from unmdpo.stats.reward_bench import Answered
from unmdpo.store.journal import Journal


class Position(NamedTuple):
    """What the order of two responses does to a judge that sees both; shares of pairs."""

    first: float  # of the answers, those that prefer the response that is shown first
    changed: float  # pairs whose verdict depends on the order


class Tested(NamedTuple):
    measured: Measured
    position: Position | None
    agreement: float | None  # with a second judge
    spent: Notes


def measure_on_pairs(
    ref: DataRef,
    reading: Reading,
    judge: JudgeSettings,
    *,
    second: JudgeSettings | None,
    limit: int | None,
    seed: int,
    report: Report,
) -> Tested:
    """Asks for both responses of a file's comparisons, ties left out; a judge of pairs in both orders."""
    rows = [*islice(load(ref, reading).rows, limit)]
    if not rows:
        raise UserError(f"{ref.path}: there is no pair to measure a judge on")
    opened = kind_of(judge).open(judge)
    gaps, position = _gaps(opened, rows, seed, report)
    agreement = None
    if second is not None:
        others, _ = _gaps(kind_of(second).open(second), rows, seed, report)
        agreement = float(np.mean(np.sign(gaps) == np.sign(others)))
    return Tested(Measured.of(gaps, rows), position, agreement, spent_by(opened))


def _gaps(judge: Any, rows: Sequence[Comparison], seed: int, report: Report) -> tuple[Floats, Position | None]:
    """How much better the judge finds each chosen response."""

    def asked(some: Sequence[Any]) -> Floats:
        with tempfile.TemporaryDirectory() as folder:
            return np.array(margins(judge, some, Journal(Path(folder) / "scores"), seed, report, turns_of(rows)))

    questions = questions_of(rows)
    gaps = asked(questions)
    if not isinstance(judge, PairwiseJudge):
        return gaps, None
    turned = asked([replace(one, candidate=one.baseline, baseline=one.candidate) for one in questions])
    ahead = np.array([candidate_is_first(one.prompt_hash, seed) for one in questions])
    shown_first = np.concatenate([np.where(ahead, gaps, -gaps), np.where(ahead, turned, -turned)])
    changed = np.sign(gaps) == np.sign(turned)  # the same side, whichever response is there
    return (gaps - turned) / 2, Position(float(np.mean(shown_first > 0)), float(np.mean(changed)))


def measure_on_reward_bench(path: Path, judge: JudgeSettings, report: Report) -> dict[str, float]:
    """Subset → score; for judges that score one response."""
    opened = kind_of(judge).open(judge)
    if isinstance(opened, PairwiseJudge | TextJudge):
        raise UserError("RewardBench 2 needs a judge that scores each response; this one compares two")
    return on_reward_bench(read_reward_bench(path), lambda rows: _answered(opened, rows, report))


def _answered(judge: Callable[..., list[float]], rows: Sequence[BenchRow], report: Report) -> list[Answered]:
    found = list[Answered]()
    for row in rows:
        texts = [*row.right, *row.wrong]
        scores = [float(score) for score in judge([row.prompt] * len(texts), texts)]
        found.append(Answered(scores[: len(row.right)], scores[len(row.right) :]))
        report(f"{len(found):,}/{len(rows):,} prompts")
    return found
