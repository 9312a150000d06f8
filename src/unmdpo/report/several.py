"""One page about several runs: what each found, in which settings they differ, and their numbers side by side."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unmdpo.core.errors import UserError
from unmdpo.engine.training.metrics import clock
from unmdpo.report import charts
from unmdpo.report.charts import Interval
from unmdpo.report.collect import Facts, collect
from unmdpo.report.curves import Curves, Line
from unmdpo.report.html import assets, template, write_page
from unmdpo.report.page import amount, key_facts
from unmdpo.results.run import Run
from unmdpo.results.tables import Table, chance

LONGEST = 120  # characters shown of a setting


def write_comparison(runs: Sequence[Run], path: Path) -> Path:
    """Writes a page about what is finished of each. The file is written completely or not at all."""
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise UserError("the same run is named twice; a page about one is `unmdpo report` without --with")
    for run in runs:
        if not run.finished:
            raise run.nothing_finished()
    return write_page(path, render(dict(zip(_names(runs), map(collect, runs), strict=True))))


def _names(runs: Sequence[Run]) -> list[str]:
    """A recipe's name, or that of the run's folder where several have the same; with a number, if that is the same in
    two stores."""
    recipes = [run.recipe.name for run in runs]
    names = [run.folder.name if recipes.count(run.recipe.name) > 1 else run.recipe.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[:place].count(name) + 1})"
        for place, name in enumerate(names)
    ]


def render(runs: Mapping[str, Facts]) -> str:
    curves = _curves(runs)
    return template("several.html", clock=clock, amount=amount, chance=chance).render(
        runs={name: {"found": facts.run.answer, "asked": key_facts(facts)} for name, facts in runs.items()},
        verdicts={
            name: {scale.name: scale.verdict.partition(".")[0] for scale in facts.scales if scale.verdict}
            for name, facts in runs.items()
        },
        differing=differing({name: facts.run.recipe.model_dump(mode="json") for name, facts in runs.items()}),
        rows=[{"run": name} | row for name, facts in runs.items() for row in Table.of(facts.summary).over_seeds()],
        plots=_plots(runs),
        curves=Curves.of(curves),
        lines=[*dict.fromkeys(line for lines in curves.values() for line in lines)],
        costs={name: _cost(facts) for name, facts in runs.items()},
        **assets(),
    )


def differing(recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Setting → its value in each run, if it is not the same in all."""
    flat = [dict(_leaves(recipe)) for recipe in recipes.values()]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    shown = {key: [str(settings.get(key, "")) for settings in flat] for key in keys}
    return {key: [*map(_short, values)] for key, values in shown.items() if len(set(values)) > 1}


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _plots(runs: Mapping[str, Facts]) -> list[Markup]:
    """A forest plot for each panel and judge: all policies of all runs against their baselines."""
    found = dict[str, list[Interval]]()
    for name, facts in runs.items():
        for row in Table.of(facts.summary).over_seeds():
            if row["against"] == facts.summary[row["panel"]]["baseline"]:
                title = f"win rate against {row['against']}, %: {row['panel']}"
                values = (row["win_rate"], row["win_rate_low"], row["win_rate_high"])
                interval = Interval(f"{name} {row['policy']}", *values)
                found.setdefault(f"{title}, by {row['judge']}" if row["judge"] else title, []).append(interval)
    return [Markup(charts.forest(rows, title, title, 50.0)) for title, rows in found.items()]


def _curves(runs: Mapping[str, Facts]) -> dict[str, dict[str, Line]]:
    together = dict[str, dict[str, Line]]()
    for name, facts in runs.items():
        for metric, lines in facts.curves.items():
            together.setdefault(metric, {}).update({f"{name} {policy}": line for policy, line in lines.items()})
    return together


def _cost(facts: Facts) -> dict[str, Any]:
    return {
        "stages": len(facts.costs),
        "seconds": sum(cost.seconds for cost in facts.costs),
        "tokens": sum(cost.tokens for cost in facts.costs),
        "flops": sum(cost.flops for cost in facts.costs),
        "pilots": facts.pilot_share,
    }
