"""What comes after a run: `runs`, `rm`, `export`, `chat`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.output import cell, say
from unmdpo.cli.run import HERE, Overrides, RecipeArgument, StoreOption, open_named

if TYPE_CHECKING:
    from unmdpo.results.policy import LoadedPolicy
    from unmdpo.results.run import Run

PolicyArgument = Annotated[str, typer.Argument(help="A policy of the recipe, or one training of it (dpo@17).")]


def runs(store: StoreOption = HERE) -> None:
    """List the runs of a store: what is finished, how old and how large they are."""
    from rich.console import Console
    from rich.table import Table

    from unmdpo.core.errors import UserError
    from unmdpo.store.runs import runs_of
    from unmdpo.store.store import Store

    if not store.is_dir():
        raise UserError(f"{store}: there is no store here")
    table = Table("run", "stages", "begun", "MiB", box=None, pad_edge=False)
    found = runs_of(Store(store))
    for run in found:
        done = len(run.finished)
        stages = f"all {done}" if done == len(run.places) else f"{done} of {len(run.places)}"
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.begun))
        table.add_row(cell(run.name), stages, begun, f"{run.size / 2**20:,.1f}")
    Console().print(table)
    say(f"{len(found)} runs in {store}; shared files are counted in each run", err=True)


def rm(
    run: Annotated[
        str | None, typer.Argument(help="A run of the store, by its name or the beginning of it.", show_default=False)
    ] = None,
    unused: Annotated[
        bool, typer.Option("--unused", help="Remove everything that no run refers to; damaged results, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = HERE,
) -> None:
    """Remove a run's record; with --unused, whatever no run refers to."""
    from unmdpo.core.errors import UserError
    from unmdpo.store.runs import find_run, remove_record
    from unmdpo.store.store import Store

    if not store.is_dir():
        raise UserError(f"{store}: there is no store here")
    if run is None and not unused:
        raise UserError("name a run (`unmdpo runs` lists them), or say --unused")
    if run is not None:
        found = find_run(Store(store), run)
        if not yes:
            typer.confirm(f"remove {found.name}?", abort=True)
        remove_record(found)
        say(f"{found.name}: removed")
    _remove_unused(store, yes=yes, remove=unused)


def _remove_unused(store: Path, *, yes: bool, remove: bool) -> None:
    from unmdpo.store.runs import remove_unused, unused
    from unmdpo.store.store import Store

    places = unused(Store(store))
    total = sum(places.values()) / 2**20
    if not remove:
        if places:
            say(f"{len(places)} results of no run, {total:,.1f} MiB: unmdpo rm --unused")
        return
    for place, size in places.items():
        say(f"{size / 2**20:10.1f} MiB  {place}")
    if places and not yes:
        typer.confirm(f"remove {len(places)} results of no run, {total:,.1f} MiB?", abort=True)
    removed = remove_unused(Store(store), [*places])
    say(f"{len(removed)} results of no run removed, {sum(places[place] for place in removed) / 2**20:,.1f} MiB freed")


def export(
    recipe: RecipeArgument,
    policy: PolicyArgument,
    folder: Annotated[Path, typer.Argument(help="A new folder for the model.")],
    overrides: Overrides = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the adapter, of a policy that was merged.")] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Of an adapter, the whole model: its base model with the adapter added.")
    ] = False,
    licence: Annotated[str | None, typer.Option("--license", help="For the model card, such as apache-2.0.")] = None,
    push: Annotated[
        str | None, typer.Option(help="Also upload it to the Hub, as owner/name; new ones are private.")
    ] = None,
    store: StoreOption = HERE,
) -> None:
    """Copy a policy to a folder for Transformers, vLLM or PEFT, with a model card."""
    run = open_named(recipe, overrides, store)
    from unmdpo.engine.folder import push as upload
    from unmdpo.results.export import export_policy

    written = export_policy(run, policy, folder, adapter=adapter, merge=merge, licence=licence)
    say(f"{policy}: {written!s}")
    if push is not None:
        say(f"{policy}: {upload(written, push)}")


def chat(
    recipe: RecipeArgument,
    policy: Annotated[str, typer.Argument(help="A policy of the recipe, one training of it (dpo@17), or initial.")],
    other: Annotated[str | None, typer.Argument(help="A second one, to answer beside it.")] = None,
    prompt: Annotated[str | None, typer.Option(help="One question; without it, they are read line by line.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    store: StoreOption = HERE,
) -> None:
    """Ask a policy anything, or two side by side. An empty line ends it; two start anew with each question."""
    run = open_named(recipe, None, store)
    from unmdpo.data.identity import Message

    policies = {name: _loaded(run, name, tokens) for name in (policy, other) if name is not None}
    said: list[Message] = []
    while True:
        asked = prompt if prompt is not None else _read()
        if not asked:
            return
        said = [*(said if len(policies) == 1 else []), Message("user", asked)]
        for name, loaded in policies.items():
            (answer,) = loaded.answers([said])
            say(f"{name}: {answer}\n")
        said.append(Message("assistant", answer))
        if prompt is not None:
            return


def _loaded(run: "Run", policy: str, tokens: int) -> "LoadedPolicy":
    from unmdpo.objectives.table import INITIAL
    from unmdpo.results.policy import LoadedPolicy

    if policy == INITIAL:
        return LoadedPolicy(run.initial, max_new_tokens=tokens)
    found = run.policy(policy)
    return LoadedPolicy(run.initial, found, four_bit=found.four_bit, max_new_tokens=tokens)


def _read() -> str:
    say("> ", nl=False, err=True)
    return typer.get_text_stream("stdin", errors="replace").readline().strip()
