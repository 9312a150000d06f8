"""LLaMA-Factory's DPO stage on the workload of `benchmarks.engine`: the same shape, lengths and global batch.

    python -m benchmarks.llamafactory_peer [--micro 2] [--updates 3]

Full fine-tuning with Liger's layers, no checkpointing, and pairs sorted by length within an update, which it is told
to read in order. It cannot precompute the reference, so the bfloat16 reference's pass is part of every update. Needs a
GPU, llamafactory, datasets and liger-kernel; prints one JSON line. The first update is a warm-up.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.trl_peer import BATCH, UpdateTimes, speed, words_tokenizer
from unmdpo.engine.shapes import SHAPES, pair_lengths


def write_model(folder: Path) -> None:
    shape, vocabulary = SHAPES["1b"], SHAPES["1b"]["vocab_size"]
    torch.manual_seed(0)
    more = {"bos_token_id": None, "pad_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
    config = LlamaConfig(**shape, max_position_embeddings=8192, **more)
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.cpu().save_pretrained(folder)
    words_tokenizer(vocabulary).save_pretrained(folder)


def rows(pairs: int) -> Iterator[dict[str, Any]]:
    """Token ids as LLaMA-Factory's own preprocessing makes them, each update's pairs longest first."""
    rng, vocabulary, lengths = np.random.default_rng(1), SHAPES["1b"]["vocab_size"], list(pair_lengths(pairs, 4096))
    for start in range(0, pairs, BATCH):
        for p, c, r in sorted(lengths[start : start + BATCH], key=lambda one: -(one[0] + max(one[1:]))):
            prompt, row = rng.integers(0, vocabulary - 2, p).tolist(), dict[str, Any]()
            for name, count in (("chosen", c), ("rejected", r)):
                answer = [*rng.integers(0, vocabulary - 2, count - 1).tolist(), vocabulary - 1]
                row[f"{name}_input_ids"] = prompt + answer
                row[f"{name}_attention_mask"] = [1] * (p + count)
                row[f"{name}_labels"] = [-100] * p + answer
            yield row | {"images": None, "videos": None, "audios": None}


def measure(micro: int, updates: int) -> dict[str, Any]:
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_DISABLED": "true"}
    dpo, tuner = (import_module(f"llamafactory.train.{name}") for name in ("dpo.trainer", "tuner"))
    datasets, times = import_module("datasets"), UpdateTimes()
    dpo.CustomDPOTrainer.save_model = lambda *_, **__: None  # gigabytes that nobody times
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model")
        data = datasets.Dataset.from_list(list(rows(BATCH * (updates + 1))))
        datasets.DatasetDict({"train": data}).save_to_disk(str(folder / "data"))
        settings = {
            "stage": "dpo", "do_train": True, "finetuning_type": "full", "model_name_or_path": str(folder / "model"),
            "template": "empty", "dataset": "tokenized", "tokenized_path": str(folder / "data"), "cutoff_len": 4096,
            "pref_beta": 0.05, "pref_loss": "sigmoid", "output_dir": str(folder / "out"), "bf16": True,
            "learning_rate": 1e-6, "max_steps": updates + 1, "optim": "adamw_torch_fused", "logging_steps": 1,
            "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "plot_loss": False,
            "per_device_train_batch_size": micro, "gradient_accumulation_steps": BATCH // micro,
            "enable_liger_kernel": True, "flash_attn": "sdpa", "disable_gradient_checkpointing": True,
            "disable_shuffling": True, "dataloader_num_workers": 4,
        }  # fmt: skip
        tuner.run_exp(settings, callbacks=[times])
    return {"peer": "llamafactory", "micro": micro, **speed(np.diff(times.ends).tolist())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--micro", type=int, default=2, help="pairs in a microbatch")
    parser.add_argument("--updates", type=int, default=3, help="updates to time, after one warm-up update")
    given = parser.parse_args()
    print(json.dumps(measure(given.micro, given.updates)))
