"""Prompt identity and folds: pure functions of a prompt's text, the same on every machine."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FOLD_SEED = 260836
_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False)


TOOLS = "tools"  # the role of a first message that lists, as JSON, what functions the assistant may call


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str
    more: str = ""  # JSON of what else the turn says, such as `tool_calls`; empty for most

    def to_dict(self) -> dict[str, Any]:
        """As chat templates and servers take it."""
        return {"role": self.role, "content": self.content} | (json.loads(self.more) if self.more else {})

    @property
    def text(self) -> str:
        """All that it says, to be read."""
        return "\n".join(part for part in (self.content, self.more) if part)


Prompt = tuple[Message, ...]
PromptLike = str | Sequence[Message | Mapping[str, str]]  # a question, or a conversation: messages, or dictionaries


def as_chat(prompt: Prompt) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """The turns as dictionaries, and the tools."""
    tools = json.loads(prompt[0].content) if prompt and prompt[0].role == TOOLS else None
    return [message.to_dict() for message in (prompt if tools is None else prompt[1:])], tools


def prompt_hash(messages: Sequence[Message | Mapping[str, str]]) -> str:
    """SHA-256 of the conversation's JSON (paper, "Prompt identity and fold assignment").

    Sorted keys, unescaped Unicode, default separators; contents are hashed as they are, and only `role`, `content` and
    what else a `Message` says count.
    """
    turns = [m.to_dict() if isinstance(m, Message) else {"role": m["role"], "content": m["content"]} for m in messages]
    return hashlib.sha256(_ENCODER.encode(turns).encode("utf-8")).hexdigest()


def comparable(prompt: Sequence[Message]) -> bytes:
    """A digest that is equal for prompts that ask the same: whatever their white space, case, Unicode form (NFC, NFD,
    full width) and system message. Only for finding leaks; folds and units go by the paper's hash."""
    turns = (turn.content for turn in prompt if turn.role != "system")
    text = "\n".join(" ".join(unicodedata.normalize("NFKC", turn).casefold().split()) for turn in turns)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def fold_of(prompt_hash: str, folds: int = 5, seed: int = FOLD_SEED) -> int:
    """The fold (0 … folds-1) of a prompt; all comparisons of a prompt share it."""
    digest = hashlib.sha256(f"identified-k1-fold-v1:{seed}:{prompt_hash}".encode("ascii")).digest()
    return int.from_bytes(digest[:8], "big") % folds


def entropy_fold_of(prompt_hash: str, folds: int = 5) -> int:
    """The unseeded fold that Entropy-CF uses: SHA-256 of the prompt hash itself."""
    return int.from_bytes(hashlib.sha256(prompt_hash.encode("ascii")).digest()[:8], "big") % folds
