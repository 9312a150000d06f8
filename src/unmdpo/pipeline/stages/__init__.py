"""All kinds of stages in one table. Each kind's file says what it needs, what it does and what it costs.

To add a stage, write its file and add its row: everything else (the graph, plans, executors, records) reads this
table.
"""

from collections.abc import Mapping
from typing import Any

from unmdpo.pipeline.fingerprint import Fingerprints
from unmdpo.pipeline.graph import Graph
from unmdpo.pipeline.stage import Kind, Stage
from unmdpo.pipeline.stages import (
    answers,
    checks,
    convert,
    data,
    evaluation,
    judges,
    passes,
    pilots,
    policies,
    reference,
    scales,
    summary,
    validating,
)
from unmdpo.recipe import Recipe

KINDS: dict[str, Kind[Any]] = {
    kind.name: kind
    for kind in (
        data.COMPARISONS_STAGE,
        data.VALIDATION_STAGE,
        data.PANEL_STAGE,
        convert.CONVERTED_STAGE,
        data.ENCODED_STAGE,
        reference.REFERENCE_STAGE,
        reference.FEATURES_STAGE,
        validating.PREFERENCES_STAGE,
        pilots.PILOT_STAGE,
        passes.PASS_STAGE,
        pilots.OOF_STAGE,
        scales.SCALE_STAGE,
        checks.CHECK_STAGE,
        policies.POLICY_STAGE,
        answers.GENERATION_STAGE,
        judges.JUDGE_STAGE,
        evaluation.JUDGEMENT_STAGE,
        summary.SUMMARY_STAGE,
    )
}


def build(recipe: Recipe, fingerprints: Fingerprints, borrowed: Mapping[str, Stage[Any]]) -> dict[str, Stage[Any]]:
    """Every stage of a recipe by its name, inputs first. `borrowed` are scales from other runs."""
    graph = Graph(recipe, fingerprints, borrowed)
    for kind in KINDS.values():
        if kind.wanted is not None:
            kind.wanted(graph)
    return graph.stages
