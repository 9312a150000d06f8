"""A whole run on real weights and real pairs, and TRL on the same pairs.

    python -m benchmarks.real run MODEL DATA [--jobs N]    five pilots, a scale, six policies times
                                                           three seeds, two judges, two panels
    python -m benchmarks.real trl MODEL DATA [dpo] [reward]    one DPO run, tuned, and one judge

MODEL is a folder; DATA a folder with arena-bench-v1, ultrafeedback-train, ultrafeedback-eval, pandalm-v1 and an
alpaca-eval file, all .jsonl.gz. Prints JSON lines. Run it from the repository's folder, whose examples read PandaLM.
Needs a GPU; the second needs trl, datasets and liger-kernel.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

PANELS = {"alpaca": (400, "alpaca-eval-Qwen-14B-Chat.jsonl.gz"), "feedback": (150, "ultrafeedback-eval.jsonl.gz")}
SEEDS = [42, 17, 7]
BATCH, RATE, LENGTH = 64, 2e-5, 2048


def recipe(model: str, data: Path, template: str | None) -> dict[str, Any]:
    judges: dict[str, dict[str, Any]] = {
        "feedback": {"path": str(data / "ultrafeedback-train.jsonl.gz")},
        "votes": {"path": str(data / "pandalm-v1.jsonl.gz"), "source": "examples.sources:pandalm"},
    }
    return {
        "name": "real",
        "model": {"path": model} | ({} if template is None else {"template": template}),
        "data": {
            "path": str(data / "arena-bench-v1.jsonl.gz"), "max_length": LENGTH, "validation": {"fraction": 0.2},
            "pairing": {"pairs": "all", "min_gap": 1, "most": 30},
        },
        "training": {"epochs": 1, "batch": BATCH, "learning_rate": RATE, "warmup": 10},
        "pilots": {"folds": 5, "epochs": 1, "objective": "fixed-margin"},
        "scales": {
            "ln": {"estimator": "pooled", "fit": "wr", "length_normalized": True},
            "seq": {"estimator": "pooled", "fit": "wr"},
            "one": {"estimator": "constant"},
        },
        "policies": {
            "dpo": {"objective": "dpo"},
            "fixed-margin": {"objective": "fixed-margin"},
            "simpo": {"objective": "simpo"},
            "unm-wr": {"objective": "unm-wr", "scale": "seq"},
            "ulnm-one": {"objective": "ulnm-wr", "scale": "one"},
            "ulnm-wr": {"objective": "ulnm-wr", "scale": "ln"},
        },
        "evaluation": {
            "baseline": "dpo", "seeds": SEEDS, "max_new_tokens": 256,
            "judges": {name: {"train": rows} for name, rows in judges.items()},
            "panels": {
                name: {"size": size, "seed": 260834, "path": str(data / file)} for name, (size, file) in PANELS.items()
            },
        },
    }  # fmt: skip


class Watch(threading.Thread):
    """Reads the card's load, power and memory twice a second."""

    ASKED = "utilization.gpu,power.draw,memory.used"

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.rows = list[tuple[float, list[float]]]()
        self._command = ["nvidia-smi", f"--query-gpu={self.ASKED}", "--format=csv,noheader,nounits", "-lms", "500"]

    def run(self) -> None:
        with subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True) as self._process:
            for line in self._process.stdout or ():
                self.rows.append((time.time(), [float(value) for value in line.split(",")]))

    def stop(self) -> None:
        self._process.terminate()

    def between(self, start: float, end: float) -> dict[str, float]:
        rows = [values for when, values in self.rows if start <= when <= end]
        if not rows:
            return {}
        load, power, memory = zip(*rows, strict=True)
        return {
            "busy": round(statistics.mean(load) / 100, 3),
            "watts": round(statistics.mean(power)),
            "peak_gib": round(max(memory) / 1024, 1),
        }


