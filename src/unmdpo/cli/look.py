"""`unmdpo look` and `unmdpo init`: from a file of preferences to a first recipe."""

import json
import re
import shlex
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.audit import Config, Data, Json, MaxBadRows, Revision, Source
from unmdpo.cli.output import check_target, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unmdpo.audit.describe import Description
    from unmdpo.data.reading import RowsSettings
    from unmdpo.data.strength import StrengthRule
    from unmdpo.recipe.draft import Draft

WIDTH, LABEL = 110, 11

Split = Annotated[str, typer.Option(help="The split to read, or 'all'.")]
Model = Annotated[str | None, typer.Option(help="A model's folder, Hub name or GGUF file, to count tokens.")]
Template = Annotated[
    str | None, typer.Option(help="Jinja text, or a .jinja file, for a model without a chat template.")
]
Columns = Annotated[list[str] | None, typer.Option(help="What a column holds, such as prompt=task.text; repeatable.")]
Ignored = Annotated[list[str] | None, typer.Option(help="A column to leave out, such as images; repeatable.")]
Labels = Annotated[
    list[str] | None, typer.Option(help="What a label means, such as left=a or 7=3; repeatable, for all labels.")
]
Continuous = Annotated[
    bool, typer.Option("--continuous", help="Take strengths and differences of scores as they are, not as levels.")
]
Against = Annotated[
    list[str] | None, typer.Option(help="Prompts that should not be in the data, such as a panel's; repeatable.")
]


def look(
    data: Data,
    model: Model = None,
    template: Template = None,
    source: Source = "auto",
    split: Split = "train",
    revision: Revision = None,
    config: Config = None,
    column: Columns = None,
    label: Labels = None,
    ignore: Ignored = None,
    continuous: Continuous = False,
    against: Against = None,
    max_bad_rows: MaxBadRows = "1%",
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page about it.")] = None,
    json_file: Json = None,
) -> None:
    """Inspect preference data: what is in it, what may be wrong, and a recipe for it."""
    from unmdpo.audit.facts import facts

    for path in (html, json_file):
        check_target(path)
    wanted = rows_wanted(
        data, source, split, revision, config, column, rule_of(label, continuous), ignore, max_bad_rows
    )
    seen, draft = _drafted(wanted, model, template, against or [])
    for subject, text in facts(seen):
        say(fill(f"{subject:<{LABEL}} {text}", WIDTH, subsequent_indent=" " * (LABEL + 1)))
    if seen.comparisons:
        say(f"\na recipe for it (`unmdpo init` writes it):\n\n{draft.text()}", nl=False)
    if html is not None:
        from unmdpo.report.data_page import write_data_page

        say(f"written to {write_data_page(seen, facts(seen), draft.text(), html)}")
    if json_file is not None:
        from unmdpo.core.files import write_text

        write_text(json_file, json.dumps(seen.to_dict(), indent=2, ensure_ascii=False) + "\n")
        say(f"written to {json_file}")


def init(
    data: Data,
    model: Model = None,
    template: Template = None,
    source: Source = "auto",
    split: Split = "train",
    revision: Revision = None,
    config: Config = None,
    column: Columns = None,
    label: Labels = None,
    ignore: Ignored = None,
    continuous: Continuous = False,
    max_bad_rows: MaxBadRows = "1%",
    out: Annotated[Path | None, typer.Option(help="The recipe's file; default: named after the data.")] = None,
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="All methods of the paper's main table instead of two.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write a first recipe for preference data."""
    from unmdpo.core.errors import UserError
    from unmdpo.core.files import write_text
    from unmdpo.recipe import load_recipe

    check_target(out)
    wanted = rows_wanted(
        data, source, split, revision, config, column, rule_of(label, continuous), ignore, max_bad_rows
    )
    seen, draft = _drafted(wanted, model, template)
    if not seen.comparisons:
        raise UserError(f"{data}: {seen.strength_means}")
    path = out or Path(f"{draft.name}.yaml")
    if path.exists() and not force:
        raise UserError(f"{path} exists: choose another name with --out, or write over it with --force")
    write_text(path, draft.text(all_methods=all_methods))
    load_recipe(str(path))  # what is printed next should work
    named = shlex.quote(str(path))
    say(f"{path!s}: {draft.comparisons:,} comparisons")
    say(f"next: unmdpo plan {named} && unmdpo run {named}")


def rows_wanted(
    data: str,
    source: str,
    split: str,
    revision: str | None,
    config: str | None,
    columns: list[str] | None = None,
    strength: "StrengthRule | None" = None,
    ignored: list[str] | None = None,
    max_bad_rows: str = "1%",
    **more: object,
) -> "RowsSettings":
    """What the options of a command say is to be read."""
    from unmdpo.core.errors import UserError, did_you_mean
    from unmdpo.data.bad import limit_of
    from unmdpo.data.columns import TARGETS
    from unmdpo.data.reading import AUTO, rows_of
    from unmdpo.data.strength import StrengthRule

    named = [text.partition("=") for text in columns or []]
    for name, equals, path in named:
        if not (name and equals and path):
            raise UserError(f"--column should be what it holds and its name, such as prompt=task.text, not '{name}'")
        if source == AUTO and name not in TARGETS:
            raise UserError(
                f"--column {name}={path}: this source has no field '{name}'; {did_you_mean(name, TARGETS)}"
            )
    return rows_of(
        data,
        source=source,
        split=split,
        revision=revision,
        config=config,
        columns={name: path for name, _, path in named},
        strength=strength or StrengthRule(),
        ignore=ignored or [],
        max_bad_rows=limit_of(max_bad_rows),
        **more,
    )


def rule_of(labels: list[str] | None, continuous: bool) -> "StrengthRule":
    """How strengths are read, as the options say."""
    from unmdpo.core.errors import UserError
    from unmdpo.core.settings import resolve
    from unmdpo.data.strength import SIDES, StrengthRule

    found: dict[str, int] = {}
    for text in labels or ():
        word, equals, meaning = text.rpartition("=")
        if not equals or not (meaning in SIDES or re.fullmatch(r"[-+]?\d+", meaning)):
            raise UserError(f"--label should be a label and what it means, such as left=a or 7=3, not '{text}'")
        found[word.strip()] = SIDES[meaning] if meaning in SIDES else int(meaning)
    given = {"labels": found, "levels": max(3, *map(abs, found.values()))} if found else {}
    return resolve(StrengthRule, given | ({"continuous": True} if continuous else {}), "strength")


def _drafted(
    wanted: "RowsSettings", model: str | None, template: str | None, against: "Sequence[str]" = ()
) -> "tuple[Description, Draft]":
    from unmdpo.core.settings import resolve
    from unmdpo.engine.settings import ModelSource
    from unmdpo.recipe.draft import drafted

    chosen = None if model is None else resolve(ModelSource, {"path": model, "template": template}, "the model")
    return drafted(wanted, chosen, against, template)
