"""A first look at preference data: what it is taken for, what is in it, and what may be wrong with it."""

import hashlib
import re
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmdpo.audit.support import Edge, prompt_support
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.files import expand_home
from unmdpo.core.margins import StrengthMap
from unmdpo.data.columns import rename_columns, without
from unmdpo.data.comparison import BOTH_BAD, Comparison, Comparisons
from unmdpo.data.identity import Prompt, comparable
from unmdpo.data.load import first_rows, load, source_named
from unmdpo.data.panels import read_prompts
from unmdpo.data.reading import ALL, RowsSettings, rows_of
from unmdpo.data.rows import Row
from unmdpo.data.sources import Source
from unmdpo.data.sources.pair_texts import PROMPTS, SYSTEMS
from unmdpo.data.sources.preference import strength_columns

OTHER_SPLITS = ("validation", "test")
EVERY = 1 << 62  # bad rows: what else is wrong with another split does not matter here
MARKUP = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|\[/?INST\]|<\|(user|assistant|system)\|>|<<SYS>>"
)
# Columns of text that some source reads beside those that it needs.
READ = {*PROMPTS, *SYSTEMS, "domain", "language", "strength", "tools", "history", "source", "subset"}
SAMPLE = 2_000  # comparisons that a tokenizer is tried on
MIN_REPEATED_CHARACTERS = 12  # a shorter prompt may begin an answer by chance
LONG = 80  # characters from which an answer can be said to be cut off
ENDED = re.compile(r"[.!?…:;\"'”’)\]}>*_`|~=\-–—/\\$%0-9。！？）」』】\u0600-\u06ff\U0001f000-\U0001faff✨️☺️❤]\s*\Z")
SCRIPTS = {
    "Chinese or Japanese": re.compile(r"[\u3040-\u30ff\u3400-\u9fff]"),
    "Korean": re.compile(r"[\uac00-\ud7af\u1100-\u11ff]"),
    "Cyrillic": re.compile(r"[\u0400-\u04ff]"),
    "Arabic": re.compile(r"[\u0600-\u06ff]"),
    "Hebrew": re.compile(r"[\u0590-\u05ff]"),
    "Devanagari": re.compile(r"[\u0900-\u097f]"),
    "Thai": re.compile(r"[\u0e00-\u0e7f]"),
    "Greek": re.compile(r"[\u0370-\u03ff]"),
}
LETTERS = re.compile(r"[^\W\d_]")
PROSE = 3  # words
LOOKED_AT = 400  # characters to find the script


class Spread(NamedTuple):
    """The size of many things: median, 95th percentile, largest."""

    median: int
    high: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int]) -> "Spread":
        if not len(values):
            return cls(0, 0, 0)
        median, high, most = np.percentile(np.asarray(values), (50, 95, 100))
        return cls(round(median), round(high), round(most))


NOTHING = Spread(0, 0, 0)


class Tokens(NamedTuple):
    """Lengths in a model's tokens, of a sample."""

    sampled: int
    longest: NDArray[np.int32]  # (sampled,) tokens of each pair's longer sequence
    prompt: Spread
    response: Spread
    remarks: tuple[str, ...] = ()  # what was out of the ordinary where prompts and responses meet

    def over(self, most: int) -> float:
        """The share of comparisons that would not fit."""
        return float((self.longest > most).mean()) if len(self.longest) else 0.0


