"""Small files in the shapes met in the wild, and a Hypothesis profile that gives the same run twice."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: tests need no network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for each of pytest's workers

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")


def helpsteer3_row(prompt="Why is the sky blue?", label=-2, votes=(-2, -1, -3), **changes):
    return {
        "domain": "general",
        "language": "english",
        "context": [{"role": "user", "content": prompt}],
        "response1": f"Rayleigh scattering, for: {prompt}",
        "response2": f"Because it is, for: {prompt}",
        "overall_preference": label,
        "individual_preference": [
            {"score": v, "reasoning": "r", "feedback1": "a", "feedback2": "b"} for v in votes
        ],
    } | changes


@pytest.fixture
def write(tmp_path: Path):
    """Writes rows to a `.jsonl` or `.jsonl.gz` file and gives its path as text."""

    def write_rows(rows, name="data.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return str(path)

    return write_rows
