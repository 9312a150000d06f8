"""`unmdpo theory`: the paper's theory, to play with. Every command has an example as its default."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from unmdpo.cli.output import say
from unmdpo.core.errors import UserError

if TYPE_CHECKING:
    from unmdpo.stats.identification import ComparisonGraph

app = typer.Typer(help="The paper's theory, to play with.", no_args_is_help=True)

T = TypeVar("T")
EDGE = re.compile(r"([^>:]+)>([^>:]+):(-?[0-9.]+(?:e-?[0-9]+)?)")
CYCLE = ["A>B:1", "B>C:1", "A>C:3"]


@app.command()
def identify(
    comparisons: Annotated[
        list[str] | None, typer.Argument(help="As A>B:2, A preferred to B with margin τ·m(k) = 2.", metavar="[A>B:C]…")
    ] = None,
    q: Annotated[float, typer.Option(min=1e-3, max=1e3, help="The true scale.")] = 1.5,
) -> None:
    """Do known margins identify a prompt's scale? (Theorem 4.1: if they do not cancel around some cycle.)

    The responses' rewards are 0, 1, 2, …, in the order of their names from the last. Try A>B:1 B>C:1 A>C:2.
    """
    from unmdpo.stats.identification import equal_score_twin, kappa, recover, witness_cycle, wr_scores

    names, graph = _graph(comparisons or CYCLE)
    rewards = [*range(len(names))][::-1]
    scores = wr_scores(graph, rewards, q)
    for (better, worse), margin, score in zip(_ends(names, graph), graph.margins, scores, strict=True):
        say(f"{better} over {worse} with margin {margin:g}: WR score {score:.4f}")
    cycle = witness_cycle(graph)
    if cycle is None:
        twin, scale = equal_score_twin(graph, rewards, q, 2.0)
        twins = ", ".join(f"{name} {reward:g}" for name, reward in zip(names, twin, strict=True))
        say(f"not identified: margins cancel around every cycle. The same scores come from q = {scale:g} with {twins}")
    else:
        walked = " and ".join(f"{names[graph.winners[e]]}>{names[graph.losers[e]]}" for e in cycle.edges)
        found = recover(graph, scores)
        say(f"identified, κ = {kappa(graph):.4f}: around {walked} margins sum to {cycle.margin_sum:g}, not to 0")
        say(f"from the scores alone: q = {found.scale:.6g}")


@app.command()
def length(
    margin: Annotated[float, typer.Option(min=1e-6, max=1e6, help="c = τ·m(k), of both prompts.")] = 2.0,
    first: Annotated[float, typer.Option(help="How much lengths vary at the first prompt: δ₁ below 1.")] = 0.8,
    second: Annotated[float, typer.Option(help="And at the second: 0 < δ₂ < δ₁.")] = 0.2,
    penalty: Annotated[float, typer.Option(min=0, max=1e6, help="λ_q.")] = 0.01,
) -> None:
    """Prompts that differ only in how much their responses' lengths vary get different scales (Proposition 4.2)."""
    from unmdpo.stats.length import LengthProblem

    problem = _made(lambda: LengthProblem(margin, (first, second), (-1.0, 1.0), (0.5, 0.5), penalty))
    fitted = problem.solve()
    say(f"fitted to whole responses: q = {fitted.first:.4f} and {fitted.second:.4f}, a factor of {fitted.ratio:.4f}")
    say("fitted to length-normalized ones: q = 1 and 1")


@app.command()
def ordinal(
    q: Annotated[float, typer.Option(min=1e-3, max=1e3, help="The prompt's scale.")] = 1.0,
    gap: Annotated[float, typer.Option(min=-1e3, max=1e3, help="The reward gap Δ.")] = 1.0,
    cutpoints: Annotated[str, typer.Option(help="Increasing, separated by commas.")] = "-2,-1,1,2",
) -> None:
    """How votes fall into ordered categories in the exact model: Δ + q·noise between cutpoints (the appendix)."""
    from unmdpo.stats.ordinal import category_probabilities

    cuts = _made(lambda: [float(cut) for cut in cutpoints.split(",")])
    chances = _made(lambda: category_probabilities(gap, q, cuts))
    edges = ["−∞", *(f"{cut:g}" for cut in cuts), "∞"]
    names = [f"from {low} to {high}" for low, high in pairwise(edges)]
    for name, chance in zip(names, chances, strict=True):
        say(f"{name}: {100 * chance:.2f} %")


@app.command()
def centering(
    residual: Annotated[float, typer.Option(min=-1e3, max=1e3, help="d, the same at both prompts.")] = 0.6,
    penalty: Annotated[float, typer.Option(min=0, max=1e3, help="λ_q.")] = 0.01,
) -> None:
    """Two prompts with the same residual may drift apart under the centered map: centering is not identification."""
    from unmdpo.stats.centering import curvature, drift, splitting_residuals

    bend = curvature(residual, penalty)
    if bend < 0:
        apart = drift(residual, penalty)
        say(f"J″(0) = {bend:.4f}, below 0: equal prompts drift apart, to q = e^±{apart:.4f}")
    else:
        say(f"J″(0) = {bend:.4f}, not below 0: q = 1 for both is a local minimum")
    split = splitting_residuals(penalty)
    where = "at no residual" if split is None else f"at residuals between {split[0]:.4f} and {split[1]:.4f}"
    say(f"with λ_q = {penalty:g} equal prompts drift apart {where}")


def _graph(comparisons: list[str]) -> "tuple[list[str], ComparisonGraph]":
    from unmdpo.stats.identification import ComparisonGraph

    read = [(text, EDGE.fullmatch(text.replace(" ", ""))) for text in comparisons]
    for text, match in read:
        if match is None:
            raise UserError(f"'{text}' is no comparison: write A>B:2 for A preferred to B with margin 2")
    parts = [match.groups() for _, match in read if match is not None]
    names = list(dict.fromkeys(name for better, worse, _ in parts for name in (better, worse)))
    if len(names) > 26:
        raise UserError(
            f"{len(names)} responses are too many to look at; `unmdpo audit support` reads whole data sets"
        )
    return names, _made(
        lambda: ComparisonGraph.of([(better, worse) for better, worse, _ in parts], [float(c) for *_, c in parts])
    )


def _ends(names: list[str], graph: "ComparisonGraph") -> list[tuple[str, str]]:
    return [(names[better], names[worse]) for better, worse in zip(graph.winners, graph.losers, strict=True)]


def _made(make: Callable[[], T]) -> T:
    """What the theory refuses is a mistake in the command."""
    try:
        return make()
    except ValueError as error:
        raise UserError(str(error)) from error
