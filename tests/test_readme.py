"""The README's Python runs as printed."""

import json
import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.S)


def row(i):
    return {"prompt": f"Question {i}?", "chosen": "yes", "rejected": "no", "strength": 1 + i % 3}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(9)))
    names = ("chosen", "rejected", "ref_chosen", "ref_rejected", "evidence")
    given = {name: torch.randn(9) for name in names}
    given |= {"chosen_tokens": torch.arange(1, 10), "rejected_tokens": torch.arange(1, 10)}
    given |= {"unit": torch.arange(9), "features": torch.randn(9, 4), "strength": torch.ones(9)}
    exec(BLOCKS[number], given)
    if "loss" in given:
        assert given["loss"].isfinite()
    else:
        assert [float(line) for line in capsys.readouterr().out.split()] == pytest.approx([0, 2])


def test_there_are_blocks():
    assert len(BLOCKS) == 2
