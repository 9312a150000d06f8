"""What servers send: anything, at any length, and perhaps the key that they were asked with."""

import contextlib
import os
from collections.abc import Iterator

from unmdpo.errors import UserError, printable

SHOWN = 300  # characters
SHORTEST = 8  # characters of a secret: servers that want none are given any word, which may be anywhere in a message
ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)  # of reading what has another shape


@contextlib.contextmanager
def understood(who: str, key: str, advice: str = "") -> Iterator[None]:
    """Explains a server that does not answer, or not in the shape that was asked for. `key` names the environment
    variable with the secret, which no message repeats."""
    from openai import OpenAIError  # noqa: PLC0415 - an extra

    try:
        yield
    except UserError:
        raise
    except OpenAIError as error:
        raise UserError(f"{who} did not answer{advice and ' ' + advice}: {shown(error, key)}") from None
    except ODD as error:
        what = f"{type(error).__name__}: {shown(error, key)}"
        raise UserError(f"{who} sent something that is no answer ({what})") from None


def shown(what: object, key: str) -> str:
    """Enough of it for a message."""
    text, secret = str(what), os.environ.get(key)
    if secret and len(secret) >= SHORTEST:
        text = text.replace(secret, "…")
    return printable(text if len(text) <= SHOWN else text[:SHOWN] + "…")
