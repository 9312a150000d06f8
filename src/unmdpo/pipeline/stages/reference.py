"""What the initial model says of the data: log-probabilities of every pair, embeddings of every prompt."""

import torch
from safetensors.torch import load_file, save_file

from unmdpo.engine.embed import embed_prompts
from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.models import load_model, make_encoder
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.score import score
from unmdpo.engine.scoring import PairScorer
from unmdpo.pipeline.common import PromptIndex, check_finite_logps, model_source
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.stages.data import TRAIN
from unmdpo.pipeline.store import write_json
from unmdpo.pipeline.tables import read_comparisons
from unmdpo.pipeline.training import compute_dtype, load_for_training, ready

PART = 64  # batches of embeddings between two writes


def reference(job: Job) -> Notes:
    """(n, 2) log-probabilities under the frozen initial model, once for every pilot and policy."""
    pairs = EncodedPairs.load(job.inputs["encoded"].file("pairs.safetensors"))
    logps = score(ready(PairScorer(load_for_training(job))), pairs, job.compute.token_budget)
    check_finite_logps(logps, torch.from_numpy(pairs.valid), "the initial model")
    if Ranks.current().first:
        save_file({"logps": logps}, job.folder / "reference.safetensors")
    return {"tokens": int(pairs.lengths[pairs.valid].sum())}


def features(job: Job) -> Notes:
    """(u, d) embeddings of the training prompts; goes on where an earlier try stopped."""
    device, source = local_device(), model_source(job.settings["model"], job.inputs)
    index = PromptIndex.of(read_comparisons(job.inputs["comparisons"].file(TRAIN)))
    parts = sorted(job.folder.glob("part-*.safetensors"))
    done = [load_file(path)["embeddings"] for path in parts]
    model = load_model(source, device=device, dtype=compute_dtype(device))
    batches = embed_prompts(
        model, make_encoder(source, max_length=2**31), index.prompts, start=sum(map(len, done))
    )
    waiting: list[torch.Tensor] = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == PART:
            path = job.folder / f"part-{len(done):06d}.safetensors"
            done.append(torch.cat(waiting))
            save_file({"embeddings": done[-1]}, path.with_suffix(".aside"))
            path.with_suffix(".aside").rename(path)
            waiting = []
    embeddings = torch.cat([*done, *waiting])
    save_file({"embeddings": embeddings}, job.folder / "embeddings.safetensors")
    write_json(job.folder / "prompts.json", index.hashes)
    for path in job.folder.glob("part-*"):
        path.unlink()
    return {"prompts": len(index.hashes), "dimension": int(embeddings.shape[1])}
