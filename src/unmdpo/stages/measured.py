"""Any judge, measured on labelled pairs, by a command or as a stage of a run, or on RewardBench 2."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.data import Comparison
from unmdpo.data.load import load
from unmdpo.data.places import DataPlace
from unmdpo.data.reading import ALL, RowsSettings, rows_of
from unmdpo.data.reward_bench import BenchRow, read_reward_bench
from unmdpo.data.sources.preference import strengths_come_later
from unmdpo.engine.inference.judges import AnyJudge, JudgeSettings, kind_of
from unmdpo.engine.inference.pairwise import PairwiseJudge, candidate_is_first
from unmdpo.engine.inference.text_judge import TextJudge
from unmdpo.engine.tally import Report
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import MEASURED
from unmdpo.stages.shared.judge_measure import Floats, Measured, on_reward_bench
from unmdpo.stages.shared.scoring import is_judged_elsewhere, margins, opened, questions_of, spent_by, turns_of
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
    wanted: RowsSettings,
    judge: JudgeSettings,
    *,
    second: JudgeSettings | None,
    limit: int | None,
    seed: int,
    report: Report,
) -> Tested:
    """Asks for both responses of a file's comparisons, ties left out; a judge of pairs in both orders."""
    rows = _labelled(wanted, limit)
    opened = kind_of(judge).open(judge)
    with tempfile.TemporaryDirectory() as folder:
        gaps, position = _gaps(opened, rows, seed, report, Path(folder))
    agreement = None
    if second is not None:
        with tempfile.TemporaryDirectory() as folder:
            others, _ = _gaps(kind_of(second).open(second), rows, seed, report, Path(folder))
        agreement = float(np.mean(np.sign(gaps) == np.sign(others)))
    return Tested(Measured.of(gaps, rows), position, agreement, spent_by(opened))


def _labelled(wanted: RowsSettings, limit: int | None = None) -> list[Comparison]:
    with strengths_come_later():  # labels are enough
        rows = [*islice(load(wanted).rows, limit)]
    if not rows:
        raise UserError(f"{wanted.path}: there is no pair to measure a judge on")
    return rows


def _gaps(
    judge: Any, rows: Sequence[Comparison], seed: int, report: Report, state: Path
) -> tuple[Floats, Position | None]:
    """How much better the judge finds each chosen response. What it said is kept in `state`."""

    def asked(some: Sequence[Any], journal: str) -> Floats:
        return np.array(margins(judge, some, Journal(state / journal), seed, report, turns_of(rows)))

    questions = questions_of(rows)
    gaps = asked(questions, "scores.jsonl")
    if not isinstance(judge, PairwiseJudge):
        return gaps, None
    turned = asked([replace(one, candidate=one.baseline, baseline=one.candidate) for one in questions], "turned.jsonl")
    ahead = np.array([candidate_is_first(one.prompt_hash, seed) for one in questions])
    shown_first = np.concatenate([np.where(ahead, gaps, -gaps), np.where(ahead, turned, -turned)])
    changed = np.sign(gaps) == np.sign(turned)  # the same side, whichever response is there
    return (gaps - turned) / 2, Position(float(np.mean(shown_first > 0)), float(np.mean(changed)))


def measure(job: Job, *, judge: AnyJudge, seed: int, labelled: DataPlace) -> Notes:
    rows = _labelled(rows_of(labelled, split=ALL))
    opened_judge = opened(job, judge)
    gaps, position = _gaps(opened_judge, rows, seed, job.report, job.state)
    measured = Measured.of(gaps, rows)
    job.save(MEASURED, measured.to_dict() | {"position": None if position is None else position._asdict()})
    return {"held_out": asdict(measured.every), **spent_by(opened_judge)}


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


MEASURED_STAGE = Kind("measured", measure, uses_model=True, runs_elsewhere=is_judged_elsewhere)
