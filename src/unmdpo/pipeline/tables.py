"""Comparisons, panels and lines of JSON as files, and back."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unmdpo.data import Comparison, Message, Origin, Prompt
from unmdpo.pipeline.store import write_json

COLUMNS = pa.schema(
    [
        ("prompt", pa.string()),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("strength", pa.int32()),
        ("domain", pa.string()),
        ("language", pa.string()),
        ("votes", pa.list_(pa.int32())),
        ("file", pa.string()),
        ("row", pa.int64()),
    ]
)


def prompt_text(prompt: Prompt) -> str:
    return json.dumps([[message.role, message.content] for message in prompt], ensure_ascii=False)


def prompt_of(text: str) -> Prompt:
    return tuple(Message(role, content) for role, content in json.loads(text))


def write_comparisons(path: Path, rows: Iterable[Comparison]) -> None:
    table = pa.Table.from_pylist(
        [
            {
                "prompt": prompt_text(row.prompt),
                "chosen": row.chosen,
                "rejected": row.rejected,
                "strength": row.strength,
                "domain": row.domain,
                "language": row.language,
                "votes": list(row.votes),
                "file": row.source.file,
                "row": row.source.row,
            }
            for row in rows
        ],
        schema=COLUMNS,
    )
    pq.write_table(table, path, compression="zstd")


def read_comparisons(path: Path) -> list[Comparison]:
    shared: dict[str, Prompt] = {}
    return [
        Comparison(
            prompt=shared.setdefault(row["prompt"], prompt_of(row["prompt"])),
            chosen=row["chosen"],
            rejected=row["rejected"],
            strength=row["strength"],
            source=Origin(row["file"], row["row"]),
            domain=row["domain"],
            language=row["language"],
            votes=tuple(row["votes"]),
        )
        for row in pq.read_table(path).to_pylist()
    ]


@dataclass(frozen=True)
class Panel:
    """Prompts to evaluate on, in order."""

    hashes: list[str]
    prompts: list[Prompt]
    domains: list[str]

    def __len__(self) -> int:
        return len(self.hashes)

    def write(self, path: Path) -> None:
        prompts = [prompt_text(prompt) for prompt in self.prompts]
        write_json(path, {"hashes": self.hashes, "prompts": prompts, "domains": self.domains})

    @classmethod
    def read(cls, path: Path) -> "Panel":
        found = json.loads(path.read_text("utf-8"))
        return cls(found["hashes"], [prompt_of(text) for text in found["prompts"]], found["domains"])


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines; what a kill cut off at the end is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
