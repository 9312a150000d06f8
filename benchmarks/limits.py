"""What else one GPU allows: the longest pair that trains, attention without a kernel, two ranks on one card, a mixture
of experts compiled.

    python -m benchmarks.limits long 1b|8b TOKENS…     LoRA for 8b; each length until one does not fit
    python -m benchmarks.limits eager                  a BLOOM of 560M, whose attention keeps its weights
    python -m benchmarks.limits experts                a Qwen3-MoE shape, compiled and not
    torchrun --nproc-per-node 2 -m benchmarks.limits ranks 1b|8b    the ranks share the first GPU, by gloo

Random weights and tokens. Prints JSON lines. NCCL refuses two ranks on one card, so these talk through host memory.
"""

import argparse
import gc
import json
import os
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from benchmarks.engine import training_log_probs
from unmdpo.engine.adapters import add_lora
from unmdpo.engine.cost import available, checkpoint_activations, estimate, microbatch_tokens, spare_memory
from unmdpo.engine.pairs.layout import Layout
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer, compile_layers
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import AdapterSettings, ComputeSettings, ObjectiveChoice, TrainingSettings
from unmdpo.engine.shapes import SHAPES, pair_lengths
from unmdpo.engine.sharding import _parameters_without_memory, shard
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.optimizer import own
from unmdpo.engine.training.trainer import Trainer

GIB = 2**30
RESPONSE = 1024  # tokens of a chosen response to a long prompt; a rejected one has half
EXPERTS: dict[str, Any] = {
    "vocab_size": 49_152, "hidden_size": 1024, "intermediate_size": 3072, "moe_intermediate_size": 512,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 32,
    "num_experts_per_tok": 4,
}  # fmt: skip


BLOOM: dict[str, Any] = {"vocab_size": 250_880, "hidden_size": 1024, "n_layer": 24, "n_head": 16}


def pairs_of(lengths: list[tuple[int, int, int]], vocabulary: int) -> EncodedPairs:
    rng = np.random.default_rng(7)
    ids = ([rng.integers(0, vocabulary, n).astype(np.int32) for n in row] for row in lengths)
    return EncodedPairs.of(EncodedPair(prompt, chosen, rejected, True) for prompt, chosen, rejected in ids)


def made(config: PretrainedConfig, dtype: torch.dtype, lora: int | None, *, empty: bool = False) -> PreTrainedModel:
    torch.manual_seed(0)
    with _parameters_without_memory():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    model.tie_weights()
    if lora is not None:
        add_lora(model, AdapterSettings(rank=lora))
    return model if empty else filled(model)


def filled(module: Any) -> Any:
    """On the GPU, with random weights."""
    module._apply(lambda t: torch.empty_like(t, device="cuda") if t.is_meta else t.to("cuda"))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            own(parameter).fill_(1.0) if "norm" in name else own(parameter).normal_(0, 0.02)
    return module


def llama(name: str) -> LlamaConfig:
    return LlamaConfig(**SHAPES[name], max_position_embeddings=1 << 20)


def trainer_of(
    scorer: PairScorer, pairs: EncodedPairs, batch: int, updates: int, layout: Layout = "flash", offload: bool = False
) -> Trainer:
    scorer.use(layout)
    scorer.proven = True  # what the proof finds is not what is measured here
    data = TrainingData(pairs, torch.ones(len(pairs)), reference=torch.zeros(len(pairs), 2))
    settings = TrainingSettings(updates=updates, batch=batch)
    return Trainer(scorer, data, ObjectiveChoice(name="dpo"), settings, ComputeSettings(offload_optimizer=offload))


def timed_updates(trainer: Trainer, updates: int, warm: int) -> list[float]:
    for _ in range(warm):
        trainer.step()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(updates):
        torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.step()
        torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - began, 3))
    return seconds


def peak() -> float:
    return round(torch.cuda.max_memory_allocated() / GIB, 1)


