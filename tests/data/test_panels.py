"""Panels, validation splits, modal domains and folds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmdpo.core.errors import UserError
from unmdpo.data import Comparison, Message, Origin
from unmdpo.data.domains import domain_ids, modal_domains
from unmdpo.data.panels import proportional, sample_panel, split_prompts

DOMAINS = {f"{i:04x}": "code" if i % 4 == 0 else "general" for i in range(100)}


def test_largest_remainder_by_hand():
    # 7 · (50, 30, 20)/100 = 3.5, 2.1, 1.4: the floors are 3, 2, 1, and the remaining one goes to the first
    assert proportional({"a": 50, "b": 30, "c": 20}, 7) == {"a": 4, "b": 2, "c": 1}
    assert proportional({"b": 1, "a": 1}, 1) == {"a": 1, "b": 0}  # equal remainders: by name


def test_panel_is_the_documented_draw():
    rng = random.Random(260834)
    code = rng.sample(sorted(h for h, d in DOMAINS.items() if d == "code"), 5)
    general = rng.sample(sorted(h for h, d in DOMAINS.items() if d == "general"), 15)
    assert sample_panel(DOMAINS, 20, 260834) == sorted(code + general)


def test_panels_are_disjoint_when_reported_and_order_free():
    first = sample_panel(DOMAINS, 40, 1)
    second = sample_panel(dict(reversed(DOMAINS.items())), 60, 2, exclude=first)
    assert not set(first) & set(second)
    assert set(first) | set(second) == set(DOMAINS)
    assert sample_panel(dict(reversed(DOMAINS.items())), 40, 1) == first


def test_panel_that_does_not_fit():
    with pytest.raises(UserError, match="panel of 61 prompts is too large: only 60 are left after excluding 40"):
        sample_panel(DOMAINS, 61, 2, exclude=sample_panel(DOMAINS, 40, 1))
    with pytest.raises(UserError, match="at least one prompt"):
        sample_panel(DOMAINS, 0, 2)


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 50), min_size=1, max_size=6), st.data())
def test_quotas_are_fair(counts, data):
    size = data.draw(st.integers(0, sum(counts.values())))
    quotas = proportional(counts, size)
    assert sum(quotas.values()) == size
    for name, count in counts.items():
        assert abs(quotas[name] - size * count / sum(counts.values())) < 1
        assert 0 <= quotas[name] <= count


def test_validation_split_is_exact_and_order_free():
    held_out = split_prompts(DOMAINS, 0.1, seed=3)
    assert len(held_out) == 10
    assert split_prompts(reversed(list(DOMAINS)), 0.1, seed=3) == held_out
    assert split_prompts(DOMAINS, 0.1, seed=4) != held_out
    with pytest.raises(UserError, match="between 0 and 1"):
        split_prompts(DOMAINS, 1.0, seed=3)


def row(domain, chosen="a", rejected="b", prompt="p"):
    return Comparison((Message("user", prompt),), chosen, rejected, 1, Origin("f", 1), domain)


def only_domain(rows):
    (domain,) = modal_domains(rows).values()
    return domain


def test_modal_domain_rules():
    assert only_domain([row("code"), row("stem", "c"), row("stem", "d")]) == "stem"
    # the same unordered pair counts once
    assert only_domain([row("stem"), row("stem", "b", "a"), row("code"), row("code", "c")]) == "code"
    # ties go to the lexicographically first
    assert only_domain([row("stem"), row("code", "c")]) == "code"
    # records with an empty response count only if there are no others
    assert only_domain([row("stem", ""), row("stem", "", "c"), row("code")]) == "code"
    assert only_domain([row("stem", "")]) == "stem"


def test_domain_ids_follow_sorted_names():
    assert domain_ids(["stem", "code", "stem"]) == {"code": 0, "stem": 1}
