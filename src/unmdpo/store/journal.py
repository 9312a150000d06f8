"""Work so far, line by line, that a later attempt goes on from: answers and scores, each of which may cost money."""

import json
from pathlib import Path
from typing import Any

from unmdpo.core.files import write_text


class Journal:
    """Values in the order they were added. A last line that was cut off by a kill is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.values: list[Any] = []
        lines = path.read_text("utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
        for line in lines:
            try:
                self.values.append(json.loads(line))
            except (ValueError, RecursionError):  # a disk wrote nonsense: what follows is asked again
                break
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(f"{line}\n" for line in lines[: len(self.values)]))

    def add(self, value: Any) -> None:
        """Written at once, so that a kill loses nothing of it."""
        self.values.append(value)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value, ensure_ascii=False) + "\n")
