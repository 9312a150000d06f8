"""`unmdpo judge`: a judge of one's own."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.audit import Config, Data, MaxBadRows, Revision, Source, StrictRows, check_target
from unmdpo.cli.look import Columns, Labels, reading_of, rule_of

if TYPE_CHECKING:
    from unmdpo.stages.shared.judge_training import TrainedJudge

JUDGE = "A reward model's folder or Hub name, package.module:function, or a .yaml file with a judge's settings."

Force = Annotated[bool, typer.Option("--force", help="Write over a file that exists.")]

app = typer.Typer(help="Judges of your own.", no_args_is_help=True)


@app.command()
def train(
    data: Data,
    folder: Annotated[Path, typer.Argument(help="A new folder for the judge.")],
    model: Annotated[str, typer.Option(help="The model it starts from: a folder or a Hub name.")],
    source: Source = "auto",
    split: Annotated[str, typer.Option(help="The split to train on, or 'all'.")] = "train",
    revision: Revision = None,
    config: Config = None,
    held_out: Annotated[float, typer.Option(min=0.01, max=0.9, help="Share of the prompts to measure on.")] = 0.1,
    margins: Annotated[bool, typer.Option("--margins/--no-margins", help="Stronger preferences by a margin.")] = True,
    epochs: Annotated[int, typer.Option(min=1, max=100)] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Pairs in a batch.")] = 32,
    learning_rate: Annotated[float, typer.Option(min=1e-9, max=1.0)] = 2e-5,
    max_length: Annotated[int, typer.Option(min=8, help="Most tokens of a prompt with its response.")] = 2048,
    lora: Annotated[int | None, typer.Option(min=1, help="Train a LoRA adapter of this rank, and merge it.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 42,
    pairs: Annotated[str, typer.Option(help="For scored responses: all or neighbours.")] = "all",
    most: Annotated[int | None, typer.Option(min=1, help="For scored responses: pairs of one prompt.")] = None,
    max_bad_rows: MaxBadRows = "1%",
    strict: StrictRows = False,
) -> None:
    """Train a reward model on preference pairs, and measure it on prompts it has not seen."""
    from unmdpo.core.errors import Stopped
    from unmdpo.core.settings import resolve
    from unmdpo.data import DataRef, PairRule, SourceSettings
    from unmdpo.data.bad import limit_of
    from unmdpo.data.load import Reading
    from unmdpo.engine.settings import ModelSource
    from unmdpo.engine.training.reward import RewardSettings
    from unmdpo.execute.checks import check_model
    from unmdpo.execute.progress import Lines
    from unmdpo.stages.shared.judge_training import train_judge

    base = ModelSource(path=model)
    check_model(base)
    given = {"pairs": pairs} if most is None else {"pairs": pairs, "most": most}
    rules = SourceSettings(pairing=resolve(PairRule, given, "pairing"))
    lines = Lines(interval=10)
    lines.shown["judge"] = 0.0
    try:
        judge = train_judge(
            DataRef.named(data, split, revision, config),
            Reading(source, rules, max_bad_rows=limit_of(max_bad_rows, strict=strict)),
            base,
            folder,
            RewardSettings(epochs, batch, learning_rate, max_length, lora, seed),
            held_out=held_out,
            margins=margins,
            report=lambda text: lines.progress("judge", text),
        )
    except (KeyboardInterrupt, Stopped) as error:
        typer.secho("stopped; run the same command again to go on", err=True)
        raise typer.Exit(128 + (error.signal if isinstance(error, Stopped) else signal.SIGINT)) from error
    _show(judge)


@app.command()
def score(
    data: Data,
    judge: Annotated[str, typer.Argument(help=JUDGE)],
    out: Annotated[Path, typer.Argument(help="The file to write, which `run` reads: .jsonl.")],
    source: Source = "auto",
    split: Annotated[str, typer.Option(help="The split to read, or 'all'.")] = "train",
    revision: Revision = None,
    config: Config = None,
    column: Columns = None,
    label: Labels = None,
    swap: Annotated[
        bool, typer.Option("--swap", help="Where the judge prefers the other response, swap the two; else leave out.")
    ] = False,
    force: Force = False,
    seed: Annotated[int, typer.Option(min=0, help="For the order in which a judge of pairs sees them.")] = 42,
    max_bad_rows: MaxBadRows = "1%",
    strict: StrictRows = False,
) -> None:
    """Score both responses of every comparison, and write them with a margin: strengths for data that has none."""
    from unmdpo.data import DataRef
    from unmdpo.execute.progress import Lines
    from unmdpo.recipe.rounds import judge_of
    from unmdpo.stages.scoring import score_file

    check_lines(out, force)
    lines = Lines(interval=10)
    lines.shown["judge"] = 0.0
    done = score_file(
        DataRef.named(data, split, revision, config),
        reading_of(source, column, rule_of(label, False), None, max_bad_rows, strict),
        judge_of(judge),
        out,
        swap=swap,
        seed=seed,
        report=lambda text: lines.progress("judge", text),
    )
    total = done.written + done.undecided + (0 if swap else done.disagreed)
    share = 100 * (1 - (done.disagreed + done.undecided) / max(1, total))
    lost = {**done.left_out, "without a difference": done.undecided}
    lost |= {} if swap else {"where the judge prefers the other response": done.disagreed}
    typer.echo(f"{out}: {done.written:,} comparisons; the judge agrees with {share:.1f} % of {total:,} labels")
    typer.echo("left out: " + ", ".join(f"{count:,} {why}" for why, count in lost.items()))
    if done.spent:
        typer.echo(f"spent: {', '.join(f'{count:,} {what}' for what, count in done.spent['spent'].items())}")
    typer.echo(f"next: unmdpo look {out}")


def check_lines(out: Path, force: bool) -> None:
    """Whether lines of JSON can be written there, and nothing is lost by it."""
    from unmdpo.core.errors import UserError

    check_target(out)
    if out.suffix != ".jsonl":
        raise UserError(f"{out}: lines of JSON are written, so name it .jsonl")
    if out.exists() and not force:
        raise UserError(f"{out} exists: choose another name, or write over it with --force")


def _show(judge: "TrainedJudge") -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"accuracy on held-out pairs; trained on {judge.trained_on:,}"
    table = Table("strength", "pairs", "judge", "longer is better", title=title, box=None, pad_edge=False)
    for name, found in judge.table.items():
        table.add_row(name, f"{found.pairs:,}", f"{100 * found.judge:.1f} %", f"{100 * found.length:.1f} %")
    Console().print(table)
    left_out = ", ".join(f"{count:,} {why}" for why, count in judge.left_out.items() if count)
    if left_out:
        typer.echo(f"left out: {left_out}")
    for part in judge.calibration.bins:
        typer.echo(f"sure by {100 * part.believed:.0f} %: right in {100 * part.right:.0f} % of {part.pairs:,} pairs")
    typer.echo(f"expected calibration error: {judge.calibration.error:.3f}")
    if judge.held_out.judge <= judge.held_out.length:
        typer.echo("it is no better than preferring the longer response: do not judge by it")
    typer.echo(f"in a recipe: evaluation: {{judge: {{path: {judge.folder}}}}}")
