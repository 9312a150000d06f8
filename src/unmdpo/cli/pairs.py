"""`unmdpo pairs`: the next round's data, from a policy's own answers."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from unmdpo.cli.judge import JUDGE, Force, check_lines
from unmdpo.cli.output import say
from unmdpo.cli.run import HERE, RecipeArgument, StoreOption, find_recipe, get_ready


def pairs(
    recipe: RecipeArgument,
    policy: Annotated[str, typer.Argument(help="Who answers: a policy of the recipe, or initial.")],
    out: Annotated[Path, typer.Argument(help="The file to write, which `run` reads: .jsonl.")],
    judge: Annotated[str, typer.Option(help=JUDGE)],
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts; default: those of the training data.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="How many prompts to draw; default: all.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="Answers to each prompt.")] = 4,
    temperature: Annotated[float, typer.Option(min=0.01, max=100.0)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.001, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the answers.")] = 42,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in an answer.")] = 512,
    which: Annotated[str, typer.Option(help="What is compared: best-worst, all or neighbours.")] = "best-worst",
    force: Force = False,
    store: StoreOption = HERE,
    jobs: Annotated[int | None, typer.Option(min=1, help="Most stages at once.")] = None,
) -> None:
    """Draw several answers to each prompt, score and pair them: data for another round. Trains POLICY if needed."""
    from unmdpo.recipe import load_recipe, parse_recipe
    from unmdpo.recipe.pairs import judge_of

    check_lines(out, force)
    chosen_judge = judge_of(judge)
    recipe, store = find_recipe(recipe, store)
    described = load_recipe(recipe).model_dump(mode="json")
    described["pairs"] = {
        "policy": policy,
        "judge": chosen_judge.model_dump(mode="json"),
        "prompts": None if prompts is None else str(prompts),
        "size": size or "all",
        "sampling": {"samples": samples, "temperature": temperature, "top_p": top_p, "seed": seed},
        "max_new_tokens": max_new_tokens,
        "select": which,
    }
    with_pairs = parse_recipe(described)
    get_ready(jobs)
    from unmdpo.core.files import write_text
    from unmdpo.execute import execute
    from unmdpo.execute.board import shown_progress
    from unmdpo.results.run import open_run
    from unmdpo.stages.pairs import PAIRS_STAGE
    from unmdpo.stages.shared.files import COMPARISONS
    from unmdpo.store.store import Store

    run = open_run(with_pairs, Store(store))
    with shown_progress(len(run.wanted(PAIRS_STAGE.name))) as view:
        execute(run, until=PAIRS_STAGE.name, jobs=jobs, view=view)
    made = run.artifact(PAIRS_STAGE.name)
    rows = [json.dumps(row.to_row() | {"margin": row.strength}, ensure_ascii=False) for row in COMPARISONS.load(made)]
    write_text(out, "".join(f"{row}\n" for row in rows))
    notes = made.manifest["notes"]
    say(
        f"{out}: {len(rows):,} comparisons of {notes['prompts']:,} prompts; left out: {notes['ties']:,} ties, "
        f"{notes['same_answers']:,} prompts whose answers were all the same"
    )
    say(f"next: unmdpo look {shlex.quote(str(out))}")
