"""Comparison support: could the margins of this data identify any prompt's scale at all?

The counting rules are those of the paper's appendix "Comparison support in the policy-training data": ties are left
out; prompts and unordered response pairs are matched exactly; in the graph analysis, repeats of an edge with the same
orientation and strength count once; self-comparisons are counted, but left out of cycles and contrasts (a self-pair is
still one of a prompt's distinct pairs).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.core.margins import StrengthMap
from unmdpo.data.comparison import Comparisons
from unmdpo.stats.identification import ComparisonGraph, is_identified, kappa

Edge = tuple[str, str, float]  # preferred, rejected, strength


@dataclass(frozen=True)
class SupportAudit:
    """Counts over the training rows; every `prompts_*` is a number of prompts."""

    rows: int
    ties: int
    skipped: tuple[str, ...]  # what was wrong with each unreadable row
    exact_duplicates: int  # rows that repeat an earlier row's prompt, orientation and strength
    prompts: int
    pair_units: int  # distinct (prompt, unordered pair)
    prompts_one_pair: int
    prompts_several_pairs: int
    prompts_disconnected: int  # several pairs, not all linked through shared responses
    prompts_with_cycle: int  # a cycle through three or more responses
    prompts_parallel_contrast: int  # one pair with different margins or directions
    self_comparisons: int  # rows that compare a response with itself
    prompts_identified: int  # margin-contrast condition, without self-comparisons
    prompts_identified_with_self: int  # the same with self-comparisons as one-edge cycles
    kappa_min: float | None  # ‖Pc‖ over identified prompts: small means ill-conditioned
    kappa_median: float | None
    tau: float
    strength_map: str
    source: str = ""  # that read the data
    graded: str = ""  # how strengths came about

    @property
    def verdict(self) -> str:
        """What the counts mean for learning a scale."""
        if not self.prompts_identified:
            return (
                "No prompt's comparisons could identify a scale of its own. That is usual: a scale is then learned "
                "across prompts, from what similar prompts have in common (docs/method/scales.md)."
            )
        share = self.prompts_identified / self.prompts
        rest = "" if share == 1 else "; for the others, a scale can only be learned from similar prompts"
        return (
            f"The comparisons of {self.prompts_identified:,} of {self.prompts:,} prompts ({share:.1%}) could identify "
            f"a scale of their own{rest}."
        )

    def to_dict(self) -> dict[str, Any]:
        return {"audit": "support", **vars(self), "verdict": self.verdict}


@dataclass(frozen=True)
class PromptSupport:
    """What one prompt's comparisons can show."""

    pairs: int
    disconnected: bool
    cycle: bool
    parallel_contrast: bool
    kappa: float  # zero: not identified
    identified_with_self: bool


def audit_support(data: Comparisons, *, strength_map: StrengthMap | None = None, tau: float = 1.0) -> SupportAudit:
    """Counts the rows and prompts that matter for the margin-contrast condition of Theorem 4.1."""
    if not 0 <= tau < math.inf:
        raise UserError(f"τ should be a finite number of at least 0, not {tau}")
    m = strength_map or StrengthMap()
    edges: dict[str, Counter[Edge]] = defaultdict(Counter)
    for row in data:
        edges[row.prompt_hash][row.chosen, row.rejected, row.strength] += 1
    prompts = [prompt_support(list(distinct), m, tau) for distinct in edges.values()]
    kappas = [prompt.kappa for prompt in prompts if prompt.kappa > 0]
    distinct_edges = sum(map(len, edges.values()))
    several = [prompt for prompt in prompts if prompt.pairs > 1]
    return SupportAudit(
        rows=len(data),
        ties=len(data.ties),
        skipped=tuple(str(error) for error in data.skipped),
        exact_duplicates=len(data) - distinct_edges,
        prompts=len(prompts),
        pair_units=sum(prompt.pairs for prompt in prompts),
        prompts_one_pair=len(prompts) - len(several),
        prompts_several_pairs=len(several),
        prompts_disconnected=sum(prompt.disconnected for prompt in several),
        prompts_with_cycle=sum(prompt.cycle for prompt in prompts),
        prompts_parallel_contrast=sum(prompt.parallel_contrast for prompt in prompts),
        self_comparisons=sum(row.chosen == row.rejected for row in data),
        prompts_identified=len(kappas),
        prompts_identified_with_self=sum(prompt.identified_with_self for prompt in prompts),
        kappa_min=min(kappas, default=None),
        kappa_median=float(np.median(kappas)) if kappas else None,
        tau=tau,
        strength_map="m(k) = k" if m.levels is None else f"m = {list(m.levels)}",
        source=data.source,
        graded=data.graded,
    )


def prompt_support(edges: Sequence[Edge], m: StrengthMap, tau: float) -> PromptSupport:
    """The support of one prompt's distinct edges."""
    proper = [edge for edge in edges if edge[0] != edge[1]]
    loop_margin = any(tau * m(k) > 0 for chosen, rejected, k in edges if chosen == rejected)
    pairs = {(min(a, b), max(a, b)) for a, b, _ in edges}
    if len(edges) == 1:  # the case for nearly all prompts
        return PromptSupport(1, False, False, False, 0.0, loop_margin)
    graph = ComparisonGraph.of([(a, b) for a, b, _ in proper], [tau * m(k) for _, _, k in proper])
    simple = ComparisonGraph.of(sorted(pairs), np.zeros(len(pairs)))
    proper_pairs = len(pairs) - sum(a == b for a, b in pairs)
    roots = simple.forest.parent.count(-1)
    identified = is_identified(graph)
    return PromptSupport(
        pairs=len(pairs),
        disconnected=len(pairs) > 1 and roots > 1,
        cycle=proper_pairs > simple.vertices - roots,
        parallel_contrast=_parallel_contrast(proper, m, tau),
        kappa=kappa(graph) if identified else 0.0,
        identified_with_self=identified or loop_margin,
    )


def _parallel_contrast(edges: Sequence[Edge], m: StrengthMap, tau: float) -> bool:
    """Whether some unordered pair is compared with different signed margins."""
    signed: dict[tuple[str, str], set[float]] = defaultdict(set)
    for a, b, k in edges:
        signed[min(a, b), max(a, b)].add(tau * m(k) if a < b else -tau * m(k))
    return any(len(margins) > 1 for margins in signed.values())
