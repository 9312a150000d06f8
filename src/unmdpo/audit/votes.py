"""The strength audit's records: deduplicated, partitioned, with the locked test labels never parsed.

Texts are read first, and they alone decide which prompts are locked. Labels stay sealed until then, and those of
locked prompts stay sealed forever.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from unmdpo.core.errors import UserError
from unmdpo.data.bad import BadRows
from unmdpo.data.domains import DomainVote, count_domains
from unmdpo.data.identity import prompt_hash
from unmdpo.data.load import open_source
from unmdpo.data.panels import seeded_digest
from unmdpo.data.reading import RowsSettings
from unmdpo.data.rows import Row
from unmdpo.data.sources import SOURCES
from unmdpo.data.sources.base import Annotated

PARTITION_SEED = 260820
INSTEAD = (
    "without repeated votes it cannot be asked whether annotators agree. Ask instead what the strengths are like with "
    "`unmdpo look`, or whether they can identify a scale with `unmdpo audit support`"
)


class Record(NamedTuple):
    """One response pair and each annotator's signed strength for it."""

    prompt_hash: str
    domain: str
    votes: tuple[int, ...]


class Partitions(NamedTuple):
    """Prompt counts of the three parts, and the records of the two that may be analyzed."""

    prompts: dict[str, int]
    records: dict[str, list[Record]]
    duplicates: int
    skipped: tuple[str, ...]
    source: str = ""


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


def read_partitions(wanted: RowsSettings, *, seed: int) -> Partitions:
    """The audit's records by partition; no label of the test partition is ever read."""
    bad = BadRows(wanted.max_bad_rows)
    name, reader, rows = _annotated(wanted, bad)
    sealed = list(bad.parse(rows, lambda row: _seal(reader, row)))
    parts = partition_prompts(count_domains(record.domain_vote for record in sealed), seed)
    unlocked = (record for record in sealed if parts[record.prompt_hash] != "test")
    records: dict[str, list[Record]] = {"train": [], "development": []}
    seen, duplicates = set[tuple[object, ...]](), 0
    for record, identity in bad.parse(unlocked, lambda record: record.open(reader)):
        if identity in seen:
            duplicates += 1
        else:
            seen.add(identity)
            records[parts[record.prompt_hash]].append(record)
    bad.settle(wanted.place)
    counts = Counter(parts.values())
    return Partitions(
        prompts={part: counts[part] for part in ("train", "development", "test")},
        records=records,
        duplicates=duplicates,
        skipped=tuple(str(error) for error in bad.errors),
        source=name,
    )


class Sealed(NamedTuple):
    """A row whose texts are hashed and whose labels have not been parsed yet."""

    prompt_hash: str
    domain: str
    first: bytes
    second: bytes
    nonempty: bool
    labels: Row

    @property
    def domain_vote(self) -> DomainVote:
        pair = (min(self.first, self.second), max(self.first, self.second))
        return DomainVote(self.prompt_hash, pair, self.domain, self.nonempty)

    def open(self, reader: Annotated) -> tuple[Record, tuple[object, ...]]:
        """The record, and what makes it an exact duplicate of another."""
        record = Record(self.prompt_hash, self.domain, reader.votes(self.labels))
        return record, (*record, self.first, self.second, reader.label(self.labels))


def _seal(reader: Annotated, row: Row) -> Sealed:
    texts = reader.texts(row)
    return Sealed(
        prompt_hash=prompt_hash(texts.prompt),
        domain=texts.domain,
        first=hashlib.sha256(texts.first.encode()).digest(),
        second=hashlib.sha256(texts.second.encode()).digest(),
        nonempty=bool(texts.first and texts.second),
        labels=row.only(reader.columns),
    )


def _annotated(wanted: RowsSettings, bad: BadRows) -> tuple[str, Annotated, Iterator[Row]]:
    name, source, rows = open_source(wanted, bad)
    if source.annotated is None:
        known = ", ".join(name for name, other in SOURCES.items() if other.annotated is not None)
        raise UserError(
            f"{wanted.path}: read as '{name}', which has no votes of individual annotators (these sources have them: "
            f"{known}); {INSTEAD}"
        )
    return name, source.annotated, rows
