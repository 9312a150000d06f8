"""Comparisons with strengths from a judge: as a stage of a run, or into a file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.core.files import write_text
from unmdpo.data.load import load
from unmdpo.data.reading import RowsSettings
from unmdpo.data.sources.preference import strengths_come_later
from unmdpo.data.strength import StrengthRule
from unmdpo.data.table import ComparisonTable
from unmdpo.engine.inference.judges import AnyJudge, JudgeSettings, kind_of
from unmdpo.engine.tally import Report
from unmdpo.stages.comparisons import READ, TRAINED
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import COMPARISONS
from unmdpo.stages.shared.scoring import SCORED, is_judged_elsewhere, margins, opened, questions_of, spent_by, turns_of
from unmdpo.store.journal import Journal
from unmdpo.store.keys import digest_of, identity_of
from unmdpo.store.pins import pinned_now

NO_AGREEMENT = "the judge agrees with no label: is this the right judge, and are chosen and rejected right?"


def grade(job: Job, *, judge: AnyJudge, seed: int, rule: StrengthRule) -> Notes:
    """Scores both responses of every comparison. The label says which is better, and the judge by how much; where it
    prefers the other one, the comparison is left out. Validation comparisons are cut where the training ones were."""
    rows = job.load(COMPARISONS, READ).without_ties()
    opened_judge = opened(job, judge)
    gaps = margins(opened_judge, questions_of(rows), Journal(job.state / SCORED), seed, job.report, turns_of(rows))
    agrees = np.array(gaps) > 0
    if not agrees.any():
        raise UserError(NO_AGREEMENT)
    trained = job.inputs[TRAINED].manifest["notes"]["quantiles"] if TRAINED in job.inputs else {}
    quantiles = tuple(trained[""]) if "" in trained else None
    kept_gaps = [gap for gap in gaps if gap > 0]
    strengths = iter(rule.cut(kept_gaps, quantiles))
    table = ComparisonTable.of(
        [replace(row, strength=next(strengths)) for row, agreed in zip(rows, agrees, strict=True) if agreed]
    )
    job.save(COMPARISONS, table)
    cuts = quantiles or rule.quantiles(kept_gaps)
    return {
        **job.inputs[READ].manifest["notes"],
        "comparisons": len(table),
        "prompts": len(set(table.prompt_hashes())),
        "disagreed": sum(gap < 0 for gap in gaps),
        "undecided": gaps.count(0.0),
        "thresholds": {} if rule.thresholds is None else {"": rule.thresholds},
        "quantiles": {} if cuts is None else {"": cuts},
        **spent_by(opened_judge),
    }


class Scored(NamedTuple):
    """What became of a file's comparisons."""

    written: int
    disagreed: int
    undecided: int  # equal scores
    left_out: dict[str, int]
    spent: Notes


def score_file(
    wanted: RowsSettings, judge: JudgeSettings, out: Path, *, swap: bool, seed: int, report: Report
) -> Scored:
    """Writes a file's comparisons with a judge's margins. The label says which response is better; where the judge
    prefers the other one, the comparison is left out, or the two are swapped. What is not finished goes on from a
    hidden file beside the result, for exactly these comparisons and this judge."""
    with strengths_come_later():
        data = load(wanted)
    asked = kind_of(judge).open(judge)
    rows = [*data.rows]
    compared = [(row.prompt_hash, row.chosen, row.rejected) for row in rows]
    described = [identity_of(pinned_now(judge)), seed, compared]
    digest = digest_of(described)[:16]
    begun = out.with_name(f".{out.name}.{digest}")
    gaps = margins(asked, questions_of(rows), Journal(begun), seed, report, turns_of(rows))
    if not swap and not any(gap > 0 for gap in gaps):
        raise UserError(NO_AGREEMENT)
    lines = [
        json.dumps((row.swapped() if gap < 0 else row).to_row() | {"margin": abs(gap)}, ensure_ascii=False)
        for row, gap in zip(rows, gaps, strict=True)
        if gap > 0 or (gap < 0 and swap)
    ]
    write_text(out, "".join(f"{line}\n" for line in lines))
    begun.unlink()
    lost = {"bad": len(data.skipped), "ties": len(data.ties)}
    return Scored(len(lines), sum(gap < 0 for gap in gaps), gaps.count(0.0), lost, spent_by(asked))


GRADED_STAGE = Kind("graded", grade, uses_model=True, runs_elsewhere=is_judged_elsewhere)
