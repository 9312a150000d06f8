"""The initial model on the data: log-probabilities for every pair, embeddings for every prompt."""

from functools import partial
from itertools import islice

import torch

from unmdpo.engine.inference.embed import Embedder, embed_prompts, in_order
from unmdpo.engine.pairs.score import Kept, Part, score
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.sharding import open_to_read
from unmdpo.engine.tally import Tally
from unmdpo.engine.text.encode import Encoder
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import COMPARISONS, EMBEDDINGS, PAIRS, PROMPTS, REFERENCE
from unmdpo.stages.shared.parts import keep, parts_of
from unmdpo.stages.shared.training import check_finite_logps, compiled, open_scorer, prove_in
from unmdpo.stages.shared.units import PromptIndex

BATCHES_PER_FILE = 16  # of embeddings


def score_reference(job: Job, *, model: ModelSource | None, four_bit: bool) -> Notes:
    """Computes (n, 2) log-probabilities under the frozen reference, once for all pilots and policies; resumes where an
    earlier attempt stopped.

    Without a `model` there is no reference; in `four_bit`, it is what an adapter trains beside.
    """
    pairs = job.load(PAIRS, "encoded")
    if model is None:
        if Ranks.current().first:
            job.save(REFERENCE, torch.zeros(len(pairs), 2))
        return {"tokens": 0}
    scorer, _ = open_scorer(model, four_bit=four_bit)
    proof = prove_in(job, model, scorer)
    kept = Kept(_begun(job), partial(keep, state=job.state))
    logps = score(compiled(scorer), pairs, job.compute.token_budget, job.report, kept)
    check_finite_logps(logps, pairs, "the reference")
    if Ranks.current().first:
        job.save(REFERENCE, logps)
    return {"tokens": pairs.valid_tokens, "proof": proof}


def embed(job: Job, *, model: ModelSource) -> Notes:
    """Computes (u, d) embeddings of the prompts; resumes where an earlier attempt stopped."""
    is_first = Ranks.current().first
    rows = job.load(COMPARISONS, "comparisons").without_ties()
    index = PromptIndex.of(rows)
    parts = _begun(job)
    embedder = open_to_read(model, partial(Embedder, device=local_device()))
    done = {place for part in parts for place in part.places.tolist()}
    tally = Tally(job.report, len(index.hashes), "prompts embedded")
    tally.add(len(done))
    batches = embed_prompts(embedder, Encoder.of(model), index.prompts(rows), done)
    while group := list(islice(batches, BATCHES_PER_FILE)):
        places = torch.tensor([place for members, _ in group for place in members])
        parts.append(Part(places, torch.cat([batch for _, batch in group])))
        tally.add(len(places))
        if is_first:
            keep(parts[-1], job.state)
    embeddings = in_order([(part.places.tolist(), part.values) for part in parts], len(index.hashes))
    if is_first:
        job.save(EMBEDDINGS, embeddings)
        job.save(PROMPTS, index.hashes)
    return {"prompts": len(index.hashes), "dimension": int(embeddings.shape[1])}


def _begun(job: Job) -> list[Part]:
    """What earlier attempts computed, on every rank."""
    ranks = Ranks.current()
    return ranks.share(parts_of(job.state) if ranks.first else [])


REFERENCE_STAGE = Kind("reference", score_reference, uses_model=True, ranked="by default")
FEATURES_STAGE = Kind("features", embed, uses_model=True, ranked="on request")
