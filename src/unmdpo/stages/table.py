"""All kinds of stages in one table. Each kind's file says what it needs, what it does and what it costs.

To add a stage, write its file and add its row: everything else (the graph, plans, executors, records) reads this
table.
"""

from typing import Any

from unmdpo.stages import (
    answers,
    benchmarks,
    convert,
    data,
    evaluation,
    judge,
    measuring,
    pilots,
    policies,
    reference,
    rounds,
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
        convert.CONVERTED_STAGE,
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
        rounds.PAIRED_STAGE,
        judge.JUDGE_STAGE,
        measuring.MEASURED_STAGE,
        evaluation.JUDGEMENT_STAGE,
        benchmarks.TASKS_STAGE,
        summary.SUMMARY_STAGE,
    )
}
