"""The page about data names every source and every public set that a source is said to read."""

from pathlib import Path

import pytest

from unmdpo.data import SOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "your-data.md").read_text("utf-8")


@pytest.mark.parametrize("name", SOURCES)
def test_the_page_lists_it(name):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    source = SOURCES[name]
    for public in (*source.also, *([source.hub.path] if source.hub is not None else [])):
        assert (
            public in row or public.split("/")[-1].removeprefix("arena-human-preference") in row or "the same" in row
        )
    counts = [cell.strip() for cell in row.split(" | ")[-2:]]
    assert any(cell.strip(" |").replace(",", "").isdigit() for cell in counts), "rows tried"
