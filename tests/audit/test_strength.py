"""The leave-one-annotator-out audit, checked against slow reference code, the paper's numbers, and a locked test."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.worlds.rows import helpsteer3_row
from unmdpo.audit.strength import (
    BOOTSTRAPS,
    MAX_P,
    MIN_EXTREME_VOTES,
    PERMUTATIONS,
    SEEDS,
    Bin,
    HeldOut,
    PartitionResult,
    analyse_partition,
    audit_strength,
    clustered_contrast,
    criterion,
    describe_bin,
    held_out_votes,
    hold_out,
    permutation_test,
)
from unmdpo.audit.votes import Record, partition_prompts
from unmdpo.core.errors import UserError
from unmdpo.data import load_comparisons, prompt_hash, rows_of


def wilson(successes, n, z=1.959963984540054):
    centre = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    return centre - half, centre + half


@pytest.mark.parametrize(
    ("agreeing", "votes", "low", "high"),
    [(3118, 3236, 95.65, 96.95), (1864, 1864, 99.79, 100.0), (2065, 2065, 99.81, 100.0)],
)
def test_wilson_intervals_of_the_papers_table(agreeing, votes, low, high):
    held_out = HeldOut(
        evidence=np.ones(votes),
        agrees=np.arange(votes) < agreeing,
        record=np.arange(votes),
        prompt=np.arange(votes),
        record_domain=np.zeros(votes, dtype=np.int64),
    )
    found = describe_bin(held_out, "low", np.ones(votes, dtype=bool))
    assert found.interval == pytest.approx(wilson(agreeing, votes))
    assert (round(100 * found.interval[0], 2), round(100 * found.interval[1], 2)) == (low, high)


def test_held_out_votes_by_hand():
    # holding out −1 leaves (2, 3): evidence 2.5, disagreement; holding out 2 or 3 leaves mixed signs
    assert held_out_votes([2, 3, -1]) == [(2.5, False)]
    assert held_out_votes([1, 1, 3]) == [(2.0, True), (2.0, True), (1.0, True)]
    assert held_out_votes([-1, -2, -3]) == [(2.5, True), (2.0, True), (1.5, True)]
    assert held_out_votes([1, -1, 2, -2]) == []


@given(st.lists(st.sampled_from([-3, -2, -1, 1, 2, 3]), min_size=3, max_size=6))
def test_held_out_votes_equal_the_definition(votes):
    slow = []
    for h, held in enumerate(votes):
        rest = votes[:h] + votes[h + 1 :]
        if all(v > 0 for v in rest) or all(v < 0 for v in rest):
            slow.append((abs(np.mean(rest)), np.sign(held) == np.sign(rest[0])))
    assert [(pytest.approx(e), a) for e, a in slow] == held_out_votes(votes)


def test_eligibility_needs_three_votes_with_a_direction():
    records = [
        Record("p1", "d", (1, 2)),  # two annotators
        Record("p2", "d", (1, 2, 0)),  # a vote for "the same" has no direction
        Record("p3", "d", (1, 2, 0, 3)),
    ]
    held_out = hold_out(records)
    assert held_out.evidence.tolist() == [2.5, 2.0, 1.5]
    assert len(held_out.record_domain) == 1
    assert analyse_partition(records, 1, 2).zero_votes == 2


def noisy_records(n, seed, effect=True):
    """Records whose agreement grows with strength, or doesn't."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(n):
        size = int(rng.integers(1, 4))
        flip = rng.random() < (0.45 - 0.14 * size if effect else 0.2)
        votes = (size, size, -1 if flip else 1)
        records.append(Record(f"prompt{i // 2}", "code" if i % 3 else "stem", votes))
    return records


def test_the_papers_constants():
    assert (BOOTSTRAPS, PERMUTATIONS) == (5_000, 10_000)
    assert SEEDS == {"train": (260822, 260823), "development": (260832, 260833)}
    assert (MIN_EXTREME_VOTES, MAX_P) == (50, 0.05)


def test_bins_include_their_documented_edges():
    # evidence: 1.5, 1.0, 1.5 for the first record; 1.5, 1.5, 2.0 for the second; 2.0, 1.5, 2.5 for the third
    votes = [(1, 2, 1), (2, 2, 1), (2, 3, 1)]
    held_out = hold_out([Record(f"p{i}", "d", v) for i, v in enumerate(votes)])
    low, middle, high = held_out.bins.values()
    assert sorted(held_out.evidence[low].tolist()) == [1.0, 1.5, 1.5, 1.5, 1.5, 1.5]
    assert sorted(held_out.evidence[middle].tolist()) == [2.0, 2.0]
    assert held_out.evidence[high].tolist() == [2.5]


