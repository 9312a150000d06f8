"""The whole method against one DPO run of TRL's: from a folder of pairs and a model to a policy, on one GPU.

    python -m benchmarks.method [--pairs 1536] [--pilots 5 3] [--updates 12]

Ours is `unmdpo run`: reading, encoding, reference, pilots on folds with out-of-fold scores, embeddings, the scale, and
the final policy, as one command. TRL's is its `DPOTrainer`, tuned (`benchmarks.trl_peer`), its reference pass counted.
Both start as new processes from the same files: a 1B shape with random weights, HelpSteer3's lengths. Times are wall
clock. Prints one JSON line each, with an extrapolation to HelpSteer3's 36,299 pairs and 150 updates: updates and
passes in proportion, everything else as measured. What `unmdpo plan` foresaw is told beside it. Needs a GPU, trl,
datasets and liger-kernel.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.trl_peer import BATCH, VARIANTS, UpdateTimes, words_tokenizer
from unmdpo.engine.shapes import SHAPES, pair_lengths

OFFICIAL_PAIRS, OFFICIAL_UPDATES = 36_299, 150
SCORED = 1 / 3  # of the cost of training on a pair
TEMPLATE = "{% for m in messages %}{{ m.content }} {% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}"


def prepare(folder: Path, pairs: int) -> None:
    """The model and the pairs, as files."""
    shape, rng = SHAPES["1b"], np.random.default_rng(1)
    vocabulary = shape["vocab_size"]
    tokenizer = words_tokenizer(vocabulary)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    more = {"bos_token_id": None, "pad_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
    config = LlamaConfig(**shape, max_position_embeddings=8192, **more)
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder / "model")

    def words(count: int) -> str:
        return " ".join(f"t{i}" for i in rng.integers(0, vocabulary - 2, count))

    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as lines:
        for number, (p, c, r) in enumerate(pair_lengths(pairs, 4096)):
            row = {"prompt": words(p), "chosen": words(c - 1), "rejected": words(r - 1), "strength": 1 + number % 3}
            lines.write(json.dumps(row) + "\n")


def ours(folder: Path, pilots: int, updates: int, pairs: int) -> dict[str, Any]:
    recipe, store = folder / f"recipe-{pilots}.json", folder / f"store-{pilots}"
    described = {
        "name": f"method-{pilots}",
        "model": {"path": str(folder / "model")},
        "data": {"path": str(folder / "pairs.jsonl"), "source": "preference"},
        "training": {"updates": updates, "batch": BATCH},
        "pilots": {"folds": pilots, "updates": updates},
        "scales": {"ln": {"estimator": "pooled", "length_normalized": True}},
        "policies": {"ulnm-wr": {"objective": "ulnm-wr", "scale": "ln"}},
    }
    recipe.write_text(json.dumps(described), "utf-8")
    command = [sys.executable, "-m", "unmdpo", "plan", str(recipe), "--store", str(store)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    planned = next(line for line in told.splitlines() if line.startswith("left to do"))
    seconds = timed(["-m", "unmdpo", "run", str(recipe), "--store", str(store)])
    stages, update = dict[str, float](), 0.0
    for path in store.glob("artifacts/*/*/manifest.json"):
        manifest = json.loads(path.read_text("utf-8"))
        stages[manifest["name"]] = round(manifest["seconds"], 1)
        if manifest["kind"] == "policy":
            lines = (path.parent / "throughput.log").read_text("utf-8").splitlines()
            update = statistics.median(json.loads(line)["throughput/update_s"] for line in lines)
    shutil.rmtree(store)

    def work(count: int, each: int) -> float:
        """Seconds of updates and passes, at the final policy's pace."""
        return ((pilots + 1) * each * BATCH + SCORED * 2 * count) * update / BATCH

    at_full_size = seconds - work(pairs, updates) + work(OFFICIAL_PAIRS, OFFICIAL_UPDATES)
    return {
        "what": f"ours, {pilots} pilots",
        "planned": planned,
        "seconds": round(seconds, 1),
        "update_s": round(update, 3),
        "at_full_size_h": round(at_full_size / 3600, 2),
        "stages": stages,
    }


def trl(folder: Path, updates: int, pairs: int) -> dict[str, Any]:
    told = folder / "trl.json"
    seconds = timed(["-m", "benchmarks.method", "--trl", str(folder), "--updates", str(updates)])
    phases = json.loads(told.read_text("utf-8"))
    rest = seconds - phases["reference_s"] - updates * phases["update_s"]
    scale = OFFICIAL_PAIRS / pairs
    at_full_size = rest + scale * phases["reference_s"] + OFFICIAL_UPDATES * phases["update_s"]
    return {"what": "trl", "seconds": round(seconds, 1), **phases, "at_full_size_h": round(at_full_size / 3600, 2)}


def train_with_trl(folder: Path, updates: int) -> None:
    """One DPO run as its users would tune it; leaves the policy and the times of its phases."""
    from datasets import Dataset  # noqa: PLC0415 - only needed here
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from trl import DPOConfig, DPOTrainer  # noqa: PLC0415

    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text("utf-8").splitlines()]
    rows = [
        {"prompt": row["prompt"], "chosen": " " + row["chosen"], "rejected": " " + row["rejected"]} for row in rows
    ]
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    times, given = UpdateTimes(), VARIANTS["tuned"]
    arguments = DPOConfig(
        output_dir=str(folder / "trl"), max_length=4096, max_steps=updates, beta=0.05, bf16=True,
        gradient_accumulation_steps=BATCH // given["per_device_train_batch_size"], learning_rate=1e-6,
        save_strategy="no", report_to=[], disable_tqdm=True, **given,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = None
    began = time.perf_counter()
    trainer = DPOTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        callbacks=[times],
    )  # fmt: skip
    trainer.get_train_dataloader()  # which scores the reference, if the constructor has not
    reference = time.perf_counter() - began
    trainer.train()
    trainer.save_model(str(folder / "trl"))
    phases = {"reference_s": round(reference, 1), "update_s": round(float(np.median(np.diff(times.ends))), 2)}
    (folder / "trl.json").write_text(json.dumps(phases), "utf-8")


def timed(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1536)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--pilots", type=int, nargs="+", default=[5, 3])
    parser.add_argument("--trl", type=Path, help="only TRL's part, in a folder that is prepared")
    given = parser.parse_args()
    if given.trl is not None:
        train_with_trl(given.trl, given.updates)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, given.pairs)
        peer = trl(folder, given.updates, given.pairs)
        print(json.dumps(peer), flush=True)
        for pilots in given.pilots:
            made = ours(folder, pilots, given.updates, given.pairs)
            ratios = {
                "of_trl": round(made["seconds"] / peer["seconds"], 2),
                "of_trl_at_full_size": round(made["at_full_size_h"] / peer["at_full_size_h"], 2),
            }
            print(json.dumps(made | ratios), flush=True)


if __name__ == "__main__":
    main()
