"""Theorem 4.1 in both directions, its worked examples, and the error bound."""

import math
import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from unmdpo.stats import identification
from unmdpo.stats.identification import (
    ComparisonGraph,
    contrast,
    equal_score_twin,
    fundamental_cycle,
    inverse_scale,
    is_identified,
    kappa,
    margin_potential,
    perturbation_bound,
    recover,
    witness_cycle,
)


def scores(graph, rewards, scale):
    return (graph.incidence @ np.asarray(rewards, dtype=float) - graph.margins) / scale


def projection(graph):
    """P onto ker(Dᵀ) from a dense pseudo-inverse: the slow counterpart of the cycle basis."""
    d = graph.incidence.toarray()
    return np.eye(graph.edges) - d @ np.linalg.pinv(d)


def test_triangle_of_the_paper():
    # (a,b), (b,c), (a,c) with margins 1, 2, 2: the cycle sums to 1 + 2 − 2 = 1.
    graph = ComparisonGraph.of([("a", "b"), ("b", "c"), ("a", "c")], [1, 2, 2])
    assert is_identified(graph)
    cycle = witness_cycle(graph)
    assert cycle is not None
    assert cycle.edges == (0, 1, 2)
    assert cycle.signs in ((1, 1, -1), (-1, -1, 1))
    assert abs(cycle.margin_sum) == pytest.approx(1)
    assert kappa(graph) == pytest.approx(1 / np.sqrt(3))  # |s·c|/‖s‖ with ‖s‖² = 3
    # rewards (3, 1, 0), q = 2: gaps 2, 1, 3, scores (2−1)/2, (1−2)/2, (3−2)/2
    t = [0.5, -0.5, 0.5]
    assert t == pytest.approx(scores(graph, [3, 1, 0], 2))
    found = recover(graph, t)
    assert found.scale == pytest.approx(2)
    assert found.gaps == pytest.approx([2, 1, 3])


def test_equal_margins_identify_a_triangle_and_additive_ones_do_not():
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    assert is_identified(ComparisonGraph.of(pairs, [1, 1, 1]))
    additive = ComparisonGraph.of(pairs, [1, 2, 3])
    assert not is_identified(additive)
    potential = margin_potential(additive)
    assert potential is not None
    assert additive.incidence @ potential == pytest.approx([1, 2, 3])


def test_strength_contrast_on_one_pair():
    # q = τ[m(k₂) − m(k₁)]/(Γ₁ − Γ₂): margins 1 and 3, gap 2, q = 4 → scores 1/4 and −1/4.
    graph = ComparisonGraph.of([("x", "y"), ("x", "y")], [1, 3])
    assert recover(graph, [0.25, -0.25]).scale == pytest.approx((3 - 1) / (0.25 + 0.25))
    assert recover(graph, [0.25, -0.25]).gaps == pytest.approx([2, 2])
    repeated = ComparisonGraph.of([("x", "y"), ("x", "y")], [2, 2])
    assert not is_identified(repeated)  # repeating an identical edge adds nothing
    opposed = ComparisonGraph.of([("x", "y"), ("y", "x")], [2, 2])
    assert is_identified(opposed)  # contradicting directions: the cycle sums to 4
    assert abs(witness_cycle(opposed).margin_sum) == pytest.approx(4)


def test_self_comparison_is_a_one_edge_cycle():
    graph = ComparisonGraph.of([("x", "x")], [3])
    assert graph.incidence.toarray() == pytest.approx(np.zeros((1, 1)))
    assert recover(graph, [-1.5]).scale == pytest.approx(2)  # q = −c/t
    assert not is_identified(ComparisonGraph.of([("x", "x")], [0]))


def test_forests_never_identify():
    graph = ComparisonGraph.of([("a", "b"), ("a", "c"), ("d", "e")], [1, 2, 3])
    assert kappa(graph) == 0
    assert witness_cycle(graph) is None
    with pytest.raises(ValueError, match="do not determine the scale"):
        recover(graph, [0, 0, 0])


def test_no_margins_no_identification():
    triangle = [("a", "b"), ("b", "c"), ("a", "c")]
    assert not is_identified(ComparisonGraph.of(triangle, [0, 0, 0]))  # τ = 0: h ≡ 0


def test_rounding_is_not_a_contrast():
    assert 0.1 + 0.2 != 0.3
    graph = ComparisonGraph.of([("a", "b"), ("b", "c"), ("a", "c")], [0.1, 0.2, 0.3])
    assert not is_identified(graph)


def test_advantage_only_is_never_identified():
    graph = ComparisonGraph.of([("a", "b"), ("b", "c"), ("a", "c")], [1, 1, 1])
    rewards, scale = np.array([3.0, 1.0, 0.0]), 2.0
    ao = graph.incidence @ rewards / scale - graph.margins
    twin = graph.incidence @ (5 * rewards) / (5 * scale) - graph.margins
    assert ao == pytest.approx(twin)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="as many margins"):
        ComparisonGraph.of([("a", "b")], [1, 2])
    triangle = ComparisonGraph.of([("a", "b"), ("b", "c"), ("a", "c")], [1, 1, 1])
    with pytest.raises(ValueError, match="no positive scale can give these scores"):
        recover(triangle, -scores(triangle, [0, 0, 0], 1.0))
    with pytest.raises(ValueError, match="is identified"):
        equal_score_twin(triangle, [0, 0, 0], 1.0, 2.0)
    forest = ComparisonGraph.of([("a", "b")], [1])
    with pytest.raises(ValueError, match="factor must be"):
        equal_score_twin(forest, [0, 0], 1.0, -2.0)
    with pytest.raises(ValueError, match="do not determine the scale"):
        perturbation_bound(forest, [0.1])


