"""Proofs that a model is scored right, kept in the store, one for each model, data, device and code version."""

import contextlib
import hashlib
import json
import warnings
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmdpo.engine.models import context_length, load_model
from unmdpo.engine.pairs.encode import EncodedPair, EncodedPairs
from unmdpo.engine.pairs.proof import Proof, prove
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks, device_name, local_device
from unmdpo.errors import UnmdpoWarning
from unmdpo.files import write_json
from unmdpo.pipeline.artifacts import PAIRS
from unmdpo.pipeline.content import by_content
from unmdpo.pipeline.costs import meta_model, parameters
from unmdpo.pipeline.stage import Job, Notes, PinnedModel
from unmdpo.pipeline.store import versions

if TYPE_CHECKING:
    from unmdpo.pipeline.run import Run

SMALL, SMALL_ON_GPU = 2e8, 1e10  # parameters of a model that is tried when a run is planned
LONGEST = 256  # tokens in what it is tried on


def prove_in(job: Job[Any], scorer: PairScorer) -> Notes:
    """Finds the scorer's layout on the job's pairs, or looks up what was found before, and returns what the manifest
    should say about it. The stage's settings name the model."""
    pairs = job.load(PAIRS, "encoded")
    place = None if job.proofs is None else job.proofs / f"{_key(job.settings.model, scorer, pairs)}.json"
    ranks = Ranks.current()
    known = ranks.share(_read(place) if place is not None and ranks.first else None)
    if known is not None:
        scorer.use(known.layout)
        scorer.proven = True
    else:
        known = prove(scorer, pairs)
        if place is not None and ranks.first:
            write_json(place, asdict(known))
    return {"layout": known.layout, "largest_difference": known.difference}


def prove_small(run: "Run") -> Proof | None:
    """The proof for a model that is on this machine and quickly tried, on pairs of random tokens; None for others."""
    source, device = run.recipe.model, local_device()
    if source.gguf_file is not None or not Path(source.path).is_dir():
        return None
    shape = meta_model(source)
    if parameters(shape) > (SMALL if device.type == "cpu" else SMALL_ON_GPU):
        return None
    context = min(context_length(source) or LONGEST, LONGEST)
    rng, known = np.random.default_rng(0), shape.config.get_text_config().vocab_size

    def ids(most: int) -> NDArray[np.int32]:
        return rng.integers(0, known, max(1, most * context // LONGEST)).astype(np.int32)

    pairs = [
        EncodedPair(ids(p), ids(c), ids(r), True) for p, c, r in ((8, 9, 4), (1, 5, 30), (90, 20, 60), (40, 160, 9))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnmdpoWarning)  # the caller tells
        return prove(PairScorer(load_model(source, device=device)), EncodedPairs.of(pairs))


def _key(model: PinnedModel, scorer: PairScorer, pairs: EncodedPairs) -> str:
    described = {
        "model": by_content(model.model_dump(mode="json")),
        "class": type(scorer.model).__name__,
        "dtype": str(scorer.model.dtype),
        "quantized": getattr(scorer.model, "hf_quantizer", None) is not None,
        "trained": sum(p.requires_grad for p in scorer.model.parameters()),  # with an adapter, another number
        "lengths": hashlib.sha256(pairs.lengths.tobytes()).hexdigest(),
        "device": device_name().partition(",")[0],
        "ranks": Ranks.current().world,
        "versions": versions() | _kernel_versions(),
        "layouts": scorer.layouts,
    }
    text = json.dumps(described, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _kernel_versions() -> dict[str, str]:
    """Of what is not always there, and computes where it is."""
    found = {}
    for name in ("flash-attn-4", "nvidia-cutlass-dsl", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _read(place: Path) -> Proof | None:
    """A proof that cannot be read is made again."""
    try:
        return Proof(**json.loads(place.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
