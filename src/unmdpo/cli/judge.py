"""`unmdpo judge`: a judge of one's own."""

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.audit import Config, Data, MaxBadRows, Revision, Source
from unmdpo.cli.look import Columns, Labels, rows_wanted, rule_of
from unmdpo.cli.output import cell, check_target, say

if TYPE_CHECKING:
    from unmdpo.stages.shared.judge_measure import Measured
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
) -> None:
    """Train a reward model on preference pairs, and measure it on prompts it has not seen."""
    from unmdpo.core.errors import Stopped
    from unmdpo.core.files import check_outside_stores
    from unmdpo.core.settings import resolve
    from unmdpo.data import PairRule
    from unmdpo.engine.settings import ModelPlace, ModelSource
    from unmdpo.engine.training.reward import RewardSettings
    from unmdpo.execute.checks import check_model
    from unmdpo.execute.progress import Lines
    from unmdpo.stages.shared.judge_training import train_judge

    check_outside_stores(folder)
    base = ModelSource(path=ModelPlace(model))
    check_model(base)
    given = {"pairs": pairs} if most is None else {"pairs": pairs, "most": most}
    pairing = resolve(PairRule, given, "pairing")
    lines = Lines(interval=10)
    try:
        judge = train_judge(
            rows_wanted(data, source, split, revision, config, max_bad_rows=max_bad_rows, pairing=pairing),
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
) -> None:
    """Score both responses of every comparison, and write them with a margin: strengths for data that has none."""
    from unmdpo.execute.progress import Lines
    from unmdpo.recipe.pairs import judge_of
    from unmdpo.stages.graded import score_file

    check_lines(out, force)
    lines = Lines(interval=10)
    done = score_file(
        rows_wanted(data, source, split, revision, config, column, rule_of(label, False), max_bad_rows=max_bad_rows),
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
    say(f"{out}: {done.written:,} comparisons; the judge agrees with {share:.1f} % of {total:,} labels")
    say("left out: " + ", ".join(f"{count:,} {why}" for why, count in lost.items()))
    if done.spent:
        say(f"spent: {', '.join(f'{count:,} {what}' for what, count in done.spent['spent'].items())}")
    say(f"next: unmdpo look {shlex.quote(str(out))}")


@app.command("test")
def measure(
    judge: Annotated[str, typer.Argument(help=JUDGE)],
    data: Annotated[str, typer.Argument(help="Labelled pairs, or RewardBench 2: a file, a folder or a Hub dataset.")],
    source: Source = "auto",
    split: Annotated[str, typer.Option(help="The split to read, or 'all'.")] = "all",
    revision: Revision = None,
    config: Config = None,
    column: Columns = None,
    label: Labels = None,
    second: Annotated[str | None, typer.Option("--with", help="Another judge: how often do they agree?")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask about the first so many pairs only.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers into this file, as JSON.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the order in which a judge of pairs sees them.")] = 42,
    max_bad_rows: MaxBadRows = "1%",
) -> None:
    """Measure any judge: accuracy by strength and domain, against length; on RewardBench 2, its own scores."""
    check_target(out, ".json")
    from unmdpo.core.files import write_json
    from unmdpo.data.reward_bench import is_reward_bench
    from unmdpo.execute.progress import Lines
    from unmdpo.recipe.pairs import judge_of
    from unmdpo.stages.measured import measure_on_pairs, measure_on_reward_bench

    lines = Lines(interval=10)

    def report(text: str) -> None:
        lines.progress("judge", text)

    if is_reward_bench(Path(data)):
        scores = measure_on_reward_bench(Path(data), judge_of(judge), report)
        for name, score in scores.items():
            say(f"{name}: {100 * score:.1f}")
        found: dict[str, object] = {"reward_bench": scores}
    else:
        tested = measure_on_pairs(
            rows_wanted(
                data, source, split, revision, config, column, rule_of(label, False), max_bad_rows=max_bad_rows
            ),
            judge_of(judge),
            second=None if second is None else judge_of(second),
            limit=limit,
            seed=seed,
            report=report,
        )
        show_measured(tested.measured, "accuracy")
        found = tested.measured.to_dict()
        if tested.position is not None:
            first, changed = (100 * share for share in tested.position)
            say(f"the response shown first is preferred in {first:.1f} % of answers")
            say(f"the verdict changes with the order in {changed:.1f} % of pairs")
            found["position"] = tested.position._asdict()
        if tested.agreement is not None:
            say(f"the second judge says the same about {100 * tested.agreement:.1f} % of pairs")
            found["agreement"] = tested.agreement
        found |= tested.spent
    if out is not None:
        write_json(out, {"judge": judge, "data": data, **found})


@app.command()
def show(judge: Annotated[str, typer.Argument(help=JUDGE)]) -> None:
    """Show what kind of judge it is; for a language model, what it is asked, and how its verdict is read."""
    from unmdpo.engine.inference.judge_prompt import prompt_of_judge
    from unmdpo.engine.inference.judges import EndpointSettings, kind_of
    from unmdpo.recipe.pairs import judge_of

    settings = judge_of(judge)
    kind = kind_of(settings)
    say(f"{kind.name}: {kind.summary}")
    for name, value in settings.model_dump(exclude_none=True).items():
        say(f"{name}: {value!s}")
    if isinstance(settings, EndpointSettings):
        prompt = prompt_of_judge(settings)
        for role, text in prompt.messages:
            say(f"\n[{role}]")
            for line in text.splitlines():
                say(line)
        say(f"\nread: {prompt.reading(logprobs=settings.logprobs)}")


def check_lines(out: Path, force: bool) -> None:
    """Whether lines of JSON can be written there, and nothing is lost by it."""
    from unmdpo.core.errors import UserError

    check_target(out)
    if out.suffix != ".jsonl":
        raise UserError(f"{out}: lines of JSON are written, so name it .jsonl")
    if out.exists() and not force:
        raise UserError(f"{out} exists: choose another name, or write over it with --force")


def _show(judge: "TrainedJudge") -> None:
    show_measured(judge.held_out, f"accuracy on held-out pairs; trained on {judge.trained_on:,}")
    left_out = ", ".join(f"{count:,} {why}" for why, count in judge.left_out.items() if count)
    if left_out:
        say(f"left out: {left_out}")
    say(f"in a recipe: evaluation: {{judge: {{path: {judge.folder}}}}}")


def show_measured(found: "Measured", title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "pairs", "judge", "longer is better", title=title, box=None, pad_edge=False)
    for name, part in found.table.items():
        shares = (f"{100 * share:.1f} %" for share in (part.judge, part.length))
        table.add_row(cell(name), f"{part.pairs:,}", *shares)
    Console().print(table)
    for bin in found.calibration.bins:
        say(f"sure by {100 * bin.believed:.0f} %: right in {100 * bin.right:.0f} % of {bin.pairs:,} pairs")
    say(f"expected calibration error: {found.calibration.error:.3f}")
    if found.every.judge <= max(found.every.length, 0.5):
        say("it is no better than preferring the longer response, or than chance: do not judge by it")
