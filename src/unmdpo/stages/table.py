"""All kinds of stages in one table.

To add a stage, write its function and its `Kind` in a file, add a row here, and say in `graph.py` where it goes:
everything else (plans, executors, records) reads this table.
"""

from unmdpo.stages import (
    comparisons,
    encoded,
    generation,
    graded,
    judge,
    judgement,
    measured,
    pairs,
    panel,
    pilot,
    policy,
    reference,
    scale,
    summary,
    tasks,
)
from unmdpo.stages.shared.base import Kind

STAGES: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        comparisons.COMPARISONS_STAGE,
        graded.GRADED_STAGE,
        panel.PANEL_STAGE,
        encoded.ENCODED_STAGE,
        reference.REFERENCE_STAGE,
        reference.FEATURES_STAGE,
        pilot.PILOT_STAGE,
        pilot.OOF_STAGE,
        scale.SCALE_STAGE,
        scale.CHECK_STAGE,
        policy.POLICY_STAGE,
        generation.GENERATION_STAGE,
        judge.JUDGE_STAGE,
        judgement.JUDGEMENT_STAGE,
        measured.MEASURED_STAGE,
        tasks.TASKS_STAGE,
        pairs.PAIRS_STAGE,
        summary.SUMMARY_STAGE,
    )
}
