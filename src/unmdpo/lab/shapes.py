"""Writes the world to files shaped like HelpSteer3 or TRL data, for any loader or trainer."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unmdpo.lab.world import Compared


def helpsteer3(compared: Compared) -> dict[str, Any]:
    return {
        "domain": compared.prompt.task.domain,
        "language": "english",
        "context": [{"role": "user", "content": compared.prompt.text}],
        "response1": compared.first,
        "response2": compared.second,
        "overall_preference": compared.label,
        "individual_preference": [
            {"score": vote, "reasoning": "", "feedback1": "", "feedback2": ""} for vote in compared.votes
        ],
    }


def preference(compared: Compared) -> dict[str, Any] | None:
    """TRL's columns, with a strength; a tie has no better response."""
    if compared.label == 0:
        return None
    better, worse = (compared.second, compared.first) if compared.label > 0 else (compared.first, compared.second)
    return {
        "prompt": compared.prompt.text,
        "chosen": better,
        "rejected": worse,
        "strength": abs(compared.label),
        "domain": compared.prompt.task.domain,
    }


SHAPES = {"helpsteer3": helpsteer3, "preference": preference}


def write(path: Path, compared: Iterable[Compared], shape: str = "helpsteer3") -> int:
    """Writes JSON lines and returns how many."""
    rows = [row for one in compared if (row := SHAPES[shape](one)) is not None]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return len(rows)
