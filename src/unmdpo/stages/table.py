"""All kinds of stages in one table. Each kind's file says what it needs, what it does and what it costs.

To add a stage, write its file and add its row: everything else (the graph, plans, executors, records) reads this
table.
"""

from typing import Any

from unmdpo.stages import (
    answers,
    benchmarks,
    data,
    evaluation,
    judge,
    measuring,
    pairs,
    pilots,
    policies,
    reference,
    scales,
    scoring,
    summary,
)
from unmdpo.stages.shared.base import Kind

KINDS: dict[str, Kind[Any]] = {
    kind.name: kind
    for kind in (
        data.COMPARISONS_STAGE,
        scoring.GRADED_STAGE,
        data.VALIDATION_STAGE,
        data.PANEL_STAGE,
        data.ENCODED_STAGE,
        reference.REFERENCE_STAGE,
        reference.FEATURES_STAGE,
        policies.PREFERENCES_STAGE,
        pilots.PILOT_STAGE,
        pilots.OOF_STAGE,
        scales.SCALE_STAGE,
        scales.CHECK_STAGE,
        policies.POLICY_STAGE,
        answers.GENERATION_STAGE,
        pairs.PAIRS_STAGE,
        judge.JUDGE_STAGE,
        measuring.MEASURED_STAGE,
        evaluation.JUDGEMENT_STAGE,
        benchmarks.TASKS_STAGE,
        summary.SUMMARY_STAGE,
    )
}