def long(name: str, lengths: list[int]) -> None:
    for tokens in lengths:
        model = made(llama(name), torch.bfloat16, 64 if name == "8b" else None)
        checkpoint_activations(model)
        pairs = pairs_of([(tokens - RESPONSE, RESPONSE, RESPONSE // 2)] * 3, model.config.vocab_size)
        expected = estimate(model, int(pairs.lengths[0].sum()), checkpointing=True).total
        line = {"what": "long", "model": name, "tokens": tokens, "estimated_gib": round(expected / GIB, 1)}
        try:
            scorer = PairScorer(model)
            trainer = trainer_of(scorer, pairs, 1, 3)
            compile_layers(scorer)
            line |= {"seconds": timed_updates(trainer, 2, 1), "peak_gib": peak()}
        except torch.OutOfMemoryError as error:
            print(json.dumps(line | {"problem": str(error).splitlines()[0][:120]}), flush=True)
            return
        print(json.dumps(line), flush=True)
        del model, scorer, trainer
        gc.collect()
        torch.cuda.empty_cache()


def eager() -> None:
    for row in (1024, 2048):
        model = made(BloomConfig(**BLOOM), torch.bfloat16, None)
        scorer = PairScorer(model)
        pairs = pairs_of([(row - 512, 512, 512)] * 64, model.config.vocab_size)
        trainer = trainer_of(scorer, pairs, 16, 4, "padded")
        compile_layers(scorer)
        seconds = timed_updates(trainer, 2, 2)
        line: dict[str, Any] = {"what": "eager", "row": row, "budget": trainer.budget, "compiled": scorer.compiles}
        line |= {"seconds": seconds, "peak_gib": peak()}
        expected = estimate(model, trainer.budget, row=row, checkpointing=False, compiles=scorer.compiles).total
        print(json.dumps(line | {"estimated_gib": round(expected / GIB, 1)}), flush=True)
        del model, scorer, trainer
        gc.collect()
        torch.cuda.empty_cache()


def experts() -> None:
    batch = 64
    for compiled in (False, True):
        torch._dynamo.reset()
        model = made(Qwen3MoeConfig(**EXPERTS), torch.bfloat16, None)
        scorer, pairs = PairScorer(model), pairs_of(pair_lengths(batch * 5, 2048), EXPERTS["vocab_size"])
        trainer, began = trainer_of(scorer, pairs, batch, 8), time.perf_counter()
        if compiled:
            compile_layers(scorer)
        known = score(scorer, pairs)[:batch]
        largest = float((training_log_probs(trainer) - known).abs().max())
        seconds = timed_updates(trainer, 5, 2)
        line: dict[str, Any] = {"what": "experts", "compiled": compiled and scorer.compilable, "largest": largest}
        line |= {"pairs_per_s": round(5 * batch / sum(seconds), 1), "seconds": seconds, "peak_gib": peak()}
        line |= {"all_s": round(time.perf_counter() - began, 1)}
        expected = estimate(model, trainer.budget, checkpointing=False, compiles=compiled).total
        print(json.dumps(line | {"estimated_gib": round(expected / GIB, 1)}), flush=True)
        del model, scorer, trainer
        gc.collect()
        torch.cuda.empty_cache()


def ranks(name: str) -> None:
    torch.cuda.set_device(0)
    lora = 64 if name == "8b" else None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or os.environ.get("SHARD"):
        dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    world, updates, batch = dist.is_initialized(), 3 if lora is None else 1, 64 if lora is None else 16
    lengths = pair_lengths(batch * (updates + 1), 2048)
    dtype = torch.float32 if world and lora is None else torch.bfloat16
    model = made(llama(name), dtype, lora, empty=world)
    if world:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        scorer = shard(PairScorer(model, torch.device("cuda", 0)))
        filled(scorer)
    else:
        scorer = PairScorer(model)
    budget, pairs = microbatch_tokens(scorer), pairs_of(lengths, model.config.vocab_size)
    offload = lora is not None
    spare_memory(scorer, ComputeSettings(offload_optimizer=offload), pairs)
    trainer = trainer_of(scorer, pairs, batch, updates + 2, offload=offload)
    compile_layers(scorer)
    seconds = timed_updates(trainer, updates, 1)
    line = {"what": "ranks", "model": name, "ranks": Ranks.current().world, "sharded": world, "budget": budget}
    line |= {
        "pairs_per_s": round(updates * batch / sum(seconds), 2),
        "offload": offload,
        "seconds": seconds,
        "peak_gib": peak(),
    }
    line |= {"sharded_weights": sum(isinstance(p, DTensor) for p in model.parameters())}
    line |= {
        "estimated_gib": round(
            estimate(
                model,
                budget,
                checkpointing=model.is_gradient_checkpointing,
                offload_optimizer=offload,
                world=Ranks.current().world,
                memory=available(scorer.device),
            ).total
            / GIB,
            1,
        )
    }
    if Ranks.current().first:
        print(json.dumps(line), flush=True)
    if world:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["long", "eager", "experts", "ranks"])
    parser.add_argument("model", nargs="?", default="1b")
    parser.add_argument("tokens", nargs="*", type=int)
    given = parser.parse_args()
    if given.what == "long":
        long(given.model, given.tokens or [8192, 32_768, 65_536, 131_072])
    elif given.what == "eager":
        eager()
    elif given.what == "experts":
        experts()
    else:
        ranks(given.model)


if __name__ == "__main__":
    main()
