"""The page itself: facts and charts, rendered by one template that escapes everything it is given."""

from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from markupsafe import Markup

from unmdpo.engine.inference.judges import kind_of
from unmdpo.engine.training.metrics import clock
from unmdpo.objectives.table import INITIAL
from unmdpo.report import charts
from unmdpo.report.charts import Interval
from unmdpo.report.collect import Facts, PanelFacts, ScaleFacts, Truth, collect
from unmdpo.report.curves import Curves, packed
from unmdpo.report.html import assets, template, write_page
from unmdpo.results.grid import Grid
from unmdpo.results.run import Run
from unmdpo.results.tables import chance, remarks
from unmdpo.results.tasks import losses
from unmdpo.store.pins import commits_in

EXTREMES, DOTS = 8, 2000  # prompts shown at each end of a scale; points in a scatter plot
MEASURES = {"win_rate": ("win rate, %", 50.0), "reward_difference": ("ΔR", 0.0)}


def write_report(run: Run, path: Path, truth: Truth | None = None) -> Path:
    """Writes a report of what is finished. The file is written completely or not at all. `truth` is a lab's q*."""
    if not run.finished:
        raise run.nothing_finished()
    return write_page(path, render(collect(run, truth)))


def render(facts: Facts) -> str:
    return template("page.html", clock=clock, amount=amount, estimate=estimate, chance=chance).render(
        recipe=facts.run.recipe,
        found=facts.run.answer,
        asked=key_facts(facts),
        examples=examples(facts),
        grid=Grid.of({"": facts.run}) if facts.summary else None,
        folder=facts.run.folder.name,
        results=[
            _result(facts, panel, judge) for panel, report in facts.summary.items() for judge in report["judges"]
        ],
        remarks=[
            *facts.run.world_differences,
            *facts.run.judge_lines,
            *losses(facts.run),
            *(
                f"{panel}: {remark}"
                for panel, report in facts.summary.items()
                for remark in (*facts.run.doubts(panel), *remarks(report, facts.run.recipe.methods))
            ),
        ],
        curves=Curves.of(facts.curves),
        lines=[*facts.run.recipe.trained],
        scales=[_scale(scale) for scale in facts.scales],
        joint_scales={
            policy: {"mean": fmean(q), "sd": pstdev(q), "low": min(q), "high": max(q)}
            for policy, q in facts.joint_scales.items()
        },
        panels=[_panel(facts, panel) for panel in facts.panels],
        data=facts.data,
        costs=sorted(facts.costs, key=lambda cost: -cost.seconds),
        pilot_share=facts.pilot_share,
        artifacts=[
            {"stage": name, "digest": artifact.digest, "device": artifact.manifest["device"]}
            for name, artifact in facts.run.finished.items()
        ],
        versions=next(iter(facts.run.finished.values())).manifest["versions"],
        yaml=facts.run.recipe.to_yaml(),
        **assets(),
    )


def key_facts(facts: Facts) -> dict[str, str]:
    """What a reader wants to know first: the model, the data, the judges, the seeds."""
    recipe, evaluation = facts.run.recipe, facts.run.recipe.evaluation
    said = {"model": str(recipe.model.path)}
    commits = commits_in(facts.run.pins.digests)
    if commits:
        said["commits"] = ", ".join(f"{name} {commit[:12]}" for name, commit in commits.items())
    said["data"] = ", ".join(str(part.place) for part in recipe.data.parts.values())
    if facts.data is not None:
        said["comparisons"] = facts.data.line()
    if evaluation is not None:
        judges = evaluation.all_judges.items()
        said["judge"] = ", ".join(str(getattr(judge, kind_of(judge).key)) for _, judge in judges)
    seeds = {len(trainings) for trainings in recipe.runs.values()}
    if max(seeds, default=1) > 1:
        said["seeds"] = f"up to {max(seeds)} for each policy"
    seconds = sum(cost.seconds for cost in facts.costs)
    pilots = f", {100 * facts.pilot_share:.0f} % of it for pilots" if facts.pilot_share else ""
    said["cost"] = f"{clock(seconds)} of computing{pilots}"
    return said


