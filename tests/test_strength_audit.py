"""The leave-one-annotator-out audit against slow twins, the paper's numbers, and a locked test."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.conftest import helpsteer3_row
from unmdpo.audit.strength import (
    BOOTSTRAPS,
    PERMUTATIONS,
    HeldOut,
    analyse_partition,
    audit_strength,
    clustered_contrast,
    describe_bin,
    held_out_votes,
    hold_out,
    permutation_test,
)
from unmdpo.audit.votes import Record, partition_prompts
from unmdpo.data import DataRef, load_comparisons, prompt_hash
from unmdpo.errors import UserError


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
    """Records whose agreement grows with strength, or does not."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(n):
        size = int(rng.integers(1, 4))
        flip = rng.random() < (0.45 - 0.14 * size if effect else 0.2)
        votes = (size, size, -1 if flip else 1)
        records.append(Record(f"prompt{i // 2}", "code" if i % 3 else "stem", votes))
    return records


def test_bootstrap_matches_a_slow_twin():
    held_out = hold_out(noisy_records(60, seed=3))
    point, interval = clustered_contrast(held_out, seed=260832)
    low, _, high = held_out.bins.values()
    assert point == pytest.approx(held_out.agrees[high].mean() - held_out.agrees[low].mean())
    prompts = held_out.prompt.max() + 1
    members = [np.flatnonzero(held_out.prompt == p) for p in range(prompts)]
    drawn = np.random.default_rng(260832).integers(0, prompts, (BOOTSTRAPS, prompts))
    slow = []
    for sample in drawn[:400]:
        votes = np.concatenate([members[p] for p in sample])
        slow.append(held_out.agrees[votes][high[votes]].mean() - held_out.agrees[votes][low[votes]].mean())
    assert np.percentile(slow, [2.5, 97.5]) == pytest.approx(interval, abs=0.05)
    assert interval[0] < point < interval[1]


def test_permutation_test_matches_a_slow_twin():
    held_out = hold_out(noisy_records(40, seed=5, effect=False))
    correlation, p = permutation_test(held_out, seed=260833)
    records = range(len(held_out.record_domain))
    evidence = np.array([held_out.evidence[held_out.record == r].mean() for r in records])
    agreement = np.array([held_out.agrees[held_out.record == r].mean() for r in records])
    assert correlation == pytest.approx(stats.pearsonr(evidence, agreement).statistic)
    rng, exceeding = np.random.default_rng(0), 0
    for _ in range(2000):
        shuffled = evidence.copy()
        for domain in (0, 1):
            members = held_out.record_domain == domain
            shuffled[members] = rng.permutation(evidence[members])
        exceeding += np.corrcoef(shuffled, agreement)[0, 1] >= correlation - 1e-15
    assert p == pytest.approx((1 + exceeding) / 2001, abs=0.04)


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
    plain = audit_strength(DataRef(write(rows), None))
    for row in rows:
        if is_locked(row, rows):
            row["overall_preference"] = "not a number"
            row["individual_preference"] = {"also": "nonsense"}
    path = write(rows, "garbage.jsonl")
    assert audit_strength(DataRef(path, None)) == plain
    with pytest.raises(UserError):  # the same labels are an error to whoever does read them
        load_comparisons(path)
    assert plain.prompts == {"train": 240, "development": 30, "test": 30}
    assert plain.train.records == 240


def test_union_of_splits_is_deduplicated(write, tmp_path):
    rows = audit_rows(100)
    write(rows, "hs3/preference/train.jsonl.gz")
    write([*rows[:10], helpsteer3_row("Only here?", votes=(1, 1, 1))], "hs3/preference/validation.jsonl.gz")
    audit = audit_strength(DataRef(str(tmp_path / "hs3"), None), source="helpsteer3")
    assert sum(audit.prompts.values()) == 101
    open_repeats = sum(not is_locked(row, [*rows, helpsteer3_row("Only here?")]) for row in rows[:10])
    assert audit.duplicates == open_repeats


def test_criterion_passes_and_fails(write):
    passing = audit_strength(DataRef(write(audit_rows(3000)), None))
    assert passing.passed, passing.criterion
    small = audit_strength(DataRef(write(audit_rows(60)), None))
    assert not small.passed
    assert small.criterion["≥ 50 development votes in each extreme bin"] is False


def test_what_cannot_be_computed_is_not_met(write):
    audit = audit_strength(
        DataRef(write([helpsteer3_row(f"{i}?", votes=(1, 1, 1)) for i in range(40)]), None)
    )
    assert audit.development.contrast is None
    assert audit.development.correlation is None
    assert not any(audit.criterion.values())


def test_needs_votes_of_single_annotators(write):
    path = write([{"prompt": "Q", "chosen": "a", "rejected": "b", "strength": 1}])
    with pytest.raises(UserError, match="only these sources have: helpsteer3, helpsteer2, pandalm"):
        audit_strength(DataRef(path, None))
