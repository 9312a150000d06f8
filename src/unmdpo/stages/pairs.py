"""The next round's data: a policy's own answers, scored by a judge and paired."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.data import Comparison, PairRule
from unmdpo.data.comparison import Origin
from unmdpo.data.strength import StrengthRule
from unmdpo.data.table import ComparisonTable
from unmdpo.engine.inference.pairwise import Question
from unmdpo.objectives.table import INITIAL
from unmdpo.recipe.pairs import PairsRecipe
from unmdpo.stages.answers import GENERATION_STAGE, AnswerSettings, ServedSettings
from unmdpo.stages.data import AFTER, PANEL_STAGE, PanelSettings, comparisons, panel, prompts_to_answer
from unmdpo.stages.policies import policy
from unmdpo.stages.scoring import SCORED, ScoringSettings, margins, opened, scoring_cost, scoring_inputs, spent_by
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import COMPARISONS, GENERATIONS, PANEL
from unmdpo.store.artifact import Line
from unmdpo.store.journal import Journal

BEST_WORST = "best-worst"


class PairsSettings(ScoringSettings):
    select: str
    rule: StrengthRule


def pairs(graph: Graph) -> None:
    """Adds the stages that draw prompts, answer each several times, and pair the answers."""
    recipe, spec = graph.recipe, graph.recipe.pairs
    if spec is None:
        return
    prompts = _prompts(graph, spec)
    settings = PairsSettings(judge=spec.judge, seed=recipe.seed, select=spec.select, rule=spec.strength)
    inputs: dict[str, Stage[Any]] = {
        "panel": prompts,
        "generation": _samples(graph, spec, prompts),
        **scoring_inputs(graph, spec.judge, "pairs.judge"),
    }
    graph.stage(PAIRS_STAGE, settings, inputs)


def _prompts(graph: Graph, spec: PairsRecipe) -> Stage[PanelSettings]:
    """Those of a file, but none that somebody will be judged on; or those of the training data."""
    settings = PanelSettings(size=spec.size, seed=spec.sampling.seed, path=spec.prompts)
    panels = () if graph.recipe.evaluation is None else graph.recipe.evaluation.panels
    inputs: dict[str, Stage[Any]] = {f"{AFTER}{other}": panel(graph, other) for other in panels}
    if spec.prompts is None:
        inputs["comparisons"] = comparisons(graph)
    return graph.stage(PANEL_STAGE, settings, inputs, "prompts")


def _samples(graph: Graph, spec: PairsRecipe, prompts: Stage[PanelSettings]) -> Stage[AnswerSettings]:
    """Answers of the policy; of one with several seeds, the first."""
    inputs: dict[str, Stage[Any]] = {"panel": prompts}
    if spec.policy != INITIAL:
        inputs["policy"] = policy(graph, graph.recipe.runs[spec.policy][0].name)
    settings = AnswerSettings(
        model=graph.recipe.model, max_new_tokens=spec.max_new_tokens, answers=None, sampling=spec.sampling
    )
    if spec.generator is not None:
        settings = ServedSettings(**dict(settings), server=spec.generator)
    return graph.stage(GENERATION_STAGE, settings, inputs, "samples")


def pair_answers(job: Job[PairsSettings]) -> Notes:
    """Scores all answers and compares those of each prompt."""
    prompts, settings, judge = job.load(PANEL, "panel"), job.settings, opened(job)
    answers = _distinct(job.load(GENERATIONS, "generation"), len(prompts))
    asked = [
        Question(prompts.prompts[place], prompts.hashes[place], text, texts[0])
        for place, texts in answers.items()
        for text in texts
    ]
    assert settings.seed is not None
    scores = iter(margins(judge, asked, Journal(job.state / SCORED), settings.seed, job.report))
    rows = list[Comparison]()
    for place, texts in answers.items():
        of_these = [next(scores) for _ in texts]
        for better, worse, gap in _selected(of_these, settings.select):
            one = Comparison(prompts.prompts[place], texts[better], texts[worse], 0, Origin(job.stage.name, place + 1))
            rows.append(replace(one, domain=prompts.domains[place], margin=gap))
    untied = [row for row in rows if row.margin]
    if not untied:
        raise UserError(f"no two answers to any of {len(prompts)} prompts have different scores")
    table = ComparisonTable.of(settings.rule.graded(untied))
    job.save(COMPARISONS, table)
    counts = {"comparisons": len(table), "prompts": len(set(table.prompt_hashes())), "ties": len(rows) - len(untied)}
    return {**counts, "same_answers": len(prompts) - len(answers), **spent_by(judge)}


def _distinct(answers: list[Line], prompts: int) -> dict[int, list[str]]:
    """The different answers, empty ones left out, to each prompt that has more than one. All prompts were answered
    equally often, in order."""
    each = len(answers) // prompts
    texts = {
        place: list(dict.fromkeys(row["text"] for row in answers[place * each : (place + 1) * each]))
        for place in range(prompts)
    }
    said = {place: [text for text in some if text.strip()] for place, some in texts.items()}
    return {place: some for place, some in said.items() if len(some) > 1}


def _selected(scores: Sequence[float], which: str) -> list[tuple[int, int, float]]:
    """(better, worse, difference) of some answers to one prompt."""
    if which != BEST_WORST:
        return list(PairRule(pairs=which).select(scores))  # type: ignore[arg-type]
    best, worst = (extreme(range(len(scores)), key=lambda place: scores[place]) for extreme in (max, min))
    return [(best, worst, scores[best] - scores[worst])]


def _cost(estimates: Estimates, stage: Stage[PairsSettings]) -> Cost:
    written = stage.inputs["generation"].settings
    prompts = prompts_to_answer(estimates, stage.inputs["panel"])
    tokens = prompts * written.sampling.samples * (estimates.mean_prompt + written.max_new_tokens)
    return scoring_cost(estimates, stage, tokens)


PAIRS_STAGE = Kind("pairs", pair_answers, uses_model=True, cost=_cost, wanted=pairs)
