"""How fast the engine trains and scores a Llama shape with random weights on HelpSteer3-like lengths.

    python -m benchmarks.engine [--model 1b|135m] [--budget 16384] [--updates 3] [--profile]

Prints one JSON line each for training and scoring: pairs/s, tokens/s (shared layout), useful TFLOP/s and
the share of this device's measured bf16 matrix rate, and peak memory. Needs a GPU for the large shapes.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from unmdpo.engine import scoring
from unmdpo.engine.encode import EncodedPair, EncodedPairs, Tokens
from unmdpo.engine.rows import TrainingData
from unmdpo.engine.score import score
from unmdpo.engine.scoring import PairScorer, compile_layers
from unmdpo.engine.train import ObjectiveChoice, Trainer, TrainingSettings

SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    },
    "135m": {
        "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    },
}  # fmt: skip


def pair_lengths(count: int, seed: int, cap: int = 4096) -> list[tuple[int, int, int]]:
    """Prompt, chosen and rejected tokens: log-normal, with HelpSteer3's median response of 364.5."""
    rng, found = np.random.default_rng(seed), list[tuple[int, int, int]]()
    while len(found) < count:
        prompt = int(np.clip(np.exp(rng.normal(np.log(300), 1.0)), 12, 3000))
        mean, spread = np.exp(rng.normal(np.log(364.5), 0.65)), rng.normal(0, 0.3)
        chosen, rejected = (int(max(8, mean * np.exp(sign * spread / 2))) for sign in (1, -1))
        if prompt + max(chosen, rejected) <= cap:
            found.append((prompt, chosen, rejected))
    return found


def synthetic_pairs(count: int, vocabulary: int, seed: int = 7) -> EncodedPairs:
    rng = np.random.default_rng(seed)

    def ids(tokens: int) -> Tokens:
        return rng.integers(0, vocabulary, tokens).astype(np.int32)

    return EncodedPairs.of(
        EncodedPair(ids(prompt), ids(chosen), ids(rejected), valid=True)
        for prompt, chosen, rejected in pair_lengths(count, seed)
    )


def matrix_rate(device: torch.device) -> float:
    """Measured bf16 TFLOP/s of a large matrix product on random data."""
    if device.type != "cuda":
        return float("nan")
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(30):
        a @ b
    torch.cuda.synchronize()
    return 30 * 2 * 8192**3 / (time.perf_counter() - started) / 1e12


def useful_flops(shape: dict[str, Any], pairs: EncodedPairs) -> float:
    """Of one forward pass over the pairs: body, head on response tokens, attention as masked."""
    d, f = shape["hidden_size"], shape["intermediate_size"]
    kv, heads = (shape[f"num_{kind}_heads"] * shape["head_dim"] for kind in ("key_value", "attention"))
    layer = 2 * (d * heads + 2 * d * kv + heads * d + 3 * d * f)
    p, c, r = pairs.lengths.astype(np.float64).T
    seen = p * p / 2 + c * (p + c / 2) + r * (p + r / 2)  # attended pairs of tokens
    body = shape["num_hidden_layers"] * (layer * (p + c + r) + 4 * heads * seen)
    return float((body + 2 * d * shape["vocab_size"] * (c + r)).sum())


def timed(job: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    job()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def report(
    what: str, seconds: float, pairs: EncodedPairs, flops: float, peak_rate: float, model: str
) -> None:
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
    line = {
        "what": what,
        "model": model,
        "pairs_per_s": round(len(pairs) / seconds, 2),
        "tokens_per_s": round(int(pairs.lengths.sum()) / seconds),
        "useful_tflops": round(flops / seconds / 1e12, 1),
        "share_of_matrix_rate": round(flops / seconds / 1e12 / peak_rate, 3),
        "peak_gib": round(memory, 1),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="1b")
    parser.add_argument("--budget", type=int, default=16_384)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--kernel-options", help="FlexAttention's block sizes as JSON; {} for its own")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[arguments.model], tie_word_embeddings=True, max_position_embeddings=8192)
    attention = "flex_attention" if device.type == "cuda" else "sdpa"
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        model = LlamaForCausalLM._from_config(config, dtype=dtype, attn_implementation=attention)  # type: ignore[no-untyped-call]
    if device.type == "cuda":
        compile_layers(model)
        if arguments.kernel_options is not None:
            scoring.HOPPER_BLOCKS = json.loads(arguments.kernel_options)
    pairs = synthetic_pairs(arguments.batch * arguments.updates, config.vocab_size)
    rate, flops = matrix_rate(device), useful_flops(SHAPES[arguments.model], pairs)
    warm = EncodedPairs.of(pairs.select(range(min(len(pairs), 24))))
    score(PairScorer(model), warm, arguments.budget)
    seconds = timed(lambda: score(PairScorer(model), pairs, arguments.budget), device)
    report("score", seconds, pairs, flops, rate, arguments.model)
    data = TrainingData(
        pairs, torch.ones(len(pairs)), reference=score(PairScorer(model), pairs, arguments.budget)
    )
    settings = TrainingSettings(
        updates=arguments.updates + 1, batch=arguments.batch, token_budget=arguments.budget
    )
    trainer = Trainer(PairScorer(model), data, ObjectiveChoice("dpo"), settings)
    first = trainer.step()
    print(json.dumps({"first_update_margin": first["rewards/margins"], "grad_norm": first["grad_norm"]}))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = timed(lambda: [trainer.step() for _ in range(arguments.updates)], device)
    report("train", seconds, pairs, 3 * flops, rate, arguments.model)
    if arguments.profile:
        with torch.profiler.profile() as profiler:
            trainer.step()
        sort = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=sort, row_limit=28, max_name_column_width=90))


if __name__ == "__main__":
    main()
