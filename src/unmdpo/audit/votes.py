"""The strength audit's records: deduplicated, partitioned, with the locked test never parsed.

Texts are read first, and alone they decide which prompts are locked; only then are labels read,
of the other rows.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from unmdpo.data.domains import DomainVote, count_domains
from unmdpo.data.identity import prompt_hash
from unmdpo.data.load import DataRef, open_source
from unmdpo.data.panels import seeded_digest
from unmdpo.data.rows import BadRows, Row
from unmdpo.data.sources import SOURCES
from unmdpo.data.sources.base import AnnotatedSource
from unmdpo.errors import UserError

PARTITION_SEED = 260820


class Record(NamedTuple):
    """One response pair and every annotator's signed strength for it."""

    prompt_hash: str
    domain: str
    votes: tuple[int, ...]


class Partitions(NamedTuple):
    """Prompt counts of the three parts, and the records of the two that may be analysed."""

    prompts: dict[str, int]
    records: dict[str, list[Record]]
    duplicates: int
    skipped: int


def partition_prompts(domains: Mapping[str, str], seed: int = PARTITION_SEED) -> dict[str, str]:
    """Prompt hash → train, development or test: 80/10/10 within every domain."""
    by_domain: dict[str, list[str]] = {}
    for prompt, domain in domains.items():
        by_domain.setdefault(domain, []).append(prompt)
    parts = {}
    for prompts in by_domain.values():
        ranked = sorted(prompts, key=lambda prompt: seeded_digest(prompt, seed))
        tenth = len(ranked) // 10
        for i, prompt in enumerate(ranked):
            parts[prompt] = "development" if i < tenth else "test" if i < 2 * tenth else "train"
    return parts


def read_partitions(ref: DataRef, *, source: str, seed: int, max_bad_rows: int) -> Partitions:
    """The audit's records by partition, without a look at any label of the test partition."""
    parts = partition_prompts(_prompt_domains(ref, source, BadRows(max_bad_rows)), seed)
    bad = BadRows(max_bad_rows)
    reader, rows = _annotated(ref, source, bad)

    def read(row: Row) -> tuple[Record, bytes] | None:
        texts = reader.unlabelled(row)
        prompt = prompt_hash(texts.prompt)
        if parts[prompt] == "test":
            return None
        record = Record(prompt, texts.domain, reader.votes(row))
        return record, _digest(prompt, texts.first, texts.second, reader.label(row), record.votes)

    records: dict[str, list[Record]] = {"train": [], "development": []}
    seen, duplicates = set[bytes](), 0
    for item in bad.parse(rows, read):
        if item is None:
            continue
        record, identity = item
        if identity in seen:
            duplicates += 1
        else:
            seen.add(identity)
            records[parts[record.prompt_hash]].append(record)
    counts = Counter(parts.values())
    return Partitions(
        prompts={part: counts[part] for part in ("train", "development", "test")},
        records=records,
        duplicates=duplicates,
        skipped=len(bad.errors),
    )


def _prompt_domains(ref: DataRef, source: str, bad: BadRows) -> dict[str, str]:
    """Every prompt's modal domain, from texts alone."""
    reader, rows = _annotated(ref, source, bad)

    def vote(row: Row) -> DomainVote:
        texts = reader.unlabelled(row)
        first, second = sorted([_digest(texts.first), _digest(texts.second)])
        nonempty = bool(texts.first and texts.second)
        return DomainVote(prompt_hash(texts.prompt), (first, second), texts.domain, nonempty)

    return count_domains(bad.parse(rows, vote))


def _annotated(ref: DataRef, source: str, bad: BadRows) -> tuple[AnnotatedSource, Iterator[Row]]:
    reader, rows = open_source(ref, source, bad)
    if not isinstance(reader, AnnotatedSource):
        raise UserError(
            f"{ref.path}: the strength audit needs the votes of single annotators, which only these "
            f"sources have: {', '.join(n for n, s in SOURCES.items() if issubclass(s, AnnotatedSource))}"
        )
    return reader, rows


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()
