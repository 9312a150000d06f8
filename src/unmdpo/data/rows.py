"""A raw row: named values, where they came from, and typed accessors.

Every accessor raises a `DataError` that names the file, the row and the column: a bad row among 40,000 must be easy to
find.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from unmdpo.core.errors import DataError, UserError, did_you_mean
from unmdpo.data.comparison import Origin
from unmdpo.data.identity import TOOLS, Message, Prompt, PromptLike

ROLES = ("system", "user", "assistant", "tool")
OTHER_ROLES = {  # as ShareGPT, OpenAssistant, Gemini and others call them
    "human": "user", "prompter": "user", "gpt": "assistant", "bot": "assistant", "chatbot": "assistant",
    "model": "assistant", "developer": "system", "ipython": "tool", "observation": "tool",
}  # fmt: skip
LARGEST_COUNT = 10**12
KEYS = (("role", "content"), ("from", "value"))
SAYS_MORE = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}
PACKED = re.compile(r"""\s*\[\s*\{\s*["'](role|content|from|value)["']\s*:""")


@dataclass(frozen=True)
class Row:
    values: Mapping[str, Any]
    origin: Origin
    untyped: bool = False  # everything is text, as in CSV files

    def error(self, problem: str) -> DataError:
        return DataError(self.origin, problem)

    def no_comparison(self, why: str) -> "LeftOut":
        return LeftOut(self.origin, why)

    def only(self, columns: Iterable[str]) -> "Row":
        return self.with_values({name: self.values[name] for name in columns if name in self.values})

    def with_values(self, values: Mapping[str, Any]) -> "Row":
        return Row(values, self.origin, self.untyped)

    def __contains__(self, column: str) -> bool:
        return self.values.get(column) is not None

    def value(self, column: str) -> Any:
        if column not in self.values:
            raise self.error(f"column '{column}' is missing; {did_you_mean(column, self.values)}")
        return self.values[column]

    def text(self, column: str) -> str:
        value = self.value(column)
        if not isinstance(value, str):
            raise self.error(f"'{column}' should be text, not {kind(value)}")
        return self.encodable(column, value)

    def optional_text(self, column: str) -> str:
        """Text, or nothing; a number becomes text, as domains may be numbered."""
        value = self.values.get(column)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        return "" if missing else self.text(column)

    def encodable(self, column: str, text: str) -> str:
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise self.error(
                    f"'{column}' has half of a surrogate pair at character {error.start}; re-encode the text as UTF-8"
                ) from error
        return text

    def number(self, column: str) -> float:
        return self.as_number(column, self.value(column))

    def as_number(self, column: str, value: object) -> float:
        if self.untyped and isinstance(value, str):
            value = _parsed_number(value)
        if isinstance(value, Decimal):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"'{column}' should be a number, not {kind(value)}")
        try:
            number = float(value)
        except OverflowError as error:
            raise self.error(f"'{column}' is too large a number") from error
        if not math.isfinite(number):
            raise self.error(f"'{column}' is {value}, not a finite number")
        return number

    def weight(self) -> float | None:
        """How much the row counts, if it says so."""
        if "weight" not in self:
            return None
        number = self.number("weight")
        if number < 0:
            raise self.error(f"'weight' is {number:g}: it should be zero or more")
        return number

    def integer(self, column: str, low: int, high: int = LARGEST_COUNT) -> int:
        return self.as_integer(column, self.value(column), low, high)

    def as_integer(self, column: str, value: object, low: int, high: int) -> int:
        number = self.as_number(column, value)
        if number != int(number) or not low <= number <= high:
            raise self.error(f"'{column}' should be a whole number from {low} to {high}, not {value}")
        return int(number)

    def items(self, column: str) -> list[Any]:
        value = self.value(column)
        if not isinstance(value, list):
            raise self.error(f"'{column}' should be a list, not {kind(value)}")
        return value

    def conversation(self, column: str) -> Prompt:
        """A list of messages, or a string for one user turn."""
        value = self.value(column)
        if isinstance(value, str):
            return (Message("user", self.encodable(column, value)),)
        if isinstance(value, Mapping):
            return self.conversation_of_lists(column, value)
        if not isinstance(value, list):
            raise self.error(f"'{column}' should be text or a list of messages, not {kind(value)}")
        return tuple(self.message(f"{column}[{i}]", item) for i, item in enumerate(self.items(column)))

    def conversation_of_lists(self, column: str, value: Mapping[str, Any]) -> Prompt:
        """Messages that a table holds as one list of roles and one of contents."""
        keys = next((keys for keys in KEYS if all(isinstance(value.get(key), list) for key in keys)), None)
        if keys is None or len(value[keys[0]]) != len(value[keys[1]]):
            raise self.error(f"'{column}' should be text or a list of messages, not an object")
        turns = zip(*(value[key] for key in keys), strict=True)
        return tuple(
            self.message(f"{column}[{i}]", dict(zip(keys, turn, strict=True))) for i, turn in enumerate(turns)
        )

    def unpacked(self, columns: Iterable[str]) -> "Row":
        """With messages that were written as JSON text read back, as tables must hold them."""
        found = {}
        for column in columns:
            value = self.values.get(column)
            if isinstance(value, str) and PACKED.match(value):
                messages = self._messages(column, value)
                if messages is not None:
                    found[column] = messages
        return self.with_values({**self.values, **found}) if found else self

    def _messages(self, column: str, text: str) -> list[Any] | None:
        """None if it is a text that only begins like messages."""
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError) as error:
            if not text.rstrip().endswith("}]"):
                return None
            problem = f"'{column}' seems to be messages written as text, but not as JSON"
            raise self.error(f"{problem}; write them with json.dumps") from error
        return messages if isinstance(messages, list) and all(map(_is_message, messages)) else None

    def message(self, where: str, item: object) -> Message:
        """A turn with `role` and `content`, or `from` and `value`."""
        if not isinstance(item, Mapping):
            raise self.error(f"'{where}' should be a message with role and content, not {kind(item)}")
        keys = next((keys for keys in KEYS if all(key in item for key in keys)), None)
        if keys is None and "role" in item and item.get("tool_calls"):
            keys, item = KEYS[0], {**item, "content": ""}
        if keys is None:
            absent = "role" if "role" not in item else "content"
            raise self.error(f"'{where}' has no '{absent}'; {did_you_mean(absent, item)}")
        role, content = (item[key] for key in keys)
        role = OTHER_ROLES.get(role, role) if isinstance(role, str) else role
        if role not in ROLES:
            hint = did_you_mean(role, ROLES) if isinstance(role, str) else f"known: {ROLES}"
            raise self.error(f"'{where}' has an unknown role, {repr(role)[:40]}; {hint}")
        if item.get("function_call"):
            raise self.error(f"'{where}.function_call' is an old form; write it as a list in 'tool_calls'")
        more = {name: item[name] for name in SAYS_MORE.get(role, ()) if item.get(name)}
        if "tool_calls" in more:
            more["tool_calls"] = self._calls(f"{where}.tool_calls", more["tool_calls"])
            content = "" if content is None else content
        text = self.encodable(f"{where}.content", self._content(where, content))
        return Message(role, text, self.as_json(where, more) if more else "")

    def _calls(self, where: str, value: object) -> list[dict[str, Any]]:
        """Calls of functions with their arguments by name, as chat templates take them."""
        found = self.parsed(where, value)
        if not isinstance(found, list) or not all(isinstance(call, Mapping) for call in found):
            raise self.error(f"'{where}' should be a list of calls, not {kind(found)}")
        calls = []
        for call in found:
            function = call.get("function", call)
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                raise self.error(f"'{where}' has a call without the function's name")
            arguments = self.parsed(f"{where}.arguments", function.get("arguments") or {})
            if not isinstance(arguments, Mapping):
                raise self.error(f"'{where}' should have arguments by name, not {kind(arguments)}")
            named = {"name": function["name"], "arguments": arguments}
            calls.append({"type": "function", "function": named} | ({"id": call["id"]} if call.get("id") else {}))
        return calls

    def spoken(self, message: Message) -> str:
        """The text of an answer, where only text is read."""
        if message.more:
            raise self.error("calls a tool, which is read only in 'chosen' and 'rejected'")
        return message.content

    def tools(self) -> Prompt:
        """What functions the assistant may call, as the first message of the prompt; nothing without any."""
        listed = self.parsed("tools", self.values["tools"]) if self.values.get("tools") else []
        if not isinstance(listed, list):
            raise self.error(f"'tools' should be a list of functions, not {kind(listed)}")
        return (Message(TOOLS, self.as_json("tools", listed)),) if listed else ()

    def parsed(self, where: str, value: object) -> Any:
        """A value that may be written as JSON, as tables must."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise self.error(f"'{where}' is text that is not JSON; data.ignore leaves a column out") from error

    def as_json(self, where: str, value: object) -> str:
        try:
            return self.encodable(where, json.dumps(value, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise self.error(f"'{where}' cannot be written as JSON: {error}") from error

    def _content(self, where: str, content: object) -> str:
        """Text, or a list of parts that are all text."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list) or not content:
            raise self.error(f"'{where}.content' should be text, not {kind(content)}")
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise self.error(f"'{where}.content' has parts that are not text, such as images; only text is supported")
        return "".join(text for text in texts if text)

    def prompt(self, column: str) -> Prompt:
        return self.check_prompt(column, self.conversation(column))

    def check_prompt(self, column: str, prompt: Prompt) -> Prompt:
        """A prompt is what a model answers, so it must end in a nonempty user turn."""
        if not prompt:
            raise self.error(f"'{column}' is empty: a prompt needs at least one user turn")
        if prompt[-1].role not in ("user", "tool"):
            raise self.error(f"'{column}' ends with a turn by '{prompt[-1].role}'; the last turn must be the user's")
        if not prompt[-1].content.strip():
            raise self.error(f"'{column}' is empty: its last user turn has no text")
        return prompt


class LeftOut(DataError):
    """A good row that holds no comparison, such as one that nobody voted on: counted, but nothing to fix."""


def _is_message(item: object) -> bool:
    keys = next((keys for keys in KEYS if isinstance(item, Mapping) and all(key in item for key in keys)), None)
    role = item.get(keys[0]) if isinstance(item, Mapping) and keys is not None else None
    return isinstance(role, str) and OTHER_ROLES.get(role, role) in ROLES


def _parsed_number(text: str) -> float | int | str:
    for read in (int, float) if "_" not in text else ():  # Python's own 1_000
        try:
            return read(text)
        except ValueError:
            continue
    return text


def kind(value: object) -> str:
    """A value's JSON type in words, for messages."""
    names = {bool: "true/false", str: "text", dict: "an object", list: "a list"}
    return "missing" if value is None else names.get(type(value), repr(value)[:40])


def as_prompts(asked: Sequence[PromptLike]) -> list[Prompt]:
    """Prompts as people write them in Python, held to what data is held to."""
    if isinstance(asked, str) or not len(asked):
        raise UserError("give a list of questions, also if it is only one")
    return [_as_prompt(one, number) for number, one in enumerate(asked, 1)]


def _as_prompt(asked: Any, number: int) -> Prompt:
    if isinstance(asked, Sequence) and asked and all(isinstance(one, Message) for one in asked):
        return tuple(asked)
    return Row({"question": asked}, Origin("what was asked", number)).prompt("question")
