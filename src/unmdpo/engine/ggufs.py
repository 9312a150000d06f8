"""GGUF files, which Transformers reads slowly."""

import contextlib
import functools
from collections.abc import Iterator


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Transformers parses a GGUF file again for each of tokenizer, configuration and weights, and works out the names
    of weights again for every module: most of half a minute for 100 MB. Within this, both are remembered."""
    try:
        import gguf  # noqa: PLC0415 - an extra
    except ImportError:
        yield  # whoever needs it says so
        return
    before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, made in before.items():
        setattr(gguf, name, functools.cache(made))
    try:
        yield
    finally:
        for name, made in before.items():
            setattr(gguf, name, made)
