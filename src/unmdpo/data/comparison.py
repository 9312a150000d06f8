"""What a comparison is: a prompt, two responses, which one is better and by how much.

Every source yields `Comparison` objects and nothing else, so training, audits and theory never need to know which file
format a row came from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from unmdpo.core.errors import DataError
from unmdpo.data.identity import Message, Prompt, as_chat, prompt_hash

BOTH_BAD = "both bad"


class Origin(NamedTuple):
    """Where a row came from; rows are counted from one, as in editors."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}"


@dataclass(frozen=True)
class Comparison:
    """One oriented comparison z = (y, x⁺, x⁻, k) of the paper's preliminaries.

    A tie has strength 0 and an arbitrary orientation; it is never trained on (`Comparisons.ties` keeps ties
    separate).

    >>> made = Comparison((Message("user", "Why?"),), "Because.", "No.", 2, Origin("mine", 1), domain="general")
    >>> str(made.source), made.responses[0][0].content
    ('mine, row 1', 'Because.')
    """

    prompt: Prompt
    chosen: str
    rejected: str
    strength: float  # 1…K, or any positive number where strengths are continuous; 0 for a tie
    source: Origin
    domain: str = ""
    language: str = ""
    votes: tuple[int, ...] = ()  # one per annotator, positive for `chosen`
    tie: str = ""  # of a tie: what was said about both, such as BOTH_BAD
    part: str = ""  # the part of a mixture that it came from
    chosen_turns: Prompt = ()  # a response that is more than one text: calls of tools, their results, further turns
    rejected_turns: Prompt = ()
    weight: float | None = None  # how much it counts in losses and in a scale's fit
    margin: float | None = None  # while a source is read: what the strength is cut from once all margins are known

    @cached_property
    def prompt_hash(self) -> str:
        return prompt_hash(self.prompt)

    @cached_property
    def responses(self) -> tuple[Prompt, Prompt]:
        """Chosen and rejected, as turns."""
        plain = (Message("assistant", self.chosen),), (Message("assistant", self.rejected),)
        return self.chosen_turns or plain[0], self.rejected_turns or plain[1]

    @property
    def has_turns(self) -> bool:
        return bool(self.chosen_turns or self.rejected_turns)

    @property
    def pair(self) -> tuple[str, str]:
        """The unordered pair of responses: equal for both orientations."""
        return (min(self.chosen, self.rejected), max(self.chosen, self.rejected))

    def swapped(self) -> "Comparison":
        """The same with the other response as the better one."""
        return replace(
            self,
            chosen=self.rejected,
            rejected=self.chosen,
            chosen_turns=self.rejected_turns,
            rejected_turns=self.chosen_turns,
            votes=tuple(-vote for vote in self.votes),
        )

    def to_row(self) -> dict[str, Any]:
        """A row of JSON that is read as this comparison again, but for its strength."""
        messages, tools = as_chat(self.prompt)
        row: dict[str, Any] = {"prompt": messages} | ({} if tools is None else {"tools": tools})
        for name, text, turns in (
            ("chosen", self.chosen, self.chosen_turns),
            ("rejected", self.rejected, self.rejected_turns),
        ):
            row[name] = [turn.to_dict() for turn in turns or (Message("assistant", text),)]
        named = {"domain": self.domain, "language": self.language, "votes": list(self.votes), "weight": self.weight}
        return row | {name: value for name, value in named.items() if value not in ("", [], None)}


@dataclass(frozen=True)
class Comparisons:
    """What a source yields: rows to train on, ties kept separate, errors of rows that could not be read, and counts of
    rows that hold no comparison."""

    rows: Sequence[Comparison]
    ties: Sequence[Comparison] = ()
    skipped: tuple[DataError, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    read: int = 0  # rows of the file, good or bad
    source: str = ""  # the name of the source that read them
    thresholds: tuple[float, ...] | None = None  # where margins were cut, as the data or the user says
    quantiles: tuple[float, ...] | None = None  # or at these quantiles of theirs

    @property
    def graded(self) -> str:
        """How the strengths came about, in words."""
        cuts = self.thresholds or self.quantiles
        if cuts is None:
            return "strengths as they are given"
        which = "margins" if self.thresholds else "quantiles of the margins"
        return f"strengths cut at these {which}: {', '.join(f'{cut:g}' for cut in cuts) or 'none'}"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.rows)
