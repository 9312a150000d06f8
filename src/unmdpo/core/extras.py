"""Packages that only some people need."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires

from unmdpo.core.errors import UserError


def missing(what: str, extra: str) -> str:
    """What to install. The packages are named, not the extra, which cannot be had by name from a clone."""
    lines = [line.partition(";") for line in requires("unmdpo") or ()]
    packages = [f"'{name.strip()}'" for name, _, marker in lines if marker.split("==")[-1].strip(" '\"") == extra]
    return f"{what} needs more than is installed: pip install {' '.join(packages)}"


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Imports in this block are of packages that may be missing."""
    try:
        yield
    except ImportError as error:
        raise UserError(missing(what, extra)) from error