def whole_run(model: str, data: Path, template: str | None, jobs: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place, store = Path(folder) / "real.yaml", Path(folder) / "store"
        place.write_text(json.dumps(recipe(model, data, template)))  # YAML reads JSON
        command = [sys.executable, "-m", "unmdpo", "run", str(place), "--store", str(store), "--full"]
        command += [] if jobs is None else ["--jobs", str(jobs)]
        watch, began = Watch(), time.time()
        watch.start()
        first = None  # seconds to the end of the first update of any model
        with subprocess.Popen(command) as process:
            while process.poll() is None:
                with contextlib.suppress(OSError):  # files come and go
                    if first is None and any(log.stat().st_size for log in store.rglob("throughput.log")):
                        first = time.time() - began
                time.sleep(0.5)
        ended = time.time()
        watch.stop()
        show(store, watch, began)
        seconds = {"seconds": round(ended - began, 1), "first_update_after_s": first and round(first, 1)}
        print(json.dumps({"what": "whole run", **seconds, **watch.between(began, ended)}), flush=True)


def show(store: Path, watch: Watch, began: float) -> None:
    manifests = [
        (path.parent, json.loads(path.read_text())) for path in (store / "artifacts").glob("*/*/manifest.json")
    ]
    by_kind = defaultdict[str, list[tuple[Path, dict[str, Any]]]](list)
    for place, manifest in manifests:
        by_kind[place.parent.name].append((place, manifest))
    for kind, found in sorted(by_kind.items()):
        start = min(manifest["started"] for _, manifest in found)
        end = max(manifest["started"] + manifest["seconds"] for _, manifest in found)
        line = {
            "kind": kind,
            "stages": len(found),
            "from_s": round(start - began, 1),
            "to_s": round(end - began, 1),
            "stage_seconds": [round(manifest["seconds"], 1) for _, manifest in found],
            "layouts": sorted({str(m["notes"]["proof"]["layout"]) for _, m in found if "proof" in m["notes"]}),
        }
        paces = [pairs_per_s(place / "throughput.log") for place, _ in found if (place / "throughput.log").is_file()]
        if paces:
            line["pairs_per_s_each"] = [round(pace, 1) for pace in paces]
        print(json.dumps(line | watch.between(start, end)), flush=True)


def pairs_per_s(log: Path) -> float:
    """Of all updates but the first, in which kernels are compiled."""
    lines = [json.loads(line) for line in log.read_text().splitlines()][1:]
    seconds = sum(line["throughput/update_s"] for line in lines)
    pairs = sum(line["throughput/pairs_per_s"] * line["throughput/update_s"] for line in lines)
    return float(pairs / max(seconds, 1e-9))


def trl(model: str, data: Path, what: list[str], updates: int, micro: int) -> None:
    """On the pairs that the run above trains on, with the same batch, tuned as well as we know how."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch  # noqa: PLC0415 - not in the process that only watches
    from datasets import Dataset  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer  # noqa: PLC0415

    from benchmarks.trl_peer import UpdateTimes  # noqa: PLC0415

    rows = [{"prompt": [{"role": "user", "content": row.prompt[-1].content}],
             "chosen": [{"role": "assistant", "content": row.chosen}],
             "rejected": [{"role": "assistant", "content": row.rejected}]} for row in _pairs(data)]  # fmt: skip
    for name in what:
        times, tokenizer = UpdateTimes(), AutoTokenizer.from_pretrained(model)
        common: dict[str, Any] = {
            "max_length": LENGTH, "max_steps": updates + 1, "bf16": True, "learning_rate": RATE, "save_strategy": "no",
            "gradient_accumulation_steps": BATCH // micro, "per_device_train_batch_size": micro, "report_to": [],
            "disable_tqdm": True, "gradient_checkpointing": False, "use_liger_kernel": name == "dpo",
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            if name == "dpo":
                policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
                arguments: Any = DPOConfig(output_dir=folder, precompute_ref_log_probs=True, beta=0.05, **common)
                trainer: Any = DPOTrainer(
                    model=policy, args=arguments, train_dataset=Dataset.from_list(rows[: BATCH * (updates + 1)]),
                    processing_class=tokenizer, callbacks=[times],
                )  # fmt: skip
            else:
                judge = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32, num_labels=1)
                judge.config.pad_token_id = tokenizer.pad_token_id or tokenizer.eos_token_id
                trainer = RewardTrainer(
                    model=judge, args=RewardConfig(output_dir=folder, **common), processing_class=tokenizer,
                    train_dataset=Dataset.from_list(rows[: BATCH * (updates + 1)]), callbacks=[times],
                )  # fmt: skip
            torch.cuda.reset_peak_memory_stats()
            trainer.train()
        seconds = np.diff(times.ends)
        line = {"peer": f"trl {name}", "pairs_per_s": round(BATCH * len(seconds) / seconds.sum(), 1)}
        line |= {"seconds": seconds.round(3).tolist(), "micro": micro}
        print(json.dumps(line | {"peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)}), flush=True)


def _pairs(data: Path) -> list[Any]:
    from unmdpo.data import PairRule, load_comparisons  # noqa: PLC0415

    pairing = PairRule(pairs="all", min_gap=1, most=30)
    rows = list(load_comparisons(str(data / "arena-bench-v1.jsonl.gz"), split="all", pairing=pairing))
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["run", "trl"])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("what", nargs="*", default=["dpo", "reward"])
    parser.add_argument("--template")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--micro", type=int, default=16, help="TRL's pairs in a microbatch")
    given = parser.parse_args()
    if given.command == "run":
        whole_run(given.model, given.data.resolve(), given.template, given.jobs)
    else:
        trl(given.model, given.data, given.what, given.updates, given.micro)


if __name__ == "__main__":
    main()
