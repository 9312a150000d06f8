"""The digest of every file that two small recipes make: all objectives, all estimators, all stages.

    python -m tests.worlds.equal record before.json      # on the commit before a change, on this machine
    python -m tests.worlds.equal compare before.json     # after it: says which files differ

A change that is not meant to change results leaves every digest as it was.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from tests.worlds.models import word_tokenizer
from tests.worlds.pipeline import write_data, write_model
from unmdpo.engine.training.loop import THROUGHPUT
from unmdpo.execute import execute
from unmdpo.objectives.table import OBJECTIVES
from unmdpo.recipe import Recipe
from unmdpo.results.run import open_run
from unmdpo.scale.table import ESTIMATORS
from unmdpo.store.store import Store

PLACE = Path(tempfile.gettempdir()) / "unmdpo-equal"  # rows remember their file, so the place is part of the bytes


def write_world(folder):
    """Two models, a reward model, data in two shapes, prompts in a file."""
    write_model(folder / "model")
    write_data(folder / "data.jsonl", prompts=40)
    write_model(folder / "other-model", "llama, untied")
    rng = random.Random(5)

    def text(words):
        return " ".join(f"w{rng.randrange(60)}" for _ in range(words))

    rows = [
        {"prompt": f"w{i} w{i % 7}", "chosen": text(3 + i % 5), "rejected": text(2 + i % 4), "domain": "ab"[i % 2],
         "score_chosen": 5 + rng.random() * 3, "score_rejected": 1 + rng.random() * 3}
        for i in range(48)
    ]  # fmt: skip
    held = [row | {"prompt": row["prompt"] + " w9"} for row in rows[:12]]
    prompts = [{"instruction": f"w{i} w3"} for i in range(9)]
    for name, content in (("pairs", rows), ("held", held), ("prompts", prompts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    contexts = [json.loads(line)["context"] for line in (folder / "data.jsonl").read_text().splitlines()]
    scales = [{"prompt": context, "q": 0.5 + len(str(context)) % 7 / 4} for context in contexts]
    (folder / "scales.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scales))
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_labels=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(folder / "judge")
    word_tokenizer().save_pretrained(folder / "judge")


def everything(folder):
    """Every objective and every estimator, on one model."""
    scales = {name: {"estimator": name} for name in ESTIMATORS}
    margins = {"tau": 0.5, "levels": [0.5, 1.0, 4.0]}
    scales |= {
        "margins": {"estimator": "pooled", "settings": margins},
        "entropy": {"estimator": "entropy", "settings": {"otherwise": "one"}},  # these votes do not pass its gate
        "given": {"estimator": "given", "settings": {"path": str(folder / "scales.jsonl")}},
        "ln": {"estimator": "pooled", "length_normalized": True},
        "ao": {"estimator": "pooled", "fit": "ao", "centered": False, "penalty": 0.1},
        "pair": {"estimator": "pooled", "unit": "pair", "domains": False},
    }
    policies = {
        name: {"objective": name, **({"scale": "ln" if objective.normalized else "pooled"} if objective.scale else {})}
        for name, objective in OBJECTIVES.items()
    }
    policies |= {f"with-{name}": {"objective": "unm-wr", "scale": name} for name in scales}
    policies |= {
        "margins": {"objective": "unm-wr", "scale": "margins", "settings": margins},
        "ln-ema": {"objective": "ulnm-wr", "scale": "ema"},
        "lora": {"objective": "dpo", "training": {"adapter": {"rank": 2}, "learning_rate": 1e-2, "seed": 7}},
        "epochs": {"objective": "simpo", "settings": {"beta": 2.0}, "training": {"epochs": 2}},
    }
    panels = {"apart": {"size": 2, "seed": 4, "apart": True}, "one": {"size": 4, "seed": 1}}
    return {
        "name": "everything",
        "model": {"path": str(folder / "model")},
        "data": {
            "source": "helpsteer3", "path": str(folder / "data.jsonl"), "max_length": 64,
            "validation": {"fraction": 0.25},
        },
        "training": {"updates": 3, "batch": 8, "learning_rate": 1e-3, "warmup": 1},
        "pilots": {"folds": 3, "updates": 3, "settings": {"tau": 1.0, "levels": None}},
        "scales": scales,
        "policies": policies,
        "evaluation": {
            "baseline": "dpo", "panels": panels, "judge": {"function": "tests.worlds.judges:longest"},
            "max_new_tokens": 4, "initial": True, "opponents": ["unm-wr"],
        },
    }  # fmt: skip


def other(folder):
    """What the first leaves out: another model, a proxy with an adapter, margins, files of prompts, a reward model."""
    return {
        "name": "other",
        "seed": 3,
        "beta": 0.2,
        "model": {"path": str(folder / "other-model")},
        "data": {
            "source": "preference", "path": str(folder / "pairs.jsonl"), "max_length": 128,
            "strength": {"levels": 3, "thresholds": [3.0, 5.0]}, "validation": {"path": str(folder / "held.jsonl")},
        },
        "training": {"epochs": 1, "batch": 8, "learning_rate": 1e-3, "warmup": 1, "schedule": "cosine"},
        "pilots": {
            "folds": 2, "updates": 2, "model": {"path": str(folder / "model")}, "adapter": {"rank": 2},
            "learning_rate": 1e-2, "seed": 5,
        },
        "scales": {"seq": {"estimator": "pooled"}},
        "policies": {"dpo": {"objective": "dpo"}, "unm-wr": {"objective": "unm-wr", "scale": "seq"}},
        "evaluation": {
            "baseline": "dpo", "judge": {"path": str(folder / "judge")}, "max_new_tokens": 4,
            "panels": {
                "held": {"size": 4, "seed": 1},
                "file": {"size": 5, "seed": 2, "path": str(folder / "prompts.jsonl")},
            },
        },
    }  # fmt: skip


def digests(folder):
    """Recipe/stage/file → SHA-256, without what only says how fast it went."""
    write_world(folder)
    made = {}
    with tempfile.TemporaryDirectory() as store:
        for described in (everything(folder), other(folder)):
            run = execute(open_run(Recipe.model_validate(described), Store(Path(store))))
            for stage, artifact in run.finished.items():
                for name, entry in artifact.manifest["files"].items():
                    if name != THROUGHPUT:
                        made[f"{run.recipe.name}/{stage}/{name}"] = entry["sha256"]
    return made


def main(command, path):
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    made, file = digests(PLACE), Path(path)
    if command == "record":
        file.write_text(json.dumps(made, indent=1, sort_keys=True))
        return f"{len(made)} files recorded"
    before = json.loads(file.read_text())
    differ = sorted(name for name in before.keys() & made.keys() if before[name] != made[name])
    new, gone = sorted(made.keys() - before.keys()), sorted(before.keys() - made.keys())
    lines = [*(f"new: {name}" for name in new), *(f"gone: {name}" for name in gone), *differ]
    return "\n".join([*lines, f"{len(differ)} of {len(before)} files differ, {len(new)} new, {len(gone)} gone"])


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
