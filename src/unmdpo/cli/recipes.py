"""`unmdpo recipes`: lists packaged recipes, shows one in full, and prints the schema for editors."""

from typing import Annotated

import typer

from unmdpo.cli.output import cell, say

app = typer.Typer(help="List, show and describe recipes.", invoke_without_command=True)
HELPSTEER2 = "nvidia/HelpSteer2 --revision 990b2711a36180dd19d9c94b8627844866f8982a"
HELPSTEER3 = "nvidia/HelpSteer3 --revision f6d145777bcbde96137596340fab89793acd1031"
AUDITS = [
    (f"unmdpo audit support {HELPSTEER2}", "prompts whose scale margins could identify: none of 6,765"),
    (f"unmdpo audit support {HELPSTEER3}", "prompts whose scale margins could identify: 12 of 22,756"),
    (f"unmdpo audit strength {HELPSTEER3}", "annotators agree with strong preferences more often, by 3.65 points"),
]


@app.callback()
def list_recipes(ctx: typer.Context) -> None:
    """List the packaged recipes."""
    if ctx.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from unmdpo.recipe.loader import load_recipe, packaged

    groups: dict[str, list[tuple[str, str]]] = {}
    for name in (name for name in packaged() if not name.startswith("_")):
        recipe = load_recipe(name)
        row = (name, f"{recipe.description}; policies: {len(recipe.policies)}")
        groups.setdefault(recipe.table, []).append(row)
    for title, rows in groups.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    say("Audits: commands that train nothing, and what the paper found")
    for command, result in AUDITS:
        say(f" {command}\n     {result}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A packaged name or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value …")] = None,
) -> None:
    """Print a recipe with every default filled in, after checking it."""
    from unmdpo.recipe.loader import load_recipe

    recipe = load_recipe(name, overrides or [])
    say(f"# digest: {recipe.digest}\n{recipe.to_yaml()}", nl=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check YAML."""
    from unmdpo.recipe.loader import schema

    say(schema(), nl=False)


@app.command()
def settings(
    word: Annotated[str, typer.Argument(help="Only settings that this word is part of, or of their meaning.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="All of them, as a page.")] = False,
) -> None:
    """Explain every setting of a recipe."""
    from rich.console import Console
    from rich.table import Table

    from unmdpo.recipe import settings_table as described

    if markdown:
        say(described.as_markdown(), nl=False)
        return
    table = Table("setting", "default", "meaning", box=None, pad_edge=False)
    for one in described.settings():
        if word.lower() in f"{one.key} {one.meaning}".lower():
            table.add_row(*map(cell, one))
    Console().print(table)