def test_many_responses_are_quick():
    """All pairs of 200 responses: 19,900 comparisons, almost as many cycles."""
    pairs = [(a, b) for a in range(200) for b in range(a)]
    graph = ComparisonGraph.of(pairs, [1 + (a * b) % 3 for a, b in pairs])
    rewards = np.linspace(-3, 3, 200)
    started = time.process_time()
    assert recover(graph, scores(graph, rewards, 1.7)).scale == pytest.approx(1.7)
    assert time.process_time() - started < 5


@st.composite
def graphs(draw):
    vertices = draw(st.integers(1, 6))
    ends = st.tuples(st.integers(0, vertices - 1), st.integers(0, vertices - 1))
    pairs = draw(st.lists(ends, min_size=1, max_size=10))
    if draw(st.booleans()):  # sometimes, margins that a potential absorbs
        h = draw(st.lists(st.integers(-3, 3), min_size=vertices, max_size=vertices))
        margins = [h[w] - h[x] for w, x in pairs]
    else:
        margins = [draw(st.integers(0, 3)) for _ in pairs]
    return ComparisonGraph.of(pairs, margins)


rewards_of = st.lists(st.floats(-5, 5), min_size=6, max_size=6)
scales = st.floats(0.2, 5)


@given(graphs())
def test_identified_exactly_when_no_potential_exists(graph):
    d = graph.incidence.toarray()
    best = np.linalg.lstsq(d, graph.margins, rcond=None)[0]
    solvable = np.allclose(d @ best, graph.margins, atol=1e-9)
    assert is_identified(graph) is not solvable
    potential = margin_potential(graph)
    assert (potential is None) is is_identified(graph)
    if potential is not None:
        assert d @ potential == pytest.approx(graph.margins, abs=1e-9)


def vector(graph, cycle):
    s = np.zeros(graph.edges)
    s[list(cycle.edges)] = cycle.signs
    return s


@given(graphs())
def test_cycles_span_the_kernel(graph):
    outside = sorted(set(range(graph.edges)) - set(graph.forest.parent_edge))
    basis = np.array([vector(graph, fundamental_cycle(graph, edge)) for edge in outside])
    plain = nx.MultiGraph(zip(graph.winners.tolist(), graph.losers.tolist(), strict=True))
    circuits = graph.edges - plain.number_of_nodes() + nx.number_connected_components(plain)
    assert len(basis) == circuits
    if circuits:
        assert not (basis @ graph.incidence.toarray()).any()
        assert np.linalg.matrix_rank(basis) == circuits
        assert basis @ graph.margins == pytest.approx(graph.cycle_sums[outside], abs=1e-9)
    assert contrast(graph) == pytest.approx(projection(graph) @ graph.margins, abs=1e-9)
    values = np.linspace(-1, 2, graph.edges)
    assert graph.project(values) == pytest.approx(projection(graph) @ values, abs=1e-9)


@given(graphs(), rewards_of, scales)
def test_recovery_is_exact_when_identified(graph, rewards, scale):
    assume(is_identified(graph))
    r = np.asarray(rewards[: graph.vertices])
    found = recover(graph, scores(graph, r, scale))
    assert found.scale == pytest.approx(scale, rel=1e-8)
    assert found.gaps == pytest.approx(graph.incidence @ r, abs=1e-7)
    cycle = witness_cycle(graph)
    s = vector(graph, cycle)
    assert not np.any(s @ graph.incidence)
    assert s @ graph.margins == pytest.approx(cycle.margin_sum)
    assert -cycle.margin_sum / (s @ scores(graph, r, scale)) == pytest.approx(scale, rel=1e-7)


@given(graphs(), rewards_of, scales, st.floats(0.1, 10))
def test_a_whole_family_has_equal_scores_when_not(graph, rewards, scale, factor):
    assume(not is_identified(graph))
    r = np.asarray(rewards[: graph.vertices])
    twin_rewards, twin_scale = equal_score_twin(graph, r, scale, factor)
    assert twin_scale == pytest.approx(factor * scale)
    assert scores(graph, twin_rewards, twin_scale) == pytest.approx(scores(graph, r, scale), abs=1e-8)


@given(graphs(), rewards_of, scales, st.lists(st.floats(-1, 1), min_size=10, max_size=10))
def test_perturbation_bound_holds(graph, rewards, scale, noise):
    assume(is_identified(graph))
    t = scores(graph, rewards[: graph.vertices], scale)
    epsilon = np.asarray(noise[: graph.edges])
    bound = perturbation_bound(graph, epsilon)
    assert bound == pytest.approx(np.linalg.norm(projection(graph) @ epsilon) / kappa(graph), abs=1e-9)
    assert abs(inverse_scale(graph, t + epsilon) - 1 / scale) <= bound + 1e-9


def test_many_responses_are_solved_step_by_step_to_the_same_numbers(monkeypatch):
    rng = np.random.default_rng(3)
    first = rng.integers(0, 80, 600)
    second = (first + 1 + rng.integers(0, 79, 600)) % 80
    graph = ComparisonGraph.of([*zip(first.tolist(), second.tolist(), strict=True)], rng.integers(1, 4, 600))
    direct = contrast(graph)
    monkeypatch.setattr(identification, "LARGE", 10)
    assert np.allclose(contrast(graph), direct, atol=1e-9)
    ring = ComparisonGraph.of([(i, i + 1) for i in range(5000)] + [(0, 5000)], [1.0] * 5000 + [3.0])
    assert kappa(ring) == pytest.approx(4997 / math.sqrt(5001), rel=1e-9)  # too long for steps: solved at once
