"""Pilots that pass over the data once: what they think of a comparison when they meet it is the evidence.

Comparisons of one prompt are neighbors, so that at most one update lies between them, as prompt-grouped folds ask.
With two passes, the second in the opposite order, every comparison is met in the later half of one of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.core.settings import Strict
from unmdpo.engine.pairs.score import score
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.schedule import epoch_order
from unmdpo.recipe.seeds import with_seed
from unmdpo.stages.convert import converted_model
from unmdpo.stages.data import comparisons, encoded
from unmdpo.stages.reference import pilot_model, reference
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, PinnedModel, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import COMPARISONS, PAIRS, PASS_LOGPS, REFERENCE, PassLogps
from unmdpo.stages.shared.training import train_in, with_beta
from unmdpo.stages.shared.units import PromptIndex, strengths, weights
from unmdpo.stats.growth import enlarge, latest


class PassSettings(Strict):
    model: PinnedModel
    backward: bool
    objective: ObjectiveChoice
    beta: float
    training: TrainingSettings


def passes(graph: Graph, seed: int | None) -> list[Stage[Any]]:
    """One pass, or two in opposite orders."""
    both = graph.recipe.pilots.evidence == "two-passes"
    return [_pass(graph, seed, backward) for backward in ((False, True) if both else (False,))]


def _pass(graph: Graph, seed: int | None, backward: bool) -> Stage[PassSettings]:
    recipe, (model, suffix) = graph.recipe, pilot_model(graph)
    training = recipe.seeded_training.with_overrides(recipe.pilots).without_validation
    if training.adapter is not None and training.adapter.dropout:
        raise UserError(
            f"pilots.evidence: {recipe.pilots.evidence} takes log-probabilities in training, which dropout blurs: "
            "set adapter.dropout to 0, or pilots.evidence to folds"
        )
    settings = PassSettings(
        model=graph.pin_model(model),
        backward=backward,
        objective=ObjectiveChoice(name=recipe.pilots.objective, settings=recipe.pilot_settings),
        beta=recipe.beta,
        training=training if seed is None else training.model_copy(update={"seed": seed}),
    )
    inputs: dict[str, Stage[Any]] = {
        "comparisons": comparisons(graph),
        "encoded": encoded(graph, model, suffix),
        "reference": reference(graph, model, settings.training.adapter, suffix),
        **converted_model(graph, model, suffix),
    }
    name = "backward" if backward else "forward"
    return graph.stage(
        PASS_STAGE, settings, inputs, PASS_STAGE.stage_name(name if seed is None else with_seed(name, seed))
    )


def train_once(job: Job[PassSettings]) -> Notes:
    """Trains on every comparison once. What is left after the last whole batch is scored at the end."""
    s, rows, pairs = job.settings, job.load(COMPARISONS, "comparisons"), job.load(PAIRS, "encoded")
    order = epoch_order(len(rows), s.training.random_seed, epoch=0)  # of the loader
    row_of = _arranged(PromptIndex.of(rows).of_row, order, s)  # (n,) the row in each of its slots
    arranged = EncodedPairs.of(pairs.select(row_of.tolist()))
    known, weight = job.load(REFERENCE, "reference")[row_of], weights(rows, torch.from_numpy(pairs.valid))
    data = TrainingData(arranged, strengths(rows)[row_of], known, weight=None if weight is None else weight[row_of])
    trained = train_in(
        job, job.source(s.model), s.training, with_beta(s.objective, s.beta, pairs), data, remember=True
    )
    logps, update = trained.trainer.met, torch.empty(len(rows), dtype=torch.int64)
    assert logps is not None
    update[torch.tensor(order)] = torch.arange(len(rows)) // s.training.batch
    left = (update >= trained.trainer.updates).nonzero().flatten()
    if len(left):
        logps[left] = score(trained.scorer, EncodedPairs.of(arranged.select(left.tolist())), job.compute.token_budget)
    if Ranks.current().first:
        back = row_of.argsort()
        job.save(PASS_LOGPS, PassLogps(update[back], logps[back]))
    return trained.notes | {"scored_at_the_end": len(left)}


def _arranged(prompt_of: Tensor, order: list[int], settings: PassSettings) -> Tensor:
    """(n,) the row for each slot, so that a loader which visits slots in `order` meets prompt after prompt."""
    seed = settings.training.random_seed
    place = torch.tensor(epoch_order(int(prompt_of.max()) + 1, seed, epoch=1))  # of each prompt
    wanted = place[prompt_of].argsort(stable=True)
    row_of = torch.empty_like(wanted)
    row_of[torch.tensor(order)] = wanted.flip(0) if settings.backward else wanted
    return row_of


def latest_evidence(
    met: list[PassLogps], gaps: Callable[[Tensor], tuple[Tensor, Tensor]], valid: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Evidence of whole responses and per token, as large as at the end, and which comparisons have any."""
    updates, counted = [one.update.numpy() for one in met], valid.numpy()

    def combined(values: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """(n,) evidence and (n,) whether it is usable, from the same values (n,) in every pass."""
        of_passes = zip(values, updates, strict=True)
        found = latest([enlarge(one.double().numpy(), update, counted) for one, update in of_passes], updates)
        return torch.from_numpy(found.evidence).float(), torch.from_numpy(found.usable)

    whole, per_token = (combined(values) for values in zip(*(gaps(one.logps) for one in met), strict=True))
    return (whole[0], per_token[0]), whole[1] & per_token[1]


def _cost(estimates: Estimates, stage: Stage[PassSettings]) -> Cost:
    s = stage.settings
    return estimates.training(s.model, s.training, s.objective)


PASS_STAGE = Kind("pass", train_once, uses_model=True, ranked="by default", cost=_cost)
