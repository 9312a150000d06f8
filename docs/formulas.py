"""Renders $…$ as MathML, which browsers show by themselves: no script, no request. A hook of MkDocs."""

import re
from typing import Any

from latex2mathml.converter import convert

CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
FORMULA = re.compile(r"(?<![\\$\w])\$(?! )([^$\n]+?)(?<! )\$(?![$\w])")


def on_page_markdown(markdown: str, **_: Any) -> str:
    parts = CODE.split(markdown)  # code at odd places
    return "".join(part if place % 2 else FORMULA.sub(_rendered, part) for place, part in enumerate(parts))


def _rendered(found: re.Match[str]) -> str:
    return f"<span>{convert(found[1])}</span>"  # a line that begins with <math> would be a block of its own
