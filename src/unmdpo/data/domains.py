"""One domain for each prompt, even if its records disagree (paper, "Feature construction")."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from unmdpo.data.comparison import Comparison


class DomainVote(NamedTuple):
    """What one record says about its prompt's domain."""

    prompt_hash: str
    pair: tuple[object, object]  # unordered: the two responses, or digests of them
    domain: str
    nonempty: bool  # neither response is empty


def modal_domains(comparisons: Iterable[Comparison]) -> dict[str, str]:
    """Prompt hash → its modal domain."""
    return count_domains(
        DomainVote(row.prompt_hash, (hash(row.pair), ""), row.domain, bool(row.chosen and row.rejected))
        for row in comparisons
    )


def count_domains(votes: Iterable[DomainVote]) -> dict[str, str]:
    """The most frequent domain of each prompt; ties go to the lexicographically first.

    Records with an empty response count only if a prompt has no others. Repeats of the same unordered pair and domain
    count once.
    """
    preferred: dict[str, set[tuple[object, str]]] = {}
    others: dict[str, set[tuple[object, str]]] = {}
    for vote in votes:
        ballot = preferred if vote.nonempty else others
        ballot.setdefault(vote.prompt_hash, set()).add((vote.pair, vote.domain))
    return {prompt: _mode(domain for _, domain in cast) for prompt, cast in (others | preferred).items()}


def _mode(domains: Iterable[str]) -> str:
    counts = Counter(domains)
    return min(counts, key=lambda domain: (-counts[domain], domain))


def domain_ids(domains: Iterable[str]) -> dict[str, int]:
    """Domain names numbered in sorted order."""
    return {domain: i for i, domain in enumerate(sorted(set(domains)))}
