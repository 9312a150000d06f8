"""The prompt and both responses of a row that says which is better: TRL's shapes, and others with other names."""

from collections.abc import Mapping
from difflib import get_close_matches
from itertools import takewhile

from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row

ANSWERS = (("chosen", "rejected"), ("chosen_response", "rejected_response"), ("response_j", "response_k"))
SYSTEMS = ("system", "system_prompt")
PROMPTS = ("prompt", "instruction", "question", "query", "input", "conversations", "trajectory", "messages", "context")
GAP = "\n\n"  # between the turns of a response that is read as text
Said = str | Prompt  # a response: its text, or turns that are more than that


def pair_texts(row: Row) -> tuple[Prompt, Said, Said]:
    """The prompt and both responses. Whole conversations hold the prompt themselves; answers are next to it; plain
    texts without a prompt begin with it."""
    names = next((names for names in ANSWERS if row.values.keys() >= set(names)), ANSWERS[0])
    row = row.unpacked((*PROMPTS, *names))
    column = prompt_column(row)
    several = any(isinstance(row.value(name), list) and len(row.value(name)) > 1 for name in names)
    if several and not (column is not None and _begins_with_answer(row, names)):
        prompt, chosen, rejected = _whole(row, names)
        _check_repeated(row, prompt)
        return with_system(row, prompt), chosen, rejected
    if column is None:
        return _whole(row, names)
    return asked(row, column), _answer(row, names[0]), _answer(row, names[1])


def prompt_column(row: Row) -> str | None:
    return next((name for name in PROMPTS if name in row.values), None)


def asked(row: Row, column: str) -> Prompt:
    """The prompt in its own column, perhaps with Alpaca's `input` and `history`, or a `system` message beside it."""
    prompt = row.conversation(column)
    if column == "instruction" and isinstance(row.value(column), str) and row.optional_text("input"):
        prompt = (Message("user", f"{row.text(column)}\n{row.text('input')}"),)
    if isinstance(row.values.get("history"), list):
        prompt = (*_history(row), *prompt)
    return row.check_prompt(column, with_system(row, prompt))


def _history(row: Row) -> Prompt:
    """LLaMA-Factory's earlier turns: pairs of a question and its answer."""
    turns: list[Message] = []
    for i, pair in enumerate(row.items("history")):
        if (
            not isinstance(pair, list)
            or len(pair) != len(ANSWERS[0])
            or not all(isinstance(text, str) for text in pair)
        ):
            raise row.error(f"'history[{i}]' should be a question and its answer")
        turns += [Message("user", pair[0]), Message("assistant", pair[1])]
    return tuple(turns)


def with_system(row: Row, prompt: Prompt) -> Prompt:
    system = next((row.optional_text(name) for name in SYSTEMS if row.optional_text(name).strip()), "")
    if not system or not prompt or prompt[0].role == "system":
        return prompt
    return (Message("system", system), *prompt)


def _begins_with_answer(row: Row, names: tuple[str, str]) -> bool:
    """Whether turns go on from a prompt beside them, and do not repeat it."""
    turns = [row.conversation(name) for name in names if isinstance(row.value(name), list)]
    return all(bool(some) and some[0].role == "assistant" for some in turns)


def _answer(row: Row, column: str) -> Said:
    """A response next to its prompt: text, or turns that begin and end with the assistant's."""
    value = row.value(column)
    if isinstance(value, str):
        return row.text(column)
    messages = (row.message(column, value),) if isinstance(value, Mapping) else row.conversation(column)
    if not messages or messages[0].role != "assistant" or messages[-1].role != "assistant":
        raise row.error(f"'{column}' should begin and end with an assistant message when there is a 'prompt'")
    return _said(messages)


def _said(turns: Prompt) -> Said:
    """A single text as such."""
    return turns if len(turns) > 1 or turns[0].more else turns[0].content


def read_out(said: Said) -> str:
    """A response as text, for those who read it: judges, audits, reports."""
    if isinstance(said, str):
        return said
    return GAP.join(turn.text if turn.role == "assistant" else f"[{turn.role}]\n{turn.text}" for turn in said)


def _whole(row: Row, names: tuple[str, str]) -> tuple[Prompt, Said, Said]:
    """The prompt is what both columns begin with, up to a turn that is answered; each goes on with its response."""
    first, second = names
    texts = [isinstance(row.value(column), str) for column in names]
    if all(texts):
        return _whole_text(row, names)
    if any(texts):
        raise row.error(f"'{first}' and '{second}' should both be text or both be conversations")
    chosen, rejected = row.conversation(first), row.conversation(second)
    for column, messages in ((first, chosen), (second, rejected)):
        if not messages or messages[-1].role != "assistant":
            raise row.error(f"'{column}' should end with an assistant turn")
    most = min(len(chosen), len(rejected)) - 1  # each keeps a turn of its own
    shared = next((i for i in range(most) if chosen[i] != rejected[i]), most)
    while shared and chosen[shared - 1].role == "assistant":
        shared -= 1
    if shared == 0 or chosen[shared].role != "assistant" or rejected[shared].role != "assistant":
        raise row.error(f"'{first}' and '{second}' should begin with the same turns, up to the answer that differs")
    prompt = row.check_prompt(first, chosen[:shared])
    return prompt, _said(chosen[shared:]), _said(rejected[shared:])


def _check_repeated(row: Row, prompt: Prompt) -> None:
    """A `prompt` beside whole conversations says the same: all of it, its last turn, or as text one of its turns."""
    if "prompt" not in row:
        return
    beside = row.prompt("prompt")
    if isinstance(row.value("prompt"), str):
        said = beside[0].content.strip()
        same = any(turn.content.strip() == said for turn in prompt)
        same = same or all(turn.content.strip() in said for turn in prompt)
    else:
        same = beside in (prompt, prompt[-1:])
    if not same:
        raise row.error("'chosen' and 'rejected' begin with turns that differ from 'prompt'")


def _whole_text(row: Row, names: tuple[str, str]) -> tuple[Prompt, Said, Said]:
    likely = get_close_matches("prompt", row.values, n=1, cutoff=0.7)
    if likely:
        raise row.error(f"there is no column 'prompt', but there is '{likely[0]}'; rename it if it holds the prompt")
    chosen, rejected = (row.text(column) for column in names)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    common = "".join(character for character, _ in same)
    prompt = common[: max(common.rfind(" "), common.rfind("\n")) + 1].rstrip()  # whole words only
    if not prompt:
        raise row.error(f"'{names[0]}' and '{names[1]}' share no prefix, and there is no column 'prompt'")
    return (Message("user", prompt),), chosen[len(prompt) :], rejected[len(prompt) :]