def clustered_records():
    """Prompts with very different numbers of records, which agree or disagree together."""
    records = []
    for i in range(30):
        size = 3 if i % 2 else 1
        held = -1 if i % 5 == 0 else 1
        records += [Record(f"prompt{i}", "code", (size, size, held * size))] * (1 + i % 7)
    return records


def test_bootstrap_resamples_prompts_not_votes():
    held_out = hold_out(clustered_records())
    point, interval = clustered_contrast(held_out, seed=260832)
    low, _, high = held_out.bins.values()
    assert point == pytest.approx(held_out.agrees[high].mean() - held_out.agrees[low].mean())
    prompts = int(held_out.prompt.max()) + 1
    members = [np.flatnonzero(held_out.prompt == p) for p in range(prompts)]
    rng, slow = np.random.default_rng(260832), []
    for _ in range(5_000):
        votes = np.concatenate([members[p] for p in rng.integers(0, prompts, prompts)])
        agrees, is_low, is_high = held_out.agrees[votes], low[votes], high[votes]
        slow.append(agrees[is_high].mean() - agrees[is_low].mean())
    assert interval == pytest.approx(np.percentile(slow, [2.5, 97.5]), abs=1e-12)


def domain_records(n=60):
    """Evidence and agreement differ between domains, but are unrelated within them."""
    rng = np.random.default_rng(4)
    records = []
    for i in range(n):
        easy = i % 2 == 0
        size = int(rng.integers(2, 4)) if easy else int(rng.integers(1, 3))
        agrees = rng.random() < (0.95 if easy else 0.5)
        records.append(Record(f"p{i}", "easy" if easy else "hard", (size, size, size if agrees else -size)))
    return records


def test_permutations_stay_within_domains():
    held_out = hold_out(domain_records())
    correlation, p = permutation_test(held_out, seed=260833)
    records = range(len(held_out.record_domain))
    evidence = np.array([held_out.evidence[held_out.record == r].mean() for r in records])
    agreement = np.array([held_out.agrees[held_out.record == r].mean() for r in records])
    assert correlation == pytest.approx(stats.pearsonr(evidence, agreement).statistic)

    def slow_p(groups):
        rng, exceeding = np.random.default_rng(0), 0
        for _ in range(2000):
            shuffled = evidence.copy()
            for members in groups:
                shuffled[members] = rng.permutation(evidence[members])
            exceeding += np.corrcoef(shuffled, agreement)[0, 1] >= correlation - 1e-12
        return (1 + exceeding) / 2001

    within = slow_p([held_out.record_domain == d for d in (0, 1)])
    across = slow_p([np.ones(len(records), dtype=bool)])
    assert abs(within - across) > 0.1  # the two tests differ here, and ours is the one within domains
    assert p == pytest.approx(within, abs=0.03)


@pytest.mark.parametrize("n", [534, 658])
def test_equal_correlations_count_as_equal(n):
    """Evidence is constant within domains, so every permutation is the data itself and p is one."""
    rng, records = np.random.default_rng(n), []
    for i in range(n):
        k = int(rng.integers(1, 4))
        held = -k if rng.random() < 0.3 - 0.08 * k else k
        records.append(Record(f"p{i}", f"d{k}", (k, k, held)))
    assert permutation_test(hold_out(records), 260833)[1] == 1


def result(correlation=0.2, p=0.01, votes=60, contrast=0.03, low=0.01):
    bins = [Bin(name, votes, 9, 1.0, 0.9, (0.8, 1.0)) for name in ("low", "middle", "high")]
    return PartitionResult(9, 9, 9, 0, bins, contrast, (low, 0.05), correlation, p)


@pytest.mark.parametrize(
    ("train", "development", "failing"),
    [
        ({}, {}, None),
        ({"correlation": -0.1}, {}, 0),
        ({}, {"correlation": -0.1}, 1),
        ({}, {"p": 0.051}, 2),
        ({"p": 0.9, "votes": 1, "contrast": -1}, {}, None),  # required of development only
        ({}, {"votes": 49}, 3),
        ({}, {"low": -0.001}, 4),
        ({}, {"low": 0.0}, 4),
    ],
)
def test_each_condition_of_the_criterion(train, development, failing):
    met = list(criterion(result(**train), result(**development)).values())
    assert met == [i != failing for i in range(5)]


