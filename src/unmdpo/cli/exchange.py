"""Results for others: a table for a paper, answers for other tools, and what AlpacaEval and Arena-Hard-Auto say."""

from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.output import cell, check_target, say
from unmdpo.cli.run import HERE, Overrides, RecipeArgument, StoreOption, open_named

if TYPE_CHECKING:
    from unmdpo.results.grid import Grid


GAP = 2  # spaces between columns


class Format(StrEnum):
    alpaca_eval = "alpaca-eval"
    arena_hard = "arena-hard"
    jsonl = "jsonl"


class Written(StrEnum):
    text = "text"
    latex = "latex"
    markdown = "markdown"
    csv = "csv"
    json = "json"


def table(
    runs: Annotated[list[str], typer.Argument(help="Runs or recipes; several stand below each other.")],
    form: Annotated[Written, typer.Option("--format", help="How to write it.")] = Written.text,
    out: Annotated[Path | None, typer.Option(help="File to write; default: the terminal.")] = None,
    store: StoreOption = HERE,
) -> None:
    """Show one table of a run, or of several: policies, over all seeds, by each panel and judge, length and cost.

    Every file behind it is checked first, as `verify` does."""
    check_target(out, ".txt", ".md", ".csv", ".tex")
    say("checking every file behind the table", err=True)
    opened = {name: open_named(name, None, store) for name in runs}
    from unmdpo.core.errors import UserError
    from unmdpo.core.files import write_text
    from unmdpo.results.grid import Grid
    from unmdpo.results.verify import verify

    for name, run in opened.items():
        if not run.summarized:
            why = "the recipe has no evaluation" if run.recipe.evaluation is None else f"unmdpo run {name}"
            raise UserError(f"{name}: there is no table yet: {why}")
        problems = [finding for finding in verify(run) if finding.problem]
        if problems:
            raise UserError(f"{name}: {len(problems)} checks failed, so there is no table: unmdpo verify {name}")
    grid = Grid.of(opened)
    if out is None and form is Written.text:
        _show(grid)
        return
    text = grid.markdown() if form is Written.text else getattr(grid, form.value)()
    if out is None:
        say(text, nl=False)
    else:
        write_text(out, text)


def _show(grid: "Grid") -> None:
    """On a terminal there is no room for a column for each measure: they stand below each other, and policies beside
    each other as far as they fit."""
    from rich.console import Console
    from rich.table import Table

    console, heads = Console(), grid.heads()[1:]
    columns = [(name, list(values)) for name, *values in grid.cells()]
    room = console.width - max(map(len, heads))
    while columns:
        widths = accumulate(GAP + max(map(len, (name, *values))) for name, values in columns)
        fitting = max(1, sum(width <= room for width in widths))
        shown = Table("", *(cell(name) for name, _ in columns[:fitting]), box=None, pad_edge=False)
        for place, head in enumerate(heads):
            shown.add_row(cell(head), *(values[place] for _, values in columns[:fitting]))
        console.print(shown)
        columns = columns[fitting:]
    for note in grid.notes:
        say(note)


def alpaca(
    annotations: Annotated[list[Path], typer.Argument(help="Annotation files, one per model.")],
    gamed: Annotated[Path | None, typer.Option(help="AlpacaEval's df_gamed.csv, needed for length control.")] = None,
) -> None:
    """Show each model's win rate, mean length and, with --gamed, its length-controlled win rate."""
    from rich.console import Console
    from rich.table import Table

    from unmdpo.data.alpaca import read_annotations, read_gamed
    from unmdpo.stats.length_control import GamedBaseline, length_controlled

    columns = ("model", "against", "pairs", "win %", "length-controlled %", "mean characters")
    table = Table(*columns, box=None, pad_edge=False)
    known = None if gamed is None else read_gamed(gamed)
    for path in annotations:
        judged, controlled = read_annotations(path), ""
        if known is not None:
            fitted = length_controlled(
                judged.preference,
                judged.baseline_length,
                judged.model_length,
                known.difficulties(judged),
                GamedBaseline(known.preference, known.length_difference, known.difficulty),
            )
            controlled = f"{fitted.win_rate:.2f} ± {fitted.standard_error:.2f}"
        names = (cell(name) for name in (judged.model, judged.baseline))
        failed = len(judged) - judged.count
        pairs = f"{judged.count}{f' ({failed} not judged)' if failed else ''}"
        table.add_row(*names, pairs, f"{judged.win_rate:.2f}", controlled, f"{judged.model_length.mean():.0f}")
    Console().print(table)


def answers(
    recipe: RecipeArgument,
    policy: Annotated[str, typer.Argument(help="A policy of the recipe, or initial.")],
    panel: Annotated[str, typer.Argument(help="A panel of the recipe.")],
    overrides: Overrides = None,
    form: Annotated[Format, typer.Option("--format", help="Whose format.")] = Format.alpaca_eval,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: outputs.json or POLICY.jsonl.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    store: StoreOption = HERE,
) -> None:
    """Write a policy's answers for AlpacaEval, for Arena-Hard-Auto, or as JSON lines."""
    from unmdpo.core.errors import UserError
    from unmdpo.core.files import write_lines
    from unmdpo.data import alpaca, arena

    out = out or Path("outputs.json" if form is Format.alpaca_eval else f"{policy}.jsonl")
    check_target(out, ".json", ".jsonl")
    if out.exists() and not force:
        raise UserError(f"{out} exists: choose another name with --out, or write over it with --force")
    rows = open_named(recipe, overrides, store).generations(policy, panel)
    if form is not Format.jsonl:
        rows = [row for row in rows if row["sample"] == 0]  # one answer to each prompt is all that they take
    if form is Format.alpaca_eval:
        several = sum(len(row["prompt"]) > 1 for row in rows)
        if several:
            raise UserError(
                f"{several} of {len(rows)} prompts have several messages, but AlpacaEval's `instruction` is one text: "
                "choose another --format"
            )
        alpaca.write_outputs(out, policy, [(row["prompt"][-1].content, row["text"]) for row in rows], panel)
    elif form is Format.arena_hard:
        arena.write_answers(out, policy, rows)
    else:
        said = ({**row, "prompt": [message.to_dict() for message in row["prompt"]], "model": policy} for row in rows)
        write_lines(out, said)
    say(f"{out}: {len(rows)} answers of {policy}")
