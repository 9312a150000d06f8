"""The summary that compares policies: on every panel, by every judge, over all seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np

from unmdpo.objectives.table import INITIAL
from unmdpo.recipe.evaluation import PrimaryRecipe
from unmdpo.recipe.seeds import TrainingRun, pair_by_seed
from unmdpo.stages.judgement import judgement_name, load_scores
from unmdpo.stages.panel import PANEL_STAGE
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import COMPARISONS, PANEL, SUMMARY, Panel
from unmdpo.stats.evaluation import (
    TIE,
    Estimate,
    Judged,
    Outcome,
    Resamples,
    by_domain,
    compare,
    holm,
    points_of,
    select,
    spearman,
)
from unmdpo.stats.length_adjusted import length_adjusted, longer_chosen, longer_preferred
from unmdpo.stats.power import Noise

Runs = Mapping[str, Sequence[TrainingRun]]
MEASURES = ("win_rate", "reward_difference")


def summarize(
    job: Job,
    *,
    runs: dict[str, list[TrainingRun]],
    panels: list[str],
    judges: list[str],
    opponents: list[str],
    selected_among: list[str],
    primary: PrimaryRecipe,
    seed: int,
) -> Notes:
    """Compares policies on every panel, by every judge.

    `runs` has each candidate's trainings. The first judge selects, one of `selected_among`, or of all; "" is a judge
    without a name. The first opponent is the baseline. `primary`, the question that was asked before anything was
    trained, is answered from this summary, and part of its key.
    """
    report = summary_of(job)
    job.save(SUMMARY, report)
    return {"panels": list(report)}


def summary_of(job: Job) -> dict[str, Any]:
    """Panel → its numbers."""
    rows = job.load(COMPARISONS, "comparisons")
    lengths = [(len(row.chosen), len(row.rejected)) for row in rows]
    chosen, rejected = np.array(lengths, dtype=np.float64).reshape(-1, 2).T
    of_data = longer_chosen(chosen, rejected, [row.prompt_hash for row in rows])
    panels = {name: _panel(job, name, of_data) for name in job.stage.settings.panels}
    _correct([tables for panel in panels.values() for tables in panel["judges"].values()])
    return panels


def _panel(job: Job, name: str, of_data: Estimate | None) -> dict[str, Any]:
    """One panel's numbers, by judge; "" is one without a name."""
    settings = job.stage.settings
    prompts = job.load(PANEL, PANEL_STAGE.stage_name(name))
    known = {
        judge: {
            trained.name: load_scores(job.inputs[judgement_name(trained.name, name, judge)], prompts)
            for trainings in settings.runs.values()
            for trained in trainings
        }
        for judge in settings.judges
    }
    return {
        "prompts": len(prompts),
        "baseline": settings.opponents[0],
        "judges": {judge: tabulate(prompts, scores, settings) for judge, scores in known.items()},
        "agreement": list(_agreement(known, settings.runs, settings.opponents[0])),
        "longer_chosen": _plain(of_data),
    }


def tabulate(prompts: Panel, known: Mapping[str, Judged], settings: Any) -> dict[str, Any]:
    """One judge's numbers on one panel. `known` are answers by training; the first opponent is the baseline, used for
    selection and domains."""
    runs, opponents, seed = settings.runs, settings.opponents, settings.seed
    baseline, resamples = opponents[0], Resamples.draw(len(prompts), seed)
    others = [name for name in runs if name not in (baseline, INITIAL)]
    against = {
        opponent: {
            policy: compare_runs(known, runs[policy], runs[opponent], resamples)
            for policy in runs
            if policy not in (opponent, INITIAL)
        }
        for opponent in opponents
    }
    domains = {
        policy: by_domain(*_together(known, runs[policy], runs[baseline]), prompts.domains, seed) for policy in others
    }
    return {
        "against": {
            opponent: {policy: outcome.to_dict() | more for policy, (outcome, more) in outcomes.items()}
            for opponent, outcomes in against.items()
        },
        "selected": select(
            {
                policy: outcome
                for policy, (outcome, _) in against[baseline].items()
                if not settings.selected_among or policy in settings.selected_among
            }
        ),
        "by_domain": {policy: {name: one.to_dict() for name, one in each.items()} for policy, each in domains.items()},
        "mean_score": {
            policy: float(np.mean([known[trained.name].scores.mean() for trained in trainings]))
            for policy, trainings in runs.items()
        },
        "longer_preferred": _plain(longer_preferred([*known.values()])),
    }


def compare_runs(
    known: Mapping[str, Judged], ours: Sequence[TrainingRun], theirs: Sequence[TrainingRun], resamples: Resamples
) -> tuple[Outcome, dict[str, Any]]:
    """A candidate against an opponent over all seeds; and what else is reported: each seed, and the win rate at equal
    length."""
    pairs, together = pair_by_seed(ours, theirs), _together(known, ours, theirs)
    seeds = {str(pair.seed): compare(known[pair.ours], known[pair.theirs], resamples) for pair in pairs}
    more = {
        "seeds": {seed: outcome.to_dict() for seed, outcome in seeds.items()} if len(pairs) > 1 else {},
        "length_adjusted": _plain(length_adjusted(*together)),
        "noise": asdict(Noise.of(points_of(*together))),
    }
    return compare(*together, resamples), more


def _together(
    known: Mapping[str, Judged], ours: Sequence[TrainingRun], theirs: Sequence[TrainingRun]
) -> tuple[Judged, Judged]:
    """Both sides with their seeds in the same order."""
    pairs = pair_by_seed(ours, theirs)
    return Judged.of_seeds([known[pair.ours] for pair in pairs]), Judged.of_seeds(
        [known[pair.theirs] for pair in pairs]
    )


def _correct(tables: Sequence[Mapping[str, Any]]) -> None:
    """Adds Holm's p-values beside the plain ones: all comparisons that a run reports are one family."""
    outcomes = [outcome for table in tables for by in table["against"].values() for outcome in by.values()]
    for measure in MEASURES:
        family = holm({str(place): outcome[f"p_{measure}"] for place, outcome in enumerate(outcomes)})
        for outcome, p in zip(outcomes, family.values(), strict=True):
            outcome[f"holm_{measure}"] = p


def _agreement(known: Mapping[str, Mapping[str, Judged]], runs: Runs, baseline: str) -> Any:
    """For every two judges, over all answers compared with the baseline's: the rank correlation of their score
    differences, and how often they say the same."""
    pairs = [pair for name in runs if name != baseline for pair in pair_by_seed(runs[name], runs[baseline])]
    differences = {
        judge: np.concatenate([(scores[pair.ours].scores - scores[pair.theirs].scores).ravel() for pair in pairs])
        for judge, scores in known.items()
        if pairs
    }
    for first, second in combinations(differences, 2):
        ours, theirs = differences[first], differences[second]
        yield {
            "judges": [first, second],
            "rank_correlation": spearman(ours, theirs),
            "same_verdict": 100 * float(np.mean(_verdict(ours) == _verdict(theirs))),
        }


def _plain(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else estimate.to_dict()


def _verdict(difference: Any) -> Any:
    return np.where(np.abs(difference) <= TIE, 0, np.sign(difference))


SUMMARY_STAGE = Kind("summary", summarize)
