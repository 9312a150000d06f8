"""The doors out of a command: to the terminal, where whatever came from a file, a name or a server is made harmless,
and to files that the user names."""

from pathlib import Path

import typer

from unmdpo.core.errors import UserError, printable


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    typer.echo(printable(text), err=err, nl=nl)


def cell(text: str) -> str:
    """For rich, which would also take [brackets] for its own."""
    return printable(text).replace("[", r"\[")


def check_target(path: Path | None, *endings: str) -> None:
    """Checks before the work, not after it, that the result can be written there and is no other kind of file: a
    slip would write over a recipe or data."""
    from unmdpo.core.files import check_outside_stores

    if path is None:
        return
    check_outside_stores(path)
    if not path.name or path.is_dir():
        raise UserError(f"the result should go to a file, not the folder '{path}'")
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file that could be written over: choose another name")
    if endings and path.suffix not in endings:
        raise UserError(f"{path}: the name should end in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
