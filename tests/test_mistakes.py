"""The list of planted mistakes follows the code; planting them takes hours (`python -m tests.mistakes`)."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
MISTAKES = yaml.safe_load((Path(__file__).parent / "mistakes.yaml").read_text("utf-8"))


def test_each_line_is_where_it_is_to_be_planted_and_its_tests_are_there():
    for mistake in MISTAKES:
        assert (ROOT / "src" / "unmdpo" / mistake["file"]).read_text("utf-8").count(mistake["right"]) == 1, mistake
        assert all((ROOT / test.partition("::")[0]).exists() for test in mistake["tests"].split()), mistake
