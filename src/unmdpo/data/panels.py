"""Prompts to evaluate on: panels and validation splits drawn by hash and seed alone, and prompt files."""

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from unmdpo.core.errors import UserError
from unmdpo.core.files import expand_home
from unmdpo.core.settings import PanelSize
from unmdpo.data.identity import Prompt, prompt_hash
from unmdpo.data.readers.files import read_strictly
from unmdpo.data.rows import Row
from unmdpo.data.sources.pair_texts import asked

PROMPTS = ("prompt", "instruction")  # the second is AlpacaEval's
TURNS = "turns"  # MT-Bench's, and the first Arena-Hard's
DOMAINS = ("domain", "dataset", "category")  # the second is AlpacaEval's, the third Arena-Hard's and MT-Bench's
IDS = ("uid", "question_id", "id")  # of prompts: Arena-Hard's, its first version's and MT-Bench's, others'
ANSWERS = ("text", "output", "response")  # the second is AlpacaEval's
SMALLEST = 1e-6  # q; what is beyond it, or its inverse, is no scale but a mistake


def sample_panel(domains: Mapping[str, str], size: PanelSize, seed: int, exclude: Collection[str] = ()) -> list[str]:
    """`size` prompt hashes, stratified by domain, in the order of their hashes. A share is of those not excluded.

    `domains` maps prompt hashes to domains. Each domain gets its share by largest remainder; `random.Random(seed)`
    then samples within each domain, in sorted order of domains. Prompts in `exclude` (an earlier panel's) are never
    drawn.
    """
    excluded = set(exclude)
    strata: dict[str, list[str]] = {}
    for prompt in sorted(domains):
        if prompt not in excluded:
            strata.setdefault(domains[prompt], []).append(prompt)
    available = sum(map(len, strata.values()))
    size = panel_size(size, available)
    if size < 1:
        raise UserError(f"a panel needs at least one prompt, not {size}")
    if size > available:
        raise UserError(
            f"a panel of {size} prompts is too large: only {available} are left"
            + (f" after excluding {len(excluded)}" if excluded else "")
        )
    quotas = proportional({domain: len(prompts) for domain, prompts in strata.items()}, size)
    rng = random.Random(seed)
    drawn = [p for domain in sorted(strata) for p in rng.sample(strata[domain], quotas[domain])]
    return sorted(drawn)


def panel_size(size: PanelSize, available: int) -> int:
    """How many prompts of those `available` a panel takes."""
    if size == "all":
        return max(1, available)
    return size if isinstance(size, int) else max(1, round(size * available))


def proportional(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Splits `size` in proportion to `counts` by largest remainder; ties go by name."""
    total = sum(counts.values())
    quotas = {name: size * count // total for name, count in counts.items()}
    remainder = {name: size * count % total for name, count in counts.items()}
    left = size - sum(quotas.values())
    for name in sorted(counts, key=lambda name: (-remainder[name], name))[:left]:
        quotas[name] += 1
    return quotas


def split_prompts(prompts: Iterable[str], fraction: float, seed: int) -> set[str]:
    """The prompts to hold out for validation when the data has no validation split.

    The held-out share is exact (rounded), and a prompt's rank depends only on its hash and the seed.
    """
    if not 0 < fraction < 1:
        raise UserError(f"a validation fraction should be between 0 and 1, not {fraction}")
    ranked = sorted(set(prompts), key=lambda prompt: seeded_digest(prompt, seed))
    return set(ranked[: max(1, round(fraction * len(ranked)))])


def seeded_digest(prompt_hash: str, seed: int) -> str:
    """SHA-256 of `{seed}:{prompt hash}`: an order of prompts that nobody can influence."""
    return hashlib.sha256(f"{seed}:{prompt_hash}".encode("ascii")).hexdigest()


def prompts_in(path: str) -> int | None:
    """How many prompts a panel's file has; None if it is not here."""
    file = expand_home(path)
    return len(read_prompts(file)[0]) if file.is_file() else None


def read_prompts(path: Path) -> tuple[dict[str, Prompt], dict[str, str], dict[str, str]]:
    """Prompts, their domains and the ids that came with them, by prompt hash, in the file's order."""
    prompts, domains, ids = dict[str, Prompt](), dict[str, str](), dict[str, str]()
    for row in read_strictly(path):
        prompt = _prompt(row)
        name = prompt_hash(prompt)
        prompts.setdefault(name, prompt)
        domains.setdefault(name, _first(row, DOMAINS))
        ids.setdefault(name, _first(row, IDS))
    return prompts, domains, ids


def _first(row: Row, columns: Iterable[str]) -> str:
    return next((row.optional_text(column) for column in columns if column in row), "")


def read_answers(path: Path) -> dict[str, str]:
    """Answers made elsewhere, by prompt hash: a row has the prompt or its hash, and the answer's text."""
    answers = dict[str, str]()
    for row in read_strictly(path):
        column = next((name for name in ANSWERS if name in row), None)
        if column is None:
            raise row.error(f"no answer: there should be a column {' or '.join(map(repr, ANSWERS))}")
        name = row.text("prompt_hash") if "prompt_hash" in row else prompt_hash(_prompt(row))
        if name in answers and answers[name] != row.text(column):
            raise row.error("a second, different answer to the same prompt")
        answers[name] = row.text(column)
    return answers


def read_scales(path: Path) -> dict[str, float]:
    """Scales made elsewhere, by prompt hash: a row has the prompt or its hash, and its `q`."""
    scales = dict[str, float]()
    for row in read_strictly(path):
        q = row.number("q")
        if not SMALLEST <= q <= 1 / SMALLEST:
            raise row.error(f"q should be a positive number, from {SMALLEST:g} to {1 / SMALLEST:g}, not {q:g}")
        name = row.text("prompt_hash") if "prompt_hash" in row else prompt_hash(_prompt(row))
        if scales.setdefault(name, q) != q:
            raise row.error("a second, different q of the same prompt")
    return scales


def _prompt(row: Row) -> Prompt:
    column = next((name for name in PROMPTS if name in row), None)
    if column is not None:
        return (*row.tools(), *asked(row, column))
    if TURNS not in row:
        raise row.error(f"no prompt: there should be a column '{PROMPTS[0]}' or '{PROMPTS[1]}'")
    turns = row.items(TURNS)
    if len(turns) != 1:
        raise row.error(f"{len(turns)} turns, but answers are to one: keep the first in a column '{PROMPTS[0]}'")
    (turn,) = turns
    text = turn.get("content") if isinstance(turn, dict) else turn
    return asked(replace(row, values={**row.values, PROMPTS[0]: text}), PROMPTS[0])
