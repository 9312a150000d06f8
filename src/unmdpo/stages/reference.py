"""The initial model on the data: log-probabilities for every pair, embeddings for every prompt."""

from functools import partial
from itertools import islice
from typing import Any

import torch

from unmdpo.core.settings import Strict
from unmdpo.engine.inference.embed import Embedder, embed_prompts, in_order
from unmdpo.engine.pairs.score import Kept, Part, score
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.settings import AdapterSettings, ModelSource
from unmdpo.engine.sharding import open_to_read
from unmdpo.engine.tally import Tally
from unmdpo.engine.text.encode import Encoder
from unmdpo.stages.data import comparisons, encoded
from unmdpo.stages.shared.base import VALIDATED, Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import COMPARISONS, EMBEDDINGS, PAIRS, PROMPTS, REFERENCE
from unmdpo.stages.shared.parts import keep, parts_of
from unmdpo.stages.shared.training import check_finite_logps, compiled, open_scorer, prove_in
from unmdpo.stages.shared.units import PromptIndex

AT_ONCE = 16  # batches of embeddings per file


class ModelSettings(Strict):
    model: ModelSource


class ReferenceSettings(Strict):
    model: ModelSource | None  # None: there is no reference
    four_bit: bool  # what an adapter trains beside is then its own reference


def reference(
    graph: Graph, model: ModelSource, adapter: AdapterSettings | None, suffix: str = ""
) -> Stage[ReferenceSettings]:
    """The log-probabilities that a policy, perhaps with an adapter, starts from; or those of another model. A pilot
    that stands in for the model is its own reference: another one may have other tokens."""
    other, name = graph.recipe.reference, f"{REFERENCE_STAGE.name}{suffix}"
    inputs = {"encoded": encoded(graph, model, suffix)}
    if other == "none":
        return graph.stage(REFERENCE_STAGE, ReferenceSettings(model=None, four_bit=False), inputs, name)
    if other is not None and model == graph.recipe.model:
        settings = ReferenceSettings(model=other, four_bit=False)
        return graph.stage(REFERENCE_STAGE, settings, inputs, name)
    four_bit = adapter is not None and adapter.four_bit
    settings = ReferenceSettings(model=model, four_bit=four_bit)
    return graph.stage(REFERENCE_STAGE, settings, inputs, name + ("[4-bit]" if four_bit else ""))


def features(graph: Graph) -> Stage[ModelSettings]:
    """Prompt embeddings from the pilots' model."""
    model, suffix = pilot_model(graph)
    inputs = {"comparisons": comparisons(graph)}
    settings = ModelSettings(model=model)
    return graph.stage(FEATURES_STAGE, settings, inputs, f"{FEATURES_STAGE.name}{suffix}")


def pilot_model(graph: Graph) -> tuple[ModelSource, str]:
    """The model for pilots and features, and a suffix for stage names if it is a proxy."""
    proxy = graph.recipe.pilots.model
    return (graph.recipe.model, "") if proxy is None else (proxy, "[proxy]")


def score_reference(job: Job[ReferenceSettings]) -> Notes:
    """Computes (n, 2) log-probabilities under the frozen reference, once for all pilots and policies; resumes where an
    earlier attempt stopped."""
    pairs = job.load(PAIRS, "encoded")
    if job.settings.model is None:
        if Ranks.current().first:
            job.save(REFERENCE, torch.zeros(len(pairs), 2))
        return {"tokens": 0}
    scorer, _ = open_scorer(job.settings.model, four_bit=job.settings.four_bit)
    proof = prove_in(job, scorer)
    kept = Kept(_begun(job), partial(keep, state=job.state))
    logps = score(compiled(scorer), pairs, job.compute.token_budget, job.report, kept)
    check_finite_logps(logps, pairs, "the reference")
    if Ranks.current().first:
        job.save(REFERENCE, logps)
    return {"tokens": pairs.valid_tokens, "proof": proof}


def embed(job: Job[ModelSettings]) -> Notes:
    """Computes (u, d) embeddings of the training prompts; resumes where an earlier attempt stopped."""
    source, first = job.settings.model, Ranks.current().first
    rows = job.load(COMPARISONS, "comparisons")
    index = PromptIndex.of(rows)
    parts = _begun(job)
    embedder = open_to_read(source, partial(Embedder, device=local_device()))
    done = {place for part in parts for place in part.places.tolist()}
    tally = Tally(job.report, len(index.hashes), "prompts embedded")
    tally.add(len(done))
    batches = embed_prompts(embedder, Encoder.of(source), index.prompts(rows), done)
    while some := list(islice(batches, AT_ONCE)):
        places = torch.tensor([place for members, _ in some for place in members])
        parts.append(Part(places, torch.cat([batch for _, batch in some])))
        tally.add(len(places))
        if first:
            keep(parts[-1], job.state)
    embeddings = in_order([(part.places.tolist(), part.values) for part in parts], len(index.hashes))
    if first:
        job.save(EMBEDDINGS, embeddings)
        job.save(PROMPTS, index.hashes)
    return {"prompts": len(index.hashes), "dimension": int(embeddings.shape[1])}


def _begun(job: Job[Any]) -> list[Part]:
    """What earlier attempts computed, on every rank."""
    ranks = Ranks.current()
    return ranks.share(parts_of(job.state) if ranks.first else [])


def _scoring_cost(estimates: Estimates, stage: Stage[ReferenceSettings]) -> Cost:
    model = stage.settings.model
    return Cost() if model is None else estimates.scoring(model, _share(estimates, stage))


def _embedding_cost(estimates: Estimates, stage: Stage[ModelSettings]) -> Cost:
    prompts = _share(estimates, stage) * estimates.prompts
    return estimates.reading(stage.settings.model, prompts * estimates.mean_prompt)


def _share(estimates: Estimates, stage: Stage[Any]) -> float:
    """Of the training data, as much as the stage reads."""
    return estimates.held_out if stage.name.endswith(VALIDATED) else 1.0


REFERENCE_STAGE = Kind("reference", score_reference, uses_model=True, ranked="by default", cost=_scoring_cost)
FEATURES_STAGE = Kind("features", embed, uses_model=True, ranked="on request", cost=_embedding_cost)
