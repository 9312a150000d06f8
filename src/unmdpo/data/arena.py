"""What Arena-Hard-Auto's files say: its verdicts, and answers for it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.core.files import write_lines

VERDICT = re.compile(r"(A|B)(>>|>|=|<|<<)(A|B)")
IDS = ("uid", "question_id")


def share_of_a(verdict: str) -> float | None:
    """1 if A is much better, ¾ if it is better, ½ for a tie, and so on; None if it is no verdict."""
    read = VERDICT.fullmatch(verdict)
    if read is None or read[1] == read[3]:
        return None
    better = read[1] if read[2].startswith(">") else read[3]
    step = {0: 0.0, 1: 0.25, 2: 0.5}[0 if read[2] == "=" else len(read[2])]
    return 0.5 + step if better == "A" else 0.5 - step


def write_answers(path: Path, model: str, answers: Iterable[Mapping[str, Any]]) -> None:
    """Rows as `gen_judgment.py` reads them. An answer has a `prompt`, the `id` that came with it, and a `text`."""
    rows = []
    for answer in answers:
        if not answer["id"]:
            raise UserError(
                "the panel's prompts have no ids, by which Arena-Hard-Auto knows them: "
                f"its file of prompts should have a column {' or '.join(map(repr, IDS))}"
            )
        messages = [message.to_dict() for message in answer["prompt"]]
        messages.append({"role": "assistant", "content": {"answer": answer["text"]}})
        rows.append({"uid": answer["id"], "ans_id": f"{model}-{answer['id']}", "model": model, "messages": messages})
    write_lines(path, rows)
