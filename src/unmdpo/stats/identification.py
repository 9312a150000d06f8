"""When do known margins identify a prompt's scale? (Theorem 4.1 and its appendix.)

A prompt's comparisons form a multigraph: responses are vertices, each comparison an edge from the preferred to the
rejected response with a known margin c_e = τ·m(k_e). The WR scores are t = (Dr − c)/q with incidence matrix D. They
determine q and every gap Dr exactly when no potential h on the responses satisfies Dh = c: when the margins do not
cancel around some cycle.

Everything here is built on a spanning forest: each edge outside it closes one cycle, and these cycles span ker(Dᵀ), so
their margin sums decide whether the scale is identified and serve as witnesses. Self-comparisons are one-edge cycles;
parallel edges close two-edge ones. All work is sparse and linear in the comparisons, except for one solve on the
responses when κ or a recovery is requested.

The theorem is about WR with one scale per prompt. Under AO, t = Dr/q − c, and (a·r, a·q) gives the same scores for
every a > 0, so no margins can identify an AO scale.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.linalg import cg, spsolve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGE, PRECISE, STEPS = 500, 1e-13, 1000  # responses beyond which a system is solved step by step; how closely
CANCELS = 1e-9  # cycle sums smaller than this share of their terms' size are rounding errors


class Cycle(NamedTuple):
    """A closed chain of comparisons; the sign is −1 if an edge is walked against its direction."""

    edges: tuple[int, ...]
    signs: tuple[int, ...]
    margin_sum: float  # Σ ω_e c_e; nonzero cycles identify the scale


class Recovery(NamedTuple):
    scale: float
    gaps: Floats  # (n_e,) reward differences, one per comparison


@dataclass(frozen=True)
class ComparisonGraph:
    """The comparisons of one prompt (or of many: components never mix)."""

    winners: Ints  # (n_e,) vertex of the preferred response
    losers: Ints  # (n_e,)
    margins: Floats  # (n_e,) τ·m(k)
    vertices: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[Hashable, Hashable]], margins: ArrayLike) -> "ComparisonGraph":
        """A graph from (preferred, rejected) pairs of any hashable responses."""
        index: dict[Hashable, int] = {}
        ends = [(index.setdefault(w, len(index)), index.setdefault(x, len(index))) for w, x in pairs]
        array = np.array(ends, dtype=np.int64).reshape(-1, 2)
        values = np.asarray(margins, dtype=np.float64)
        if values.shape != (len(array),):
            raise ValueError(f"{len(array)} comparisons need as many margins, not shape {values.shape}")
        return cls(array[:, 0], array[:, 1], values, len(index))

    @property
    def edges(self) -> int:
        return len(self.margins)

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """D: row e is the unit vector of x⁺ minus that of x⁻; zero for a self-comparison."""
        rows = np.concatenate([np.arange(self.edges)] * 2)
        columns = np.concatenate([self.winners, self.losers])
        signs = np.repeat([1.0, -1.0], self.edges)
        return sparse.csr_array((signs, (rows, columns)), shape=(self.edges, self.vertices))

    @cached_property
    def forest(self) -> "Forest":
        return _spanning_forest(self)

    @cached_property
    def tree_potential(self) -> Floats:
        """(n_v,) h that reproduces the margins along the forest's edges."""
        potential = np.zeros(self.vertices)
        for vertex, parent, edge in self.forest.tree_edges:
            step = self.margins[edge]
            potential[vertex] = potential[parent] + (step if self.winners[edge] == vertex else -step)
        return potential

    @cached_property
    def cycle_sums(self) -> Floats:
        """(n_e,) Σ ω_e c_e around the cycle that each edge closes with the forest.

        Zero for the forest's edges, and exactly zero if the margins cancel up to rounding.
        """
        sums = self.margins - (self.tree_potential[self.winners] - self.tree_potential[self.losers])
        path = np.zeros(self.vertices)  # size of the margins from each vertex up to its root
        for vertex, parent, edge in self.forest.tree_edges:
            path[vertex] = path[parent] + abs(self.margins[edge])
        sizes = np.abs(self.margins) + path[self.winners] + path[self.losers]
        return np.where(np.abs(sums) > CANCELS * sizes, sums, 0.0)

    def project(self, values: Floats) -> Floats:
        """P·values: the part of edge values that no response rewards can absorb.

        This is the residual of least squares on the vertices, with one vertex of each component held at zero.
        """
        if len(self.forest.tree_edges) == self.edges:
            return np.zeros(self.edges)  # a forest absorbs everything
        free = np.array([vertex for vertex, _, _ in self.forest.tree_edges], dtype=np.int64)
        if not free.size:
            return values
        d = self.incidence[:, free].tocsc()
        residual: Floats = values - d @ _solved((d.T @ d).tocsc(), d.T @ values)
        return residual


def _solved(laplacian: sparse.csc_array, right: Floats) -> Floats:
    """Many responses that are all compared with each other fill a factorization, whose time is then cubic; conjugate
    gradients need few steps there. Long chains need many, but hardly fill it."""
    if len(right) > LARGE:
        jacobi = sparse.diags_array(1 / laplacian.diagonal())
        found, failed = cg(laplacian, right, rtol=PRECISE, atol=0.0, maxiter=STEPS, M=jacobi)
        if not failed:
            return np.asarray(found, dtype=np.float64)
    return np.atleast_1d(spsolve(laplacian, right))


def is_identified(graph: ComparisonGraph) -> bool:
    """The margin-contrast condition: c ∉ im(D)."""
    return bool(np.any(graph.cycle_sums))


def margin_potential(graph: ComparisonGraph) -> Floats | None:
    """h with h(x⁺) − h(x⁻) = c_e for every comparison, or None when the scale is identified."""
    return None if is_identified(graph) else graph.tree_potential


