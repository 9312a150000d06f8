"""Prompt identity and folds: pure functions of a prompt's text, the same on every machine."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FOLD_SEED = 260836
_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False)


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


Prompt = tuple[Message, ...]
PromptLike = str | Sequence[Message | Mapping[str, str]]  # a question, or a conversation: messages, or dictionaries


def as_prompt(asked: PromptLike) -> Prompt:
    """A prompt as people write it."""
    if isinstance(asked, str):
        return (Message("user", asked),)
    return tuple(one if isinstance(one, Message) else Message(one["role"], one["content"]) for one in asked)


def prompt_hash(messages: Sequence[Message | Mapping[str, str]]) -> str:
    """SHA-256 of the conversation's JSON (paper, "Prompt identity and fold assignment").

    Sorted keys, unescaped Unicode, default separators; contents are hashed as they are, and only `role` and `content`
    count.
    """
    turns = [
        {"role": m.role, "content": m.content}
        if isinstance(m, Message)
        else {"role": m["role"], "content": m["content"]}
        for m in messages
    ]
    return hashlib.sha256(_ENCODER.encode(turns).encode("utf-8")).hexdigest()


def fold_of(prompt_hash: str, folds: int = 5, seed: int = FOLD_SEED) -> int:
    """The fold (0 … folds-1) of a prompt; all comparisons of a prompt share it."""
    digest = hashlib.sha256(f"identified-k1-fold-v1:{seed}:{prompt_hash}".encode("ascii")).digest()
    return int.from_bytes(digest[:8], "big") % folds


def entropy_fold_of(prompt_hash: str, folds: int = 5) -> int:
    """The unseeded fold that Entropy-CF uses: SHA-256 of the prompt hash itself."""
    return int.from_bytes(hashlib.sha256(prompt_hash.encode("ascii")).digest()[:8], "big") % folds