@dataclass
class Description:
    """Counts over all comparisons, ties included unless said otherwise."""

    path: str
    split: str | None
    source: str
    columns: tuple[str, ...]  # by which it was recognized
    others: tuple[str, ...]  # further columns, which it may read or not
    strength_from: str
    unread: list[str]  # columns of prose among those that are left alone
    read: int = 0
    bad: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    comparisons: int = 0  # without ties
    ties: int = 0
    both_bad: int = 0
    prompts: int = 0
    pairs_per_prompt: Spread = NOTHING
    several_pairs: int = 0  # prompts with more than one pair
    strengths: Counter[float] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)  # of the user
    system_messages: int = 0
    voted: int = 0  # comparisons with votes of several annotators
    prompt_length: Spread = NOTHING  # characters
    chosen_length: Spread = NOTHING
    rejected_length: Spread = NOTHING
    chosen_longer: float = 0.0  # share of comparisons
    repeated: int = 0  # rows that say what another said
    contradicted: int = 0  # pairs that were judged both ways
    same_answer: int = 0
    repeats_prompt: int = 0  # answers that begin with the whole prompt
    empty_answers: int = 0
    markup: int = 0  # prompts that hold a chat template's own marks, and would be rendered twice
    files: set[str] = field(default_factory=set)
    cut_off: int = 0  # answers that seem to end within a sentence
    answers: int = 0
    leaked: dict[str, int] = field(default_factory=dict)  # where else → how many of its prompts are here too
    splits: list[str] = field(default_factory=list)  # that the data has besides
    identified: int = 0  # prompts whose margins alone identify their scale
    tokens: Tokens | None = None

    @property
    def strength_means(self) -> str:
        """What the support audit says, in one line."""
        if not self.strengths:
            return "there are only ties, so there is nothing to learn"
        if len(self.strengths) == 1:
            return "all strengths are equal, so margins carry no information: UNM-DPO would be DPO with a margin"
        share = f"{self.identified:,} of {self.prompts:,} prompts"
        rest = "" if self.identified == self.prompts else "; elsewhere it must be learned across prompts, with pilots"
        return f"q can be estimated directly for {share}{rest}"

    def to_dict(self) -> dict[str, Any]:
        tokens = self.tokens
        values = {name: value for name, value in vars(self).items() if name != "tokens"} | {
            "files": sorted(self.files)
        }
        if tokens is not None:
            values["tokens"] = {
                "sampled": tokens.sampled, "prompt": tokens.prompt, "response": tokens.response,
                "longest": Spread.of(tokens.longest.tolist()), "remarks": tokens.remarks,
            }  # fmt: skip
        return {"look": values, "strength_means": self.strength_means}


def describe(wanted: RowsSettings, against: Sequence[str] = ()) -> tuple[Description, list[Comparison]]:
    """Looks at everything once; also returns an even sample for a tokenizer."""
    return _described(wanted, load(wanted), against)


def _is_prose(values: Iterable[Any]) -> bool:
    """Whether most of the texts have several words, as what belongs to a prompt would."""
    words = [len(value.split()) for value in values if isinstance(value, str) and value.strip()]
    return bool(words) and statistics.median(words) >= PROSE


