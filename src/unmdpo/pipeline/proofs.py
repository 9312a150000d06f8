"""Proofs that a model is scored right, kept in the store, one for each model, data, device and code version."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmdpo.engine.pairs.encode import EncodedPairs
from unmdpo.engine.pairs.proof import Proof, prove
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks, device_name
from unmdpo.files import write_json
from unmdpo.pipeline.artifacts import PAIRS
from unmdpo.pipeline.stage import Job, Notes, PinnedModel
from unmdpo.pipeline.store import versions


def prove_in(job: Job[Any], scorer: PairScorer) -> Notes:
    """Finds the scorer's layout on the job's pairs, or looks up what was found before, and returns what the manifest
    should say about it. The stage's settings name the model."""
    pairs = job.load(PAIRS, "encoded")
    place = None if job.proofs is None else job.proofs / f"{_key(job.settings.model, scorer, pairs)}.json"
    known = None if place is None else _read(place)
    ranks = Ranks.current()
    if ranks.agree(known is not None, scorer.device) and known is not None:
        scorer.use(known.layout)
        scorer.proven = True
    else:
        known = prove(scorer, pairs)
        if place is not None and ranks.first:
            write_json(place, asdict(known))
    return {"layout": known.layout, "largest_difference": known.difference}


def _key(model: PinnedModel, scorer: PairScorer, pairs: EncodedPairs) -> str:
    described = {
        "model": model.model_dump(mode="json"),
        "class": type(scorer.model).__name__,
        "dtype": str(scorer.model.dtype),
        "trained": sum(p.requires_grad for p in scorer.model.parameters()),  # with an adapter, another number
        "lengths": hashlib.sha256(pairs.lengths.tobytes()).hexdigest(),
        "device": device_name().partition(",")[0],
        "ranks": Ranks.current().world,
        "versions": versions(),
    }
    text = json.dumps(described, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(place: Path) -> Proof | None:
    """A proof that cannot be read is made again."""
    try:
        return Proof(**json.loads(place.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