def witness_cycle(graph: ComparisonGraph) -> Cycle | None:
    """The fundamental cycle with the largest margin sum; None if all margins cancel."""
    if not is_identified(graph):
        return None
    return fundamental_cycle(graph, int(np.argmax(np.abs(graph.cycle_sums))))


def fundamental_cycle(graph: ComparisonGraph, edge: int) -> Cycle:
    """The cycle that an edge outside the forest closes: the edge, then the tree path back."""
    path = _tree_path(graph, int(graph.losers[edge]), int(graph.winners[edge]))
    edges, signs = zip(*sorted([(edge, 1), *path]), strict=True)
    return Cycle(edges, signs, float(graph.cycle_sums[edge]))


def contrast(graph: ComparisonGraph) -> Floats:
    """Pc: the part of the margins that no response rewards can absorb."""
    return graph.project(graph.margins) if is_identified(graph) else np.zeros(graph.edges)


def kappa(graph: ComparisonGraph) -> float:
    """κ = ‖Pc‖₂; zero exactly when the scale is not identified."""
    return float(np.linalg.norm(contrast(graph)))


def wr_scores(graph: ComparisonGraph, rewards: ArrayLike, scale: float) -> Floats:
    """(n_e,) t = (Dr − c)/q of every comparison, from a reward for each response."""
    scores: Floats = (graph.incidence @ np.asarray(rewards, dtype=np.float64) - graph.margins) / scale
    return scores


def recover(graph: ComparisonGraph, scores: ArrayLike) -> Recovery:
    """The scale and every compared gap from WR scores (Eq. wr-cycle-recovery, all cycles at once)."""
    t = np.asarray(scores, dtype=np.float64)
    inverse = inverse_scale(graph, t)
    if inverse <= 0:
        raise ValueError(f"no positive scale can give these scores (1/q = {inverse:g})")
    scale = 1 / inverse
    return Recovery(scale, scale * t + graph.margins)


def inverse_scale(graph: ComparisonGraph, scores: ArrayLike) -> float:
    """α̂ = −(Pc)ᵀt/κ², the least-squares 1/q; its error obeys `perturbation_bound`."""
    _require_identified(graph)
    direction = contrast(graph)
    t = np.asarray(scores, dtype=np.float64)
    return float(-(direction @ t) / (direction @ direction))


def _require_identified(graph: ComparisonGraph) -> None:
    if not is_identified(graph):
        raise ValueError("the margins cancel around every cycle: the scores do not determine the scale")


def perturbation_bound(graph: ComparisonGraph, noise: ArrayLike) -> float:
    """‖Pε‖/κ ≥ |α̂ − α| for scores t + ε (Eq. wr-scale-stability)."""
    _require_identified(graph)
    projected = graph.project(np.asarray(noise, dtype=np.float64))
    return float(np.linalg.norm(projected)) / kappa(graph)


def equal_score_twin(graph: ComparisonGraph, rewards: ArrayLike, scale: float, factor: float) -> tuple[Floats, float]:
    """Other rewards and a scale `factor` times as large with the same WR scores.

    The converse half of the theorem; they exist only if the scale is not identified.
    """
    if not factor > 0:
        raise ValueError(f"the factor must be positive, as scales are, not {factor}")
    potential = margin_potential(graph)
    if potential is None:
        raise ValueError("the scale is identified: no other parameters have the same scores")
    return factor * np.asarray(rewards, dtype=np.float64) + (1 - factor) * potential, factor * scale


@dataclass(frozen=True)
class Forest:
    """A breadth-first spanning forest, roots first."""

    parent: list[int]  # (n_v,) −1 for a root
    parent_edge: list[int]
    depth: list[int]
    order: list[int]

    @cached_property
    def tree_edges(self) -> list[tuple[int, int, int]]:
        """(vertex, its parent, the edge between), parents always before children."""
        return [(v, self.parent[v], self.parent_edge[v]) for v in self.order if self.parent[v] >= 0]


def _spanning_forest(graph: ComparisonGraph) -> Forest:
    neighbors: list[list[tuple[int, int]]] = [[] for _ in range(graph.vertices)]
    for edge, (w, x) in enumerate(zip(graph.winners.tolist(), graph.losers.tolist(), strict=True)):
        if w != x:
            neighbors[w].append((x, edge))
            neighbors[x].append((w, edge))
    forest = Forest([-1] * graph.vertices, [-1] * graph.vertices, [-1] * graph.vertices, [])
    for root in range(graph.vertices):
        if forest.depth[root] >= 0:
            continue
        forest.depth[root] = 0
        queue = deque([root])
        while queue:
            vertex = queue.popleft()
            forest.order.append(vertex)
            for other, edge in neighbors[vertex]:
                if forest.depth[other] < 0:
                    forest.parent[other], forest.parent_edge[other] = vertex, edge
                    forest.depth[other] = forest.depth[vertex] + 1
                    queue.append(other)
    return forest


def _tree_path(graph: ComparisonGraph, start: int, stop: int) -> list[tuple[int, int]]:
    """Signed tree edges on the way from `start` to `stop`."""
    forest, up, down = graph.forest, list[tuple[int, int]](), list[tuple[int, int]]()
    while start != stop:
        climb_start = forest.depth[start] >= forest.depth[stop]
        vertex = start if climb_start else stop
        edge = forest.parent_edge[vertex]
        forward = 1 if graph.winners[edge] == vertex else -1  # from child to parent
        if climb_start:
            up.append((edge, forward))
            start = forest.parent[vertex]
        else:
            down.append((edge, -forward))
            stop = forest.parent[vertex]
    return up + down
