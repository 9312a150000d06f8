"""Reads a GGUF file once, where Transformers would parse it again for each of tokenizer, configuration and weights."""

import functools
from pathlib import Path
from typing import Any

import numpy as np


@functools.lru_cache(maxsize=1)
def remember_gguf() -> None:
    """From now on, in this process: files that did not change are parsed once, which is most of the time for their
    tokenizers, and names of weights are worked out once for each kind of model, not for every module."""
    try:
        import gguf  # noqa: PLC0415 - an extra
        from transformers import modeling_gguf_pytorch_utils as reading  # noqa: PLC0415
    except ImportError:
        return  # whoever needs it says so

    class Reader(gguf.GGUFReader):
        """With a plain array for the file's bytes: slicing a memory map takes several times as long."""

        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = mapped.view(np.ndarray)

    @functools.lru_cache(maxsize=1)  # a reader holds all tokens of a vocabulary as arrays
    def read(path: str, size: int, changed: int) -> Any:
        return Reader(path)

    def reader(path: Any, mode: Any = "r") -> Any:
        if mode != "r":
            return Reader(path, mode)
        found = Path(path).stat()
        return read(str(path), found.st_size, found.st_mtime_ns)

    gguf.GGUFReader = reader  # type: ignore[misc,assignment]
    reading.tqdm = lambda tensors, **_: tensors  # type: ignore[attr-defined]  # its bar would break into ours
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
