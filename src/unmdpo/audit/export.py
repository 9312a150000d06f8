"""Audit results as JSON files that appear whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

from unmdpo.audit.strength import StrengthAudit
from unmdpo.audit.support import SupportAudit
from unmdpo.errors import UserError


def to_dict(result: SupportAudit | StrengthAudit) -> dict[str, Any]:
    values = {"audit": "support", **vars(result)}
    if isinstance(result, StrengthAudit):
        values |= {"audit": "strength", "passed": result.passed}
        for part in ("train", "development"):
            values[part] = values[part]._asdict() | {"bins": [row._asdict() for row in values[part].bins]}
    return values


def write_json(path: Path, result: SupportAudit | StrengthAudit) -> None:
    text = json.dumps(to_dict(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    aside = path.with_name(f".unmdpo-{os.getpid()}.tmp")
    try:
        aside.write_text(text, "utf-8")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
