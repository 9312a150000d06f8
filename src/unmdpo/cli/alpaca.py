"""`unmdpo answers` and `unmdpo alpaca`: answers for AlpacaEval, and win rates from its annotations."""

from pathlib import Path
from typing import Annotated

import typer

from unmdpo.cli.run import HERE, Overrides, RecipeArgument, StoreOption, open_named


def alpaca(
    annotations: Annotated[list[Path], typer.Argument(help="Annotation files, one per model.")],
    gamed: Annotated[Path | None, typer.Option(help="AlpacaEval's df_gamed.csv, needed for length control.")] = None,
) -> None:
    """Show each model's win rate, mean length and, with --gamed, its length-controlled win rate."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from unmdpo.core.errors import printable
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
        names = (escape(printable(name)) for name in (judged.model, judged.baseline))
        failed = len(judged) - judged.count
        pairs = f"{judged.count}{f' ({failed} not judged)' if failed else ''}"
        table.add_row(*names, pairs, f"{judged.win_rate:.2f}", controlled, f"{judged.model_length.mean():.0f}")
    Console().print(table)


def answers(
    recipe: RecipeArgument,
    policy: Annotated[str, typer.Argument(help="A policy of the recipe, or initial.")],
    panel: Annotated[str, typer.Argument(help="A panel of the recipe.")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("outputs.json"),
    store: StoreOption = HERE,
) -> None:
    """Write a policy's answers in AlpacaEval's format."""
    from unmdpo.data.alpaca import write_outputs

    rows = open_named(recipe, overrides, store).generations(policy, panel)
    write_outputs(out, policy, [(row["prompt"][-1].content, row["text"]) for row in rows], panel)
    typer.echo(f"{out}: {len(rows)} answers of {policy}")
