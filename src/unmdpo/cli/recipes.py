"""`unmdpo recipes`: what comes with the package, resolved, and the schema for editors."""

from typing import Annotated

import typer

app = typer.Typer(help="List, show and describe recipes.", invoke_without_command=True)
AUDITS = [
    ("unmdpo audit support nvidia/HelpSteer3", "could the margins identify any prompt's scale?"),
    ("unmdpo audit strength nvidia/HelpSteer3", "does a stronger preference predict agreement?"),
]


@app.callback()
def list_recipes(ctx: typer.Context) -> None:
    """List the packaged recipes."""
    if ctx.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from unmdpo.recipes import load_recipe, packaged

    groups: dict[str, list[tuple[str, str]]] = {}
    for name in (name for name in packaged() if not name.startswith("_")):
        recipe = load_recipe(name)
        row = (name, f"{recipe.description}; policies: {len(recipe.policies)}")
        groups.setdefault(recipe.table, []).append(row)
    groups["Audits: commands that train nothing"] = AUDITS
    for title, rows in groups.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for row in rows:
            table.add_row(*row)
        Console().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A packaged name or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value …")] = None,
) -> None:
    """Print a recipe with every default filled in, after checking it."""
    from unmdpo.recipes import load_recipe

    recipe = load_recipe(name, overrides or [])
    typer.echo(f"# digest: {recipe.digest}\n{recipe.to_yaml()}", nl=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check YAML."""
    from unmdpo.recipes import schema

    typer.echo(schema(), nl=False)
