"""Renders one word with a chat template, in a process of its own: a template is a program by a stranger."""

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """`{% generation %}`, with which some templates mark what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja has it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    def _as_it_is(self, caller: Any) -> Any:
        return caller()


def problem(template: str, word: str, arguments: Mapping[str, Any], most: int) -> str:
    """What is wrong with how the template writes a word and an answer, in an environment like Transformers' own and in
    at most so many characters; empty if nothing is."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda pattern: pattern}
    compiled, answer = environment.from_string(template), word[::-1]
    asked, answered = [{"role": "user", "content": word}], {"role": "assistant", "content": answer}

    def written(messages: list[dict[str, str]], prefix: bool) -> str:
        text = compiled.render(
            messages=messages, add_generation_prompt=prefix, tools=None, documents=None, **arguments
        )
        if len(text) > most:
            raise ValueError(f"it writes {len(text):,} characters for a conversation of {len(word)}")
        return text

    if word not in written(asked, True):
        return "does not write what the user says"
    try:
        whole = written([*asked, answered], False)
    except TemplateError:  # shown where an answer is rendered
        return ""
    return "writes the prompt after the response" if -1 < whole.find(answer) < whole.find(word) else ""
