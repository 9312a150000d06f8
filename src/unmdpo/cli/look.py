"""`unmdpo look` and `unmdpo init`: from a file of preferences to a first recipe."""

import json
import re
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.audit import Config, Data, Json, MaxBadRows, Revision, Source, StrictRows, check_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unmdpo.audit.describe import Description, Tokens
    from unmdpo.data.comparison import Comparison
    from unmdpo.data.load import DataRef, Reading
    from unmdpo.data.strength import StrengthRule
    from unmdpo.engine.settings import ModelSource
    from unmdpo.recipe.draft import Draft

WIDTH, LABEL = 110, 11
MOST_FILES = 5
DEFAULT_MODEL, DEFAULT_SIZE = "HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008

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
    against: Against = None,
    max_bad_rows: MaxBadRows = "1%",
    strict: StrictRows = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page about it.")] = None,
    json_file: Json = None,
) -> None:
    """Inspect preference data: what is in it, what may be wrong, and a recipe for it."""
    from unmdpo.data.load import DataRef

    for path in (html, json_file):
        check_target(path)
    ref = DataRef.named(data, split, revision, config)
    reading = _reading(source, column, label, ignore, max_bad_rows, strict)
    seen, draft = _seen(ref, reading, model, template, against or [])
    for subject, text in facts(seen):
        typer.echo(fill(f"{subject:<{LABEL}} {text}", WIDTH, subsequent_indent=" " * (LABEL + 1)))
    if seen.comparisons:
        typer.echo(f"\na recipe for it (`unmdpo init` writes it):\n\n{draft.text()}", nl=False)
    if html is not None:
        from unmdpo.report.data_page import write_data_page

        typer.echo(f"written to {write_data_page(seen, facts(seen), draft.text(), html)}")
    if json_file is not None:
        from unmdpo.core.files import write_text

        write_text(json_file, json.dumps(seen.to_dict(), indent=2, ensure_ascii=False) + "\n")
        typer.echo(f"written to {json_file}")


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
    max_bad_rows: MaxBadRows = "1%",
    out: Annotated[Path | None, typer.Option(help="The recipe's file; default: named after the data.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write a first recipe for preference data."""
    from unmdpo.core.errors import UserError
    from unmdpo.core.files import write_text
    from unmdpo.data.load import DataRef
    from unmdpo.recipe import load_recipe

    check_target(out)
    ref = DataRef.named(data, split, revision, config)
    seen, draft = _seen(ref, _reading(source, column, label, ignore, max_bad_rows), model, template)
    if not seen.comparisons:
        raise UserError(f"{data}: {seen.strength_means}")
    path = out or Path(f"{draft.name}.yaml")
    if path.exists() and not force:
        raise UserError(f"{path} exists: choose another name with --out, or write over it with --force")
    write_text(path, draft.text())
    load_recipe(str(path))  # what is printed next should work
    typer.echo(f"{path}: {draft.comparisons:,} comparisons\nnext: unmdpo plan {path} && unmdpo run {path}")


def _reading(
    source: str,
    columns: list[str] | None,
    labels: list[str] | None,
    ignored: list[str] | None,
    max_bad_rows: str,
    strict: bool = False,
) -> "Reading":
    from unmdpo.core.errors import UserError, did_you_mean
    from unmdpo.data.bad import limit_of
    from unmdpo.data.columns import TARGETS
    from unmdpo.data.load import AUTO, Reading
    from unmdpo.data.sources import SourceSettings

    named = [text.partition("=") for text in columns or []]
    for name, equals, path in named:
        if not (name and equals and path):
            raise UserError(f"--column should be what it holds and its name, such as prompt=task.text, not '{name}'")
        if source == AUTO and name not in TARGETS:
            raise UserError(
                f"--column {name}={path}: this source has no field '{name}'; {did_you_mean(name, TARGETS)}"
            )
    mapped = {name: path for name, _, path in named}
    limit = limit_of(max_bad_rows, strict=strict)
    settings = SourceSettings(strength=_meanings(labels)) if labels else SourceSettings()
    return Reading(source, settings, mapped, limit, ignore=tuple(ignored or ()))


def _meanings(labels: list[str]) -> "StrengthRule":
    from unmdpo.core.errors import UserError
    from unmdpo.data.strength import SIDES, StrengthRule

    found: dict[str, int] = {}
    for text in labels:
        word, equals, meaning = text.rpartition("=")
        if not equals or not (meaning in SIDES or re.fullmatch(r"[-+]?\d+", meaning)):
            raise UserError(f"--label should be a label and what it means, such as left=a or 7=3, not '{text}'")
        found[word.strip()] = SIDES[meaning] if meaning in SIDES else int(meaning)
    return StrengthRule(labels=found, levels=max(3, *map(abs, found.values())))


def _seen(
    ref: "DataRef", reading: "Reading", model: str | None, template: str | None, against: "Sequence[str]" = ()
) -> "tuple[Description, Draft]":
    from unmdpo.audit.describe import describe as look_at
    from unmdpo.data.load import ALL
    from unmdpo.recipe.draft import LENGTHS, Draft, fitting_length

    seen, sample = look_at(ref, reading, against)
    parameters: int | None = DEFAULT_SIZE if model is None else None
    longest: int | None = None
    chosen = _model(model, template) if model is not None else None
    if chosen is not None:
        seen.tokens = _tokens(chosen, sample)
        parameters, context = _size_and_context(chosen)
        longest = fitting_length({most: seen.tokens.over(most) for most in LENGTHS}, context)
    draft = Draft(
        path=ref.path,
        source=seen.source,
        model=chosen.path if chosen is not None else DEFAULT_MODEL,
        gguf_file=None if chosen is None else chosen.gguf_file,
        template=template,
        comparisons=seen.comparisons,
        prompts=seen.prompts,
        parameters=parameters,
        max_length=longest,
        split=ref.split or ALL,
        config=ref.config,
        revision=ref.revision,
        validation_split=next(iter(seen.splits), None),
        columns=reading.columns,
        strength=reading.settings.strength,
        ignore=reading.ignore,
        max_bad_rows=reading.max_bad_rows,
    )
    return seen, draft


def _model(name: str, template: str | None) -> "ModelSource":
    from unmdpo.core.settings import resolve
    from unmdpo.engine.settings import ModelSource

    return resolve(ModelSource, {"path": name, "template": template}, "the model")


def _size_and_context(source: "ModelSource") -> tuple[int, int | None]:
    """The model's parameters, and the most tokens it takes if that is known, from its configuration alone."""
    import torch

    from unmdpo.engine.models import longest_input
    from unmdpo.engine.sharding import empty_model

    shape = empty_model(source, torch.bfloat16)
    return sum(parameter.numel() for parameter in shape.parameters()), longest_input(shape.config)


def _tokens(source: "ModelSource", rows: "Sequence[Comparison]") -> "Tokens":
    """What the model's tokenizer makes of some comparisons."""
    from unmdpo.audit.describe import Spread, Tokens
    from unmdpo.engine.text.encode import Encoder
    from unmdpo.engine.text.encoded import EncodedPairs, longest

    encoder = Encoder.of(source)
    lengths = EncodedPairs.of(encoder.encode(rows)).lengths
    return Tokens(
        sampled=len(rows),
        longest=longest(lengths),
        prompt=Spread.of(lengths[:, 0].tolist()),
        response=Spread.of(lengths[:, 1:].ravel().tolist()),
        remarks=tuple(encoder.remarks()),
    )


def facts(seen: "Description") -> list[tuple[str, str]]:
    """What was seen, a line for each subject."""
    return [*_what(seen), *_texts(seen), *_doubts(seen), ("strength", seen.strength_means)]


def _what(seen: "Description") -> list[tuple[str, str]]:
    from unmdpo.audit.describe import shares

    columns = ", ".join(seen.columns)
    split = f", split '{seen.split}'" if seen.split else ", all splits"
    files = sorted(seen.files)
    more = f" and {len(files) - MOST_FILES:,} others" if len(files) > MOST_FILES else ""
    rows = [f"{seen.read:,} read", f"{seen.bad:,} bad", f"{sum(seen.left_out.values()):,} without a comparison"]
    lines = [
        ("data", f"{seen.path}{split}" + (f": {', '.join(files[:MOST_FILES])}{more}" if len(files) > 1 else "")),
        ("source", f"{seen.source}, by its columns {columns}; strength from {seen.strength_from}"),
        ("columns", _columns(seen.uses)),
        ("rows", " · ".join([*rows, f"{seen.ties:,} ties", f"{seen.comparisons:,} comparisons"])),
    ]
    lines += [("", f"{count:,}: {why}") for why, count in seen.left_out.items()]
    if seen.both_bad:
        lines.append(("", f"{seen.both_bad:,} of the ties say that both are bad"))
    several = f"{seen.several_pairs:,} with several pairs, up to {seen.pairs_per_prompt.most:,}"
    lines.append(("prompts", f"{seen.prompts:,}, {several if seen.several_pairs else 'each with one pair'}"))
    if seen.strengths:
        lines.append(("strengths", shares(seen.strengths)))
    if seen.voted:
        lines.append(("votes", f"{seen.voted:,} comparisons have votes of several annotators"))
    if set(seen.domains) != {""}:
        lines.append(("domains", shares(seen.domains)))
    return lines


def _columns(uses: dict[str, str]) -> str:
    kinds = sorted(set(uses.values()), reverse=True)  # those that are left alone come last
    by_use = {what or "left alone": [name for name in uses if uses[name] == what] for what in kinds}
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in by_use.items())


def _texts(seen: "Description") -> list[tuple[str, str]]:
    from unmdpo.audit.describe import percent, shares

    lengths = [
        f"{what} {spread.median:,} ({spread.high:,}, {spread.most:,})"
        for what, spread in (
            ("prompt", seen.prompt_length), ("chosen", seen.chosen_length), ("rejected", seen.rejected_length),
        )
    ]  # fmt: skip
    system = f"; {seen.system_messages:,} with a system message" if seen.system_messages else ""
    lines = [
        ("languages", shares(seen.languages)),
        ("turns", shares(seen.turns) + system),
        ("characters", f"{', '.join(lengths)}: median (95th percentile, most)"),
        ("", f"the chosen answer is longer in {percent(seen.chosen_longer)}"),
    ]
    if seen.tokens is not None:
        tokens = seen.tokens
        over = ", ".join(f"{percent(tokens.over(most))} over {most:,}" for most in (512, 1024, 2048, 4096))
        spreads = (("prompt", tokens.prompt), ("response", tokens.response))
        sizes = ", ".join(f"{what} {spread.median:,} ({spread.most:,})" for what, spread in spreads)
        lines.append(("tokens", f"of {tokens.sampled:,} sampled: {sizes}; {over}"))
        lines += [("", remark) for remark in tokens.remarks]
    return lines


def _doubts(seen: "Description") -> list[tuple[str, str]]:
    from unmdpo.audit.describe import percent

    doubts = (
        (seen.repeated, "repeated pair", "repeated pairs"),
        (seen.contradicted, "pair with conflicting labels", "pairs with conflicting labels"),
        (seen.same_answer, "pair with identical responses", "pairs with identical responses"),
        (seen.empty_answers, "empty answer", "empty answers"),
        (seen.markup, "prompt with a chat template's own marks", "prompts with a chat template's own marks"),
    )
    found = [f"{count:,} {one if count == 1 else several}" for count, one, several in doubts if count]
    if seen.cut_off:
        found.append(f"{percent(seen.cut_off / seen.answers)} of the answers may be cut off")
    lines = [("doubts", " · ".join(found) or "none")]
    for place, count in seen.leaked.items():
        lines.append(("leaks", f"{count:,} prompts of {place} are here too" if count else f"none from {place}"))
    return lines
