"""Files of prompts alone: what a model is asked, with nobody's answers."""

from pathlib import Path

from unmdpo.data.files import read_file
from unmdpo.data.identity import Prompt, prompt_hash
from unmdpo.data.rows import BadRows, Row

PROMPTS, DOMAINS = ("prompt", "instruction"), ("domain", "dataset")  # the latter of each: AlpacaEval's


def read_prompts(path: Path) -> tuple[dict[str, Prompt], dict[str, str]]:
    """Prompts and domains by prompt hash, in the file's order."""
    prompts, domains = dict[str, Prompt](), dict[str, str]()
    for row in read_file(path, BadRows(0)):
        prompt = _prompt(row)
        name = prompt_hash(prompt)
        prompts.setdefault(name, prompt)
        domains.setdefault(name, next((row.optional_text(column) for column in DOMAINS if column in row), ""))
    return prompts, domains


def _prompt(row: Row) -> Prompt:
    column = next((name for name in PROMPTS if name in row), None)
    if column is None:
        raise row.error(f"a prompt should stand in '{PROMPTS[0]}' or '{PROMPTS[1]}'")
    return row.prompt(column)