def test_smallest_attainable_p():
    found = analyse_partition(noisy_records(3000, seed=1), 260832, 260833)
    assert found.p_value == 1 / (PERMUTATIONS + 1)
    assert f"{found.p_value:.3e}" == "9.999e-05"  # as printed in the paper
    assert found.contrast_interval[0] > 0


def test_partition_is_80_10_10_by_domain_and_documented_order():
    domains = {hashlib.sha256(str(i).encode()).hexdigest(): "ab"[i % 4 == 0] for i in range(200)}
    parts = partition_prompts(domains)
    for domain, size in (("a", 150), ("b", 50)):
        mine = [p for p in domains if domains[p] == domain]
        counts = [sum(parts[p] == part for p in mine) for part in ("train", "development", "test")]
        assert counts == [size - 2 * (size // 10), size // 10, size // 10]
        ranked = sorted(mine, key=lambda p: hashlib.sha256(f"260820:{p}".encode()).hexdigest())
        assert {parts[p] for p in ranked[: size // 10]} == {"development"}
        assert {parts[p] for p in ranked[size // 10 : size // 5]} == {"test"}


def audit_rows(n=300):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        size = int(rng.integers(1, 4))
        votes = (-size, -size, 1 if rng.random() < 0.5 - 0.16 * size else -1)
        rows.append(helpsteer3_row(f"Question {i}?", votes=votes, domain="code" if i % 3 else "stem"))
    return rows


def is_locked(row, rows):
    domains = {prompt_hash(r["context"]): r["domain"] for r in rows}
    return partition_prompts(domains)[prompt_hash(row["context"])] == "test"


def test_locked_test_labels_are_never_parsed(write):
    rows = audit_rows()
    plain = audit_strength(rows_of(write(rows), split="all"))
    for row in rows:
        if is_locked(row, rows):
            row["overall_preference"] = "not a number"
            row["individual_preference"] = {"also": "nonsense"}
    path = write(rows, "garbage.jsonl")
    assert audit_strength(rows_of(path, split="all")) == plain
    with pytest.raises(UserError):  # the same labels are an error if they are read
        load_comparisons(path)
    assert plain.prompts == {"train": 240, "development": 30, "test": 30}
    assert plain.train.records == 240


def test_union_of_splits_is_deduplicated(write, tmp_path):
    rows = audit_rows(100)
    write(rows, "hs3/preference/train.jsonl.gz")
    write([*rows[:10], helpsteer3_row("Only here?", votes=(1, 1, 1))], "hs3/preference/validation.jsonl.gz")
    audit = audit_strength(rows_of(str(tmp_path / "hs3"), split="all", source="helpsteer3"))
    assert sum(audit.prompts.values()) == 101
    open_repeats = sum(not is_locked(row, [*rows, helpsteer3_row("Only here?")]) for row in rows[:10])
    assert audit.duplicates == open_repeats


def test_only_exact_duplicates_are_dropped(write):
    row = helpsteer3_row("Same?")
    others = [
        helpsteer3_row("Same?", response2="another"),
        helpsteer3_row("Same?", response1="another"),
        helpsteer3_row("Same?", label=-1),
        helpsteer3_row("Same?", votes=(-2, -1, -2)),
    ]
    audit = audit_strength(rows_of(write([row, dict(row), *others]), split="all"))
    assert audit.duplicates == 1
    assert audit.train.records == 5


def test_criterion_passes_and_fails(write):
    passing = audit_strength(rows_of(write(audit_rows(3000)), split="all"))
    assert passing.passed, passing.criterion
    small = audit_strength(rows_of(write(audit_rows(60)), split="all"))
    assert not small.passed
    assert small.criterion["≥ 50 development votes in each extreme bin"] is False


def test_what_cannot_be_computed_is_not_met(write):
    audit = audit_strength(rows_of(write([helpsteer3_row(f"{i}?", votes=(1, 1, 1)) for i in range(40)]), split="all"))
    assert audit.development.contrast is None
    assert audit.development.correlation is None
    assert not any(audit.criterion.values())


def test_needs_votes_of_single_annotators(write):
    path = write([{"prompt": "Q", "chosen": "a", "rejected": "b", "strength": 1}])
    with pytest.raises(UserError, match="these sources have them: helpsteer3, helpsteer2"):
        audit_strength(rows_of(path, split="all"))
