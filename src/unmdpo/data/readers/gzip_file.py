"""Opens data files, gzipped or not."""

import gzip
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

from unmdpo.core.errors import DataError

BUFFER = 1 << 20
SUSPICIOUS, MOST_UNPACKED = 1 << 26, 200  # bytes that a gzipped file unpacks to, and times its size


def open_file(path: Path) -> BufferedReader:
    """Opens the file with a buffer that fits whole rows: the default buffer is smaller than most rows."""
    if path.suffix.lower() == ".gz":
        return BufferedReader(_Unpacked(path), BUFFER)
    return BufferedReader(path.open("rb", buffering=0), BUFFER)


class _Unpacked(RawIOBase):
    """A gzipped file, up to a size that no text has: some unpack to a thousand times their own."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, gzip.GzipFile(path)
        self._left = max(SUSPICIOUS, MOST_UNPACKED * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise DataError(self._path, f"unpacks to more than {MOST_UNPACKED} times its size, as no text does")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
