"""`unmdpo audit`: what preference data can and cannot tell, before training on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.output import check_target, say
from unmdpo.core.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from unmdpo.audit import StrengthAudit, SupportAudit
    from unmdpo.audit.strength import PartitionResult

app = typer.Typer(help="Audit preference data before training on it.", no_args_is_help=True)

Data = Annotated[str, typer.Argument(help="A file, a folder or a Hub dataset.", metavar="DATA")]
Source = Annotated[str, typer.Option(help="The source's name; auto recognizes it by its columns.")]
Revision = Annotated[str | None, typer.Option(help="Hub revision.")]
Config = Annotated[str | None, typer.Option(help="Hub configuration, or a subfolder.")]
MaxBadRows = Annotated[str, typer.Option(help="Unreadable rows to skip: a number, or a share such as 1%.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the result to this file.")]


@app.command()
def support(
    data: Data,
    source: Source = "auto",
    split: Annotated[str, typer.Option(help="The split to audit, or 'all'.")] = "train",
    revision: Revision = None,
    config: Config = None,
    tau: Annotated[float, typer.Option(min=0, help="Margin coefficient τ.")] = 1.0,
    strength_map: Annotated[str | None, typer.Option(help="m(1),m(2),…; default: m(k) = k.")] = None,
    levels: Annotated[int, typer.Option(min=1, help="Strength levels K.")] = 3,
    strength_column: Annotated[str | None, typer.Option(help="Column with the strengths.")] = None,
    thresholds: Annotated[str | None, typer.Option(help="K-1 margins that separate the levels.")] = None,
    pairs: Annotated[str, typer.Option(help="For scored responses: all or neighbours.")] = "all",
    min_gap: Annotated[float, typer.Option(min=0, help="For scored responses: smaller gaps are ties.")] = 0.0,
    max_bad_rows: MaxBadRows = "1%",
    json_file: Json = None,
) -> None:
    """Could this data's margins identify any prompt's scale? Counts pairs, cycles and contrasts."""
    from unmdpo.audit import audit_support
    from unmdpo.core.margins import StrengthMap
    from unmdpo.core.settings import resolve
    from unmdpo.data import PairRule, StrengthRule, load_comparisons
    from unmdpo.data.bad import limit_of

    check_target(json_file)
    rule = {"levels": levels, "column": strength_column, "thresholds": _numbers("--thresholds", thresholds)}
    loaded = load_comparisons(
        data,
        source=source,
        split=split,
        revision=revision,
        config=config,
        strength=resolve(StrengthRule, rule, "strength"),
        pairing=resolve(PairRule, {"pairs": pairs, "min_gap": min_gap}, "pairing"),
        max_bad_rows=limit_of(max_bad_rows),
    )
    result = audit_support(loaded, strength_map=StrengthMap(_numbers("--strength-map", strength_map)), tau=tau)
    _print_support(result)
    _write(json_file, result)


@app.command()
def strength(
    data: Data,
    source: Source = "auto",
    revision: Revision = None,
    config: Config = None,
    max_bad_rows: MaxBadRows = "1%",
    json_file: Json = None,
) -> None:
    """Does a stronger preference predict that a held-out annotator agrees? Uses all splits together."""
    from unmdpo.audit import audit_strength
    from unmdpo.data.bad import limit_of
    from unmdpo.data.reading import ALL, rows_of

    check_target(json_file)
    limit = limit_of(max_bad_rows)
    wanted = rows_of(data, source=source, split=ALL, revision=revision, config=config, max_bad_rows=limit)
    result = audit_strength(wanted)
    _print_strength(result)
    _write(json_file, result)


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"{option} should be numbers separated by commas, not '{text}'") from error


def _write(path: Path | None, result: "SupportAudit | StrengthAudit") -> None:
    if path is None:
        return
    from unmdpo.core.files import write_json

    write_json(path, result.to_dict())
    say(f"written to {path}")


def _print_support(audit: "SupportAudit") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Comparison support ({audit.strength_map}, τ = {audit.tau:g})")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("share of prompts", justify="right")
    plain = {
        "rows (without ties)": audit.rows,
        "ties": audit.ties,
        "rows skipped as unreadable": len(audit.skipped),
        "exact duplicates among the rows": audit.exact_duplicates,
        "self-comparisons": audit.self_comparisons,
        "distinct pairs": audit.pair_units,
    }
    for name, count in plain.items():
        table.add_row(name, f"{count:,}", "")
    table.add_section()
    shares = {
        "prompts": audit.prompts,
        "with one pair": audit.prompts_one_pair,
        "with several pairs": audit.prompts_several_pairs,
        "… not all connected": audit.prompts_disconnected,
        "with a cycle of three or more responses": audit.prompts_with_cycle,
        "with a pair under different margins": audit.prompts_parallel_contrast,
        "margin-contrast condition holds": audit.prompts_identified,
        "… counting self-comparisons": audit.prompts_identified_with_self,
    }
    for name, count in shares.items():
        table.add_row(name, f"{count:,}", f"{count / audit.prompts:.2%}" if audit.prompts else "")
    say(f"read as '{audit.source}'; {audit.graded}")
    Console().print(table)
    if audit.kappa_min is not None:
        say(f"contrast κ where it holds: smallest {audit.kappa_min:.3g}, median {audit.kappa_median:.3g}")
    say(audit.verdict)


def _print_strength(audit: "StrengthAudit") -> None:
    from rich.console import Console

    console = Console()
    sizes = ", ".join(f"{part} {count:,}" for part, count in audit.prompts.items())
    console.print(
        f"read as '{audit.source}'; prompts: {sizes} (test locked); duplicates dropped: {audit.duplicates:,}; "
        f"rows skipped: {len(audit.skipped):,}"
    )
    for name, part in (("development", audit.development), ("training", audit.train)):
        console.print(_bins_table(name, part))
        interval = part.contrast_interval
        contrast = "not computable: an extreme bin is empty"
        if part.contrast is not None and interval is not None:
            contrast = f"{part.contrast:+.5f} [{interval[0]:+.5f}, {interval[1]:+.5f}]"
        association = "not computable: evidence or agreement is constant"
        if part.correlation is not None and part.p_value is not None:
            association = f"{part.correlation:.4f} (p = {part.p_value:.4g})"
        console.print(f"high − low agreement: {contrast}\nevidence–agreement correlation: {association}")
    console.print()
    for condition, met in audit.criterion.items():
        console.print(f"{'pass' if met else 'fail'}  {condition}", style="green" if met else "red")
    console.print(f"prespecified criterion: {'pass' if audit.passed else 'fail'}", style="bold")
    console.print(audit.verdict)


def _bins_table(name: str, part: "PartitionResult") -> "Table":
    from rich.table import Table

    zero = f", {part.zero_votes:,} votes for 'the same' left out" if part.zero_votes else ""
    title = f"{name}: {part.votes:,} held-out votes of {part.eligible_records:,} among {part.records:,} records{zero}"
    table = Table("evidence", "mean", "votes", "prompts", "agreement (95 % Wilson)", title=title)
    for row in part.bins:
        mean = "–" if row.mean_evidence is None else f"{row.mean_evidence:.3f}"
        agreement = "–"
        if row.agreement is not None and row.interval is not None:
            low, high = row.interval
            agreement = f"{row.agreement:.2%} [{100 * low:.2f}, {100 * high:.2f}]"
        table.add_row(row.name.replace("[", "\\["), mean, f"{row.votes:,}", f"{row.prompts:,}", agreement)
    return table