def _described(
    wanted: RowsSettings, data: Comparisons, against: Sequence[str]
) -> tuple[Description, list[Comparison]]:
    source = source_named(data.source)
    head = list(without(rename_columns(first_rows(wanted, source=source), wanted.columns), wanted.ignore))
    columns = head[0].values.keys() if head else set()
    recognized = next((shape for shape in source.shapes if shape <= columns), frozenset[str]())
    others = [name for name in columns if name not in recognized]
    seen = Description(
        path=str(wanted.path), split=None if wanted.split == ALL else wanted.split,
        source=data.source, columns=tuple(sorted(recognized)),
        others=tuple(others), strength_from=_strength_from(source, head, wanted),
        unread=[name for name in others if name not in READ and _is_prose(row.values.get(name) for row in head)],
        read=data.read, bad=len(data.skipped), left_out={**data.left_out}, comparisons=len(data), ties=len(data.ties),
    )  # fmt: skip
    counter = _Counter(seen)
    step = max(1, len(data) // SAMPLE)
    sample: list[Comparison] = []
    for number, row in enumerate(data.rows):
        counter.add(row)
        if number % step == 0 and len(sample) < SAMPLE:
            sample.append(row)
    for tie in data.ties:
        counter.add(tie)
    counter.finish()
    for split, prompts in _other_splits(wanted, data.source):
        seen.splits.append(split)
        seen.leaked[f"the split '{split}'"] = counter.shared(prompts)
    for path in against:
        seen.leaked[path] = counter.shared(_prompts(path))
    return seen, sample


def _strength_from(source: Source, head: Sequence[Row], wanted: RowsSettings) -> str:
    """For pairs, the columns that give it; otherwise what the source says."""
    if not source.finds_strength:
        return source.strength
    columns = strength_columns(head, wanted.strength)
    return " − ".join(f"`{column}`" for column in columns) or "nothing: it is 1 for all"


class _Counter:
    """Goes through the rows once, keeping digests of texts and never the texts."""

    def __init__(self, seen: Description) -> None:
        self.seen = seen
        self.edges: dict[str, list[Edge]] = defaultdict(list)
        self.asked: set[bytes] = set()
        self.lengths: list[tuple[int, int, int]] = []

    def add(self, row: Comparison) -> None:
        seen, last = self.seen, row.prompt[-1].content
        self.asked.add(comparable(row.prompt))
        self.lengths.append((sum(len(turn.content) for turn in row.prompt), len(row.chosen), len(row.rejected)))
        seen.domains[row.domain] += 1
        seen.languages[row.language or script_of(last)] += 1
        seen.turns[sum(turn.role == "user" for turn in row.prompt)] += 1
        seen.system_messages += row.prompt[0].role == "system"
        seen.voted += len(row.votes) > 1
        seen.markup += any(MARKUP.search(turn.content) is not None for turn in row.prompt)
        seen.files.add(Path(row.source.file).name)
        seen.both_bad += row.tie == BOTH_BAD
        seen.same_answer += row.chosen == row.rejected
        for answer in (row.chosen, row.rejected):
            seen.answers += 1
            seen.repeats_prompt += len(last) >= MIN_REPEATED_CHARACTERS and answer.startswith(last)
            seen.empty_answers += not answer.strip()
            seen.cut_off += is_cut_off(answer)
        edges = self.edges[row.prompt_hash]
        if row.strength:
            seen.strengths[row.strength] += 1
            edges.append((_digest(row.chosen), _digest(row.rejected), row.strength))

    def finish(self) -> None:
        seen, pairs = self.seen, []
        seen.prompts = len(self.edges)
        for edges in self.edges.values():
            distinct = list(dict.fromkeys(edges))
            unordered = {(min(a, b), max(a, b)) for a, b, _ in distinct}
            pairs.append(len(unordered))
            seen.repeated += len(edges) - len(distinct)
            directed = {edge[:2] for edge in distinct}
            seen.contradicted += sum({(a, b), (b, a)} <= directed for a, b in unordered if a != b)
            if len(distinct) > 1:
                seen.identified += prompt_support(distinct, StrengthMap(), 1.0).kappa > 0
        seen.pairs_per_prompt = Spread.of(pairs)
        seen.several_pairs = sum(count > 1 for count in pairs)
        lengths = np.array(self.lengths, dtype=np.int64).reshape(-1, 3)
        seen.prompt_length, seen.chosen_length, seen.rejected_length = (
            Spread.of(column.tolist()) for column in lengths.T
        )
        seen.chosen_longer = float((lengths[:, 1] > lengths[:, 2]).mean()) if len(lengths) else 0.0

    def shared(self, prompts: Sequence[Prompt]) -> int:
        return len({comparable(prompt) for prompt in prompts} & self.asked)


def _other_splits(wanted: RowsSettings, source: str) -> Iterator[tuple[str, list[Prompt]]]:
    """Prompts of the data's other splits, if they lie beside it."""
    alike = wanted.model_copy(update={"source": source, "max_bad_rows": EVERY})
    for split in OTHER_SPLITS if wanted.split != ALL and wanted.place.local is not None else ():
        if split != wanted.split:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UnmdpoWarning)
                    other = load(alike.of_split(split))
            except UserError:
                continue  # there is none
            yield split, [row.prompt for row in (*other.rows, *other.ties)]


def _prompts(path: str) -> list[Prompt]:
    """A file of prompts, or of comparisons."""
    try:
        return list(read_prompts(expand_home(path))[0].values())
    except UserError:
        data = load(rows_of(path, split=ALL))
        return [row.prompt for row in (*data.rows, *data.ties)]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_cut_off(answer: str) -> bool:
    return len(answer) >= LONG and ENDED.search(answer[-8:]) is None


def script_of(text: str) -> str:
    """The script of most letters; languages that share one look the same."""
    start = text[:LOOKED_AT]
    if start.isascii():
        return "Latin script" if LETTERS.search(start) else "no letters"
    counts = {name: len(pattern.findall(start)) for name, pattern in SCRIPTS.items()}
    name, most = max(counts.items(), key=lambda item: item[1])
    letters = len(LETTERS.findall(start))
    return name if letters and 2 * most > letters else "Latin script" if letters else "no letters"
