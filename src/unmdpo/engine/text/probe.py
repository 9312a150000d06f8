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


def render(template: str, word: str, arguments: Mapping[str, Any], most: int) -> bool:
    """Whether the template writes what the user says, in an environment like Transformers' own and in at most so many
    characters."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda pattern: pattern}
    asked = [{"role": "user", "content": word}]
    text = environment.from_string(template).render(
        messages=asked, add_generation_prompt=True, tools=None, documents=None, **arguments
    )
    if len(text) > most:
        raise ValueError(f"it writes {len(text):,} characters for a conversation of {len(word)}")
    return word in text
