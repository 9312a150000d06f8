"""Checksums of local files, so a changed file is not mistaken for the one a stage used."""

import json
import os
from pathlib import Path
from typing import Any

from unmdpo.files import file_names, sha256, write_json
from unmdpo.pipeline.store import Store


class Fingerprints:
    """File checksums, remembered by path, size and modification time because models are large."""

    def __init__(self, store: Store) -> None:
        self._file = store.root / "fingerprints.json"
        try:
            self._known: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError):
            self._known = {}

    def of(self, path: str) -> dict[str, str] | None:
        """Name → SHA-256 for a local file or a folder's files; None for a name on the Hub."""
        place = Path(path).expanduser()
        if place.is_file():
            return {place.name: self._checksum(place)}
        if place.is_dir():
            return {name: self._checksum(place / name) for name in file_names(place)}
        return None

    def _checksum(self, path: Path) -> str:
        status, name = path.stat(), str(path.resolve())
        seen = [status.st_size, status.st_mtime_ns]
        known = self._known.get(name)
        if known is None or known["seen"] != seen:
            self._known[name] = {"seen": seen, "sha256": sha256(path)}
            folder = self._file.parent
            if folder.is_dir() and os.access(folder, os.W_OK):  # the store may be read-only
                write_json(self._file, self._known)
        digest: str = self._known[name]["sha256"]
        return digest
