"""The one door to the terminal: whatever came from a file, a name or a server is made harmless on the way out."""

import typer

from unmdpo.core.errors import printable


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    typer.echo(printable(text), err=err, nl=nl)


def cell(text: str) -> str:
    """For rich, which would also take [brackets] for its own."""
    return printable(text).replace("[", r"\[")
