"""The speed of the engine for `docs/evidence/performance.md`: how fast this machine trains and scores a known shape
with random weights, or a real model, on pairs of random tokens with HelpSteer3's lengths.

    python -m benchmarks.engine [--model 1b|8b|135m|tiny|FOLDER] [--budget 16384] [--lora 64] [--profile] …

Prints one JSON line each for scoring and training. Needs a GPU for the large shapes.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from unmdpo.engine.adapters import add_lora
from unmdpo.engine.cost import estimate, forward_flops, microbatch_tokens, spare_memory, training_passes
from unmdpo.engine.models import compute_dtype, load_model
from unmdpo.engine.pairs import flash
from unmdpo.engine.pairs import scorer as pair_scorer
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer, compile_layers
from unmdpo.engine.ranks import local_device
from unmdpo.engine.rates import matrix_rate
from unmdpo.engine.settings import (
    MAX_LENGTH,
    AdapterSettings,
    ComputeSettings,
    ModelPlace,
    ModelSource,
    ObjectiveChoice,
    TrainingSettings,
)
from unmdpo.engine.shapes import SHAPES, pair_lengths
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs, Tokens
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.trainer import Trainer

GIB = 2**30


@dataclass(frozen=True)
class BenchSettings:
    model: str = "1b"  # one of SHAPES, or a model's folder or Hub name
    batch: int = 128
    updates: int = 3
    token_budget: int | None = None  # None: a default for the device
    max_length: int = MAX_LENGTH
    lora: int | None = None  # rank
    offload_optimizer: bool = False
    checkpointing: bool | None = None  # None: if the memory estimate calls for it
    objective: str = "dpo"
    compile: bool = True  # compile layers, on a GPU


def bench(settings: BenchSettings) -> Iterator[dict[str, Any]]:
    """Yields one line for the proof, one for scoring and one for training."""
    scorer = PairScorer(_model(settings))
    compute = ComputeSettings(
        token_budget=settings.token_budget,
        offload_optimizer=settings.offload_optimizer,
        activation_checkpointing=settings.checkpointing,
    )
    pairs = random_pairs(settings, scorer.model.config.get_text_config().vocab_size)
    spare_memory(scorer, compute, pairs)
    started = time.perf_counter()
    proof = asdict(prove(scorer, pairs))
    yield {"what": "proof", "model": settings.model, "seconds": [round(time.perf_counter() - started, 2)], **proof}
    if scorer.device.type == "cuda" and settings.compile:
        compile_layers(scorer)
    measure = partial(_line, settings, scorer, pairs)
    warm_up = timed(lambda: _compile_every_shape(scorer, pairs, settings), scorer.device)
    reference = score(scorer, pairs, settings.token_budget)  # also a warm-up, like the first update below
    seconds = timed(lambda: score(scorer, pairs, settings.token_budget), scorer.device)
    yield measure("score", [seconds], passes=1.0)
    data = TrainingData(pairs, torch.ones(len(pairs)), reference=reference, scale=torch.ones(len(pairs)))
    trainer = Trainer(
        scorer,
        data,
        ObjectiveChoice(name=settings.objective),
        TrainingSettings(updates=settings.updates + 1, batch=settings.batch),
        compute,
    )
    largest = float((training_log_probs(trainer) - reference[: settings.batch]).abs().max())
    trainer.step()  # warm up
    if scorer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    each = []
    for _ in range(settings.updates):
        each.append(timed(trainer.step, scorer.device))
    line = measure("train", each, passes=training_passes(scorer.model, trainer.rule.adaptive))
    yield line | {"update_0_largest_log_ratio": round(largest, 4), "warm_up_s": round(warm_up, 1)}


def _compile_every_shape(scorer: PairScorer, pairs: EncodedPairs, settings: BenchSettings) -> None:
    """On a GPU, kernels are compiled for each shape, with and without gradient. That should not be timed."""
    budget = microbatch_tokens(scorer, settings.token_budget)
    if scorer.device.type != "cuda" or not scorer.packing.packs:
        return
    shortest = pairs.pair(int(pairs.lengths.sum(axis=1).argmin()))
    lengths = (
        [budget // 2, budget] if scorer.packing.layout == "flash" else range(budget // 4, budget + 1, budget // 4)
    )
    for length in lengths:
        batch = PackedBatch.of([shortest], length, sequences=scorer.packing.layout == "flash").to(scorer.device)
        with torch.no_grad():
            scorer.train(False)(batch)
        scorer.train()(batch).sum().backward()
    scorer.zero_grad(set_to_none=True)


def training_log_probs(trainer: Trainer) -> Tensor:
    """(batch, 2) for the first pairs, computed as an update does, with gradients and packing."""
    scorer, budget = trainer.scorer.train(), trainer.budget
    pairs = trainer.data.pairs.select(range(trainer.settings.batch))
    log_probs = torch.empty(len(pairs), 2)
    for members in scorer.packing.groups(trainer.data.pairs.lengths[: len(pairs)], budget).all:
        batch = scorer.prepare([pairs[i] for i in members], budget)
        log_probs[members] = scorer(batch.to(scorer.device)).detach().float().cpu()
    return log_probs


def _model(settings: BenchSettings) -> PreTrainedModel:
    device = local_device()
    dtype = compute_dtype(device)
    if settings.model in SHAPES:
        torch.manual_seed(0)
        config = LlamaConfig(**SHAPES[settings.model], max_position_embeddings=8192)
        with device:
            llama = LlamaForCausalLM._from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
        model: PreTrainedModel = llama
    else:
        model = load_model(ModelSource(path=ModelPlace(settings.model)), device=device)
    if settings.lora is not None:
        add_lora(model, AdapterSettings(rank=settings.lora))  # in place
    return model


def _line(
    settings: BenchSettings, scorer: PairScorer, pairs: EncodedPairs, what: str, seconds: list[float], passes: float
) -> dict[str, Any]:
    model = scorer.model
    useful, total = passes * forward_flops(model, pairs.lengths), sum(seconds)
    line = {
        "what": what,
        "model": settings.model,
        "pairs_per_s": round(len(pairs) / total, 2),
        "tokens_per_s": round(int(pairs.lengths.sum()) / total),
        "useful_tflops": round(useful / total / 1e12, 3),
        "share_of_matrix_rate": round(useful / total / matrix_rate(model.device), 3),
        "seconds": [round(each, 3) for each in seconds],
    }
    if model.device.type != "cuda":
        return line
    line["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 1)
    if what == "train":
        checkpointing, budget = model.is_gradient_checkpointing, microbatch_tokens(scorer, settings.token_budget)
        offload = settings.offload_optimizer
        expected = estimate(model, budget, checkpointing=checkpointing, offload_optimizer=offload)
        line |= {"estimated_gib": round(expected.total / GIB, 1), "checkpointing": checkpointing, "budget": budget}
    return line


def timed(job: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    job()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def random_pairs(settings: BenchSettings, vocabulary: int) -> EncodedPairs:
    rng = np.random.default_rng(7)

    def ids(tokens: int) -> Tokens:
        return rng.integers(0, vocabulary, tokens).astype(np.int32)

    lengths = pair_lengths(settings.batch * settings.updates, settings.max_length)
    return EncodedPairs.of(EncodedPair(ids(p), ids(c), ids(r), valid=True) for p, c, r in lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="1b")
    parser.add_argument("--budget", type=int)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--lora", type=int)
    parser.add_argument("--objective", default="dpo")
    parser.add_argument("--offload-optimizer", action="store_true")
    parser.add_argument("--checkpointing", action=argparse.BooleanOptionalAction)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--kernel-options", help="FlexAttention's block sizes as JSON; {} for its defaults")
    parser.add_argument("--without-flash", action="store_true", help="FlexAttention, instead of FlashAttention")
    given = parser.parse_args()
    if given.without_flash:
        flash.CAPABILITY = {2: (99, 0), 4: (99, 0)}
    if given.kernel_options is not None:
        pair_scorer.HOPPER_BLOCKS = json.loads(given.kernel_options)
    settings = BenchSettings(
        model=given.model,
        batch=given.batch,
        updates=given.updates,
        token_budget=given.budget,
        max_length=given.max_length,
        lora=given.lora,
        offload_optimizer=given.offload_optimizer,
        checkpointing=given.checkpointing,
        objective=given.objective,
        compile=not given.no_compile,
    )
    profiler = torch.profiler.profile() if given.profile else None
    for line in bench(settings):
        print(json.dumps(line), flush=True)
        if profiler is not None and line["what"] == "score":
            profiler.start()
    if profiler is not None:
        profiler.stop()
        sort = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=sort, row_limit=30, max_name_column_width=90))


if __name__ == "__main__":
    main()
