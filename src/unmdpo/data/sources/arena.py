"""Battles of two models with a verdict: LMSYS and LMArena votes, and MT-Bench's judgments.

Several verdicts on the same two answers become votes; the strength is their net number.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from unmdpo.core.errors import did_you_mean
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import BOTH_BAD, Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Texts, shape

MOST_VOTES = 3  # net votes that count
CONVERSATIONS = (("conversation_a", "conversation_b"), ("messages_a", "messages_b"))
RESPONSES = (("response_a", "response_b"), ("response_1", "response_2"))
WINNERS = ("winner_model_a", "winner_model_b", "winner_tie")
VERDICTS = {
    "model_a": -1, "model_b": 1, "a": -1, "b": 1, "tie": 0, "tie (bothbad)": 0, "both_bad": 0,
}  # fmt: skip
INCONSISTENT = "tie (inconsistent)"
BOTH_BAD_VERDICTS = {"tie (bothbad)", "both_bad"}


@dataclass
class _Battle:
    row: Row
    texts: Texts
    votes: list[int]  # positive for the second answer
    both_bad: list[bool] = field(default_factory=list)
    ballot: bytes = b""  # of the whole row: two that are equal are one vote

    @property
    def name(self) -> bytes:
        """The same for either order of the answers."""
        pair = sorted((self.texts.first, self.texts.second))
        return hashlib.sha256(json.dumps([self.texts.prompt, pair]).encode()).digest()

    def join(self, other: "_Battle") -> None:
        turned = other.texts.first != self.texts.first
        self.votes += [-vote if turned else vote for vote in other.votes]
        self.both_bad += other.both_bad

    @property
    def comparison(self) -> Comparison:
        net = max(-MOST_VOTES, min(MOST_VOTES, sum(self.votes)))
        made = self.texts.compare(self.row, net, tuple(self.votes))
        return replace(made, tie=BOTH_BAD) if net == 0 and all(self.both_bad) else made


def _battle(row: Row) -> _Battle:
    vote, both_bad = _verdict(row)
    prompt, first, second = _texts(row)
    texts = Texts(prompt, first, second, language=row.optional_text("language"))
    # only what the comparison needs is kept: rows have metadata many times its size
    whole = json.dumps(row.values, sort_keys=True, default=str)
    ballot = hashlib.sha256(whole.encode()).digest()
    return _Battle(Row({}, row.origin), texts, [vote], [both_bad], ballot)


def _verdict(row: Row) -> tuple[int, bool]:
    if "winner" not in row.values and WINNERS[0] in row.values:
        first, second = (row.integer(column, 0, 1) for column in WINNERS[:2])
        return second - first, False
    verdict = row.value("winner")
    if verdict is None or verdict == "":
        raise row.no_comparison("nobody voted")
    verdict = verdict.lower() if isinstance(verdict, str) else verdict
    if verdict == INCONSISTENT:
        raise row.no_comparison("the judge's verdict depends on the order of the answers")
    if not isinstance(verdict, str) or verdict not in VERDICTS:
        hint = did_you_mean(str(verdict), VERDICTS)
        raise row.error(f"'winner' is {repr(verdict)[:40]}; {hint}")
    return VERDICTS[verdict], verdict in BOTH_BAD_VERDICTS


def _texts(row: Row) -> tuple[Prompt, str, str]:
    names = next((names for names in CONVERSATIONS if row.values.keys() >= set(names)), None)
    if names is not None:
        first, second = (_conversation(row, name) for name in names)
    else:
        names = next(names for names in RESPONSES if row.values.keys() >= set(names))
        first, second = _turns(row, names)
    for messages in (first, second):
        if not messages or messages[-1].role != "assistant" or not messages[:-1]:
            raise row.no_comparison("a conversation does not end with the model's answer")
    if first[:-1] != second[:-1]:
        raise row.no_comparison("the two conversations differ before their last answers")
    prompt = (*row.tools(), *row.check_prompt(names[0], first[:-1]))
    return prompt, row.spoken(first[-1]), row.spoken(second[-1])


def _conversation(row: Row, column: str) -> Prompt:
    """The messages up to the judged turn; some copies hold them as JSON text."""
    value = row.value(column)
    messages = (Row({column: _parsed(row, column)}, row.origin) if isinstance(value, str) else row).conversation(
        column
    )
    turns, system = row.values.get("turn"), bool(messages) and messages[0].role == "system"
    if isinstance(turns, int | float) and turns >= 1:
        return messages[: 2 * int(turns) + system]
    return messages


def _turns(row: Row, names: tuple[str, str]) -> tuple[Prompt, Prompt]:
    """Prompts and responses in columns of their own: each a text, or each a list of as many turns in JSON text."""
    columns = [_list(row, name) for name in ("prompt", *names)]
    if len({len(column) for column in columns}) > 1:
        columns = [[row.text(name)] for name in ("prompt", *names)]
    prompts, *responses = columns
    first, second = (
        tuple(turn for pair in zip(prompts, side, strict=True) for turn in map(Message, ("user", "assistant"), pair))
        for side in responses
    )
    return first, second


def _list(row: Row, column: str) -> list[str]:
    text = row.text(column)
    if not text.startswith("["):
        return [text]
    items = _parsed(row, column)
    if not isinstance(items, list) or any(not isinstance(item, str | None) for item in items):
        return [text]
    return ["" if item is None else row.encodable(column, item) for item in items]


def _parsed(row: Row, column: str) -> object:
    try:
        return json.loads(row.text(column))
    except ValueError:
        return row.text(column)


def _read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
    """In the order of first votes; what is kept of a battle until all votes are read is its first row."""
    battles: dict[bytes, _Battle] = {}
    cast = set[bytes]()
    for battle in bad.parse(rows, _battle):
        if battle.ballot in cast:
            bad.left_out["the same vote again"] += 1
            continue
        cast.add(battle.ballot)
        known = battles.setdefault(battle.name, battle)
        if known is not battle:
            known.join(battle)
            bad.left_out["another vote on the same two answers, counted with the first"] += 1
    for battle in battles.values():
        yield battle.comparison


def _has_its_words(row: Row) -> bool:
    """Other words for the winner are read by another source."""
    word = row.values.get("winner")
    known = not word or (isinstance(word, str) and word.lower() in {*VERDICTS, INCONSISTENT})
    return known or {"model_a", "model_b"} <= row.values.keys()


ARENA = Source(
    (
        *(shape(*names, "winner") for names in CONVERSATIONS),
        shape("prompt", *RESPONSES[0], *WINNERS[:2]),
        shape("prompt", *RESPONSES[0], "winner"),
        shape("prompt", "model_a", "model_b", *RESPONSES[1], "winner"),
    ),
    _read,
    "the net number of votes on the same two answers, at most 3",
    labels="votes",
    accepts=_has_its_words,
    also=(
        "lmsys/chatbot_arena_conversations",
        "lmarena-ai/arena-human-preference-55k",
        "lmarena-ai/arena-human-preference-100k",
        "lmarena-ai/arena-human-preference-140k",
        "lmsys/mt_bench_human_judgments",
    ),
)