def examples(facts: Facts) -> list[dict[str, str]]:
    """Of the primary question: the answers that the judge liked most and least, beside their opponent's, and those in
    the middle. Of several seeds, the first."""
    panels = {panel.name: panel for panel in facts.panels}
    asked = None if facts.run.recipe.evaluation is None else facts.run.recipe.primary
    panel = None if asked is None else panels.get(asked.panel or "")
    if asked is None or panel is None or asked.policy is None or asked.judge not in panel.judges:
        return []
    ours, theirs = (facts.run.recipe.runs[name or ""][0].name for name in (asked.policy, asked.against))
    if not {ours, theirs} <= panel.answers.keys() or not panel.prompts:
        return []
    judge, both = panel.judges.index(asked.judge), [*zip(panel.answers[ours], panel.answers[theirs], strict=True)]
    gaps = [our["scores"][judge] - their["scores"][judge] for our, their in both]
    order = sorted(range(len(gaps)), key=gaps.__getitem__)
    places = {"liked best": order[-1], "in the middle": order[len(order) // 2], "liked least": order[0]}
    return [
        {
            "what": what, "prompt": panel.prompts[place], "by": ours, "text": both[place][0]["text"],
            "against": theirs, "their_text": both[place][1]["text"],
        }
        for what, place in places.items()
    ]  # fmt: skip


def _result(facts: Facts, panel: str, judge: str) -> dict[str, Any]:
    """One panel's tables and forest plots by one judge, against each opponent."""
    report, mark = facts.summary[panel] | facts.summary[panel]["judges"][judge], facts.run.judge_marks[judge]
    scores = report["mean_score"]
    against = []
    order = facts.run.recipe.candidates
    for opponent, by_policy in report["against"].items():
        outcomes = {policy: by_policy[policy] for policy in order if policy in by_policy}
        if not outcomes:
            continue  # only the baseline
        is_baseline = opponent == report["baseline"]
        plots = [_forest(outcomes, opponent, measure) for measure in MEASURES]
        against.append(
            {
                "opponent": opponent,
                "outcomes": outcomes,
                "plots": plots,
                "selected": report["selected"] if is_baseline else None,
            }
        )
    return {
        "panel": f"{panel}, by {judge}" if judge else panel,
        "mark": mark,
        "prompts": report["prompts"],
        "against": against,
        "by_domain": report["by_domain"],
        "domains": sorted({name for outcomes in report["by_domain"].values() for name in outcomes}),
        "mean_score": {name: scores[name] for name in (*order, INITIAL) if name in scores},
        "baseline": report["baseline"],
    }


def _forest(outcomes: dict[str, Any], opponent: str, measure: str) -> Markup:
    name, neutral = MEASURES[measure]
    rows = []
    for policy, outcome in outcomes.items():
        measured = outcome[measure]
        rows.append(Interval(policy, measured["value"], measured["low"], measured["high"]))
    return Markup(charts.forest(rows, f"{name} against {opponent}", f"{name} against {opponent}", neutral))


def _scale(scale: ScaleFacts) -> dict[str, Any]:
    """Charts of one scale, and the prompts at its ends."""
    step = max(1, len(scale.q) // DOTS)
    against = {
        "prompt length, characters": [float(len(text)) for text in scale.texts],
        "mean residual c − B": scale.residual,
        "mean strength": scale.strength,
        "true q*": scale.true or [],
    }
    plots = [charts.histogram(scale.q, f"q of {scale.name}", "q")]
    plots.append(charts.forest(_domain_rows(scale), "q by domain", "q, quartiles", 1.0))
    plots += [
        charts.scatter([*zip(values, scale.q, strict=True)][::step], f"q against {name}", name, "q")
        for name, values in against.items()
        if values
    ]
    rows = [
        {"text": text, "domain": domain, "q": q, "true": None if scale.true is None else scale.true[place]}
        for place, (text, domain, q) in enumerate(zip(scale.texts, scale.domains, scale.q, strict=True))
    ]
    return {
        "name": scale.name,
        "prompts": len(scale.q),
        "low": scale.q[0],
        "high": scale.q[-1],
        "mean": fmean(scale.q),
        "sd": pstdev(scale.q),
        "agreement": scale.agreement,
        "verdict": scale.verdict,
        "plots": [Markup(plot) for plot in plots],
        "surest": rows[:EXTREMES],
        "least_sure": rows[::-1][:EXTREMES],
        "true": scale.true is not None,
    }


def _domain_rows(scale: ScaleFacts) -> list[Interval]:
    """Median and quartiles of q in each domain. Scales are sorted, so each domain's values are too."""
    values: dict[str, list[float]] = {}
    for domain, q in zip(scale.domains, scale.q, strict=True):
        values.setdefault(domain or "(none)", []).append(q)
    return [
        Interval(domain, ranked[len(ranked) // 2], ranked[len(ranked) // 4], ranked[3 * len(ranked) // 4])
        for domain, ranked in sorted(values.items())
    ]


def _panel(facts: Facts, panel: PanelFacts) -> dict[str, Any]:
    """A panel's texts for the answer browser, packed: the prompts, and each policy's answers separately."""
    evaluation = facts.run.recipe.evaluation
    assert evaluation is not None
    return {
        "name": panel.name,
        "baseline": facts.run.recipe.runs[evaluation.baseline][0].name,
        "policies": [*panel.answers],
        "prompts": packed({"prompts": panel.prompts, "domains": panel.domains, "judges": panel.judges}),
        "answers": {policy: packed(answers) for policy, answers in panel.answers.items()},
    }


def amount(value: float) -> str:
    """12,345,678 as "12.3 M"; an empty string for zero."""
    for size, name in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f} {name}"
    return f"{value:g}" if value else ""


def estimate(given: Any, digits: int) -> str:
    """A value with its interval; published values may come without one."""
    if isinstance(given, float):
        return f"{given:.{digits}f}"
    value, low, high = (given["value"], given["low"], given["high"]) if isinstance(given, dict) else (*given,)
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
