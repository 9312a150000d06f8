"""TRL's DPOTrainer on the workload of `benchmarks.engine`: the same shape, lengths and global batch.

    python -m benchmarks.trl_peer [defaults] [micro8] [tuned] [--updates 3]

Needs a GPU, trl, datasets and, for the tuned variant, liger-kernel. Prints one JSON line per variant; the first update
is a warm-up and is not counted, nor is the tuned variant's reference pass.
"""

import argparse
import copy
import gc
import json
import os
import tempfile
import time
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from unmdpo.engine.shapes import SHAPES, pair_lengths

BATCH = 128
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {"per_device_train_batch_size": 1},
    "micro8": {"per_device_train_batch_size": 8},
    "tuned": {
        "per_device_train_batch_size": 8, "precompute_ref_log_probs": True, "use_liger_kernel": True,
        "gradient_checkpointing": False,
    },
}  # fmt: skip


def words_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token per word, so lengths are exactly as given."""
    names = {f"t{i}": i for i in range(vocabulary - 2)} | {"<pad>": vocabulary - 2, "<eos>": vocabulary - 1}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )


class UpdateTimes(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def measure(variant: str, updates: int) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import Dataset  # noqa: PLC0415 - only needed here
    from trl import DPOConfig, DPOTrainer  # noqa: PLC0415

    given, shape = VARIANTS[variant], SHAPES["1b"]
    vocabulary, rng = shape["vocab_size"], np.random.default_rng(1)

    def words(count: int) -> str:
        return " ".join(f"t{i}" for i in rng.integers(0, vocabulary - 2, count))

    # TRL appends the end token itself and joins prompt and response as they are
    rows = [
        {"prompt": words(p), "chosen": " " + words(c - 1), "rejected": " " + words(r - 1)}
        for p, c, r in pair_lengths(BATCH * (updates + 1), 4096)
    ]
    torch.manual_seed(0)
    config = LlamaConfig(
        **shape, max_position_embeddings=8192, bos_token_id=None, pad_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    reference = None if given.get("precompute_ref_log_probs") else copy.deepcopy(model).to(torch.bfloat16)
    times = UpdateTimes()
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(
            output_dir=folder, max_length=4096, max_steps=updates + 1, beta=0.05, bf16=True,
            gradient_accumulation_steps=BATCH // given["per_device_train_batch_size"], learning_rate=1e-6,
            save_strategy="no", report_to=[], disable_tqdm=True, **given,
        )  # fmt: skip
        trainer = DPOTrainer(
            model=model, ref_model=reference, args=arguments, train_dataset=Dataset.from_list(rows),
            processing_class=words_tokenizer(vocabulary), callbacks=[times],
        )  # fmt: skip
        torch.cuda.reset_peak_memory_stats()
        trainer.train()
    return {"peer": "trl", "variant": variant, **speed(np.diff(times.ends).tolist())}


def speed(seconds: list[float]) -> dict[str, Any]:
    """What a peer reached in updates that took this long."""
    return {
        "pairs_per_s": round(BATCH * len(seconds) / sum(seconds), 2),
        "seconds": [round(each, 2) for each in seconds],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("variants", nargs="*", choices=[*VARIANTS, []], default=[*VARIANTS])
    parser.add_argument("--updates", type=int, default=3, help="updates to time, after one warm-up update")
    given = parser.parse_args()
    for variant in given.variants:
        print(json.dumps(measure(variant, given.updates)), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
