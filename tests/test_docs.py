"""The examples of the documentation run, one after the other, as a reader would type them."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_pieces_work_as_documented(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text("utf-8"), flags=re.S)
    assert len(blocks) == 6
    shared = {}
    for block in blocks:
        exec(block, shared)
    said = capsys.readouterr().out
    assert "comparisons and" in said
    assert shared["outcome"].prompts == 20
    assert shared["run"].finished


def test_every_link_of_the_documentation_leads_somewhere():
    for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_on_the_site():
    listed = set(re.findall(r": ([\w-]+\.md)", (DOCS.parent / "mkdocs.yml").read_text("utf-8")))
    assert listed == {page.name for page in DOCS.glob("*.md")}
