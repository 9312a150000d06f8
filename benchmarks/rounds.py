"""A second round on a policy's own answers, on real weights, with a judge that no table uses.

    python -m benchmarks.rounds MODEL DATA STORE

MODEL is a folder; DATA a folder with arena-bench-v1, ultrafeedback-train, pandalm-v1 and alpaca-eval-Qwen-14B-Chat,
all .jsonl.gz. DPO learns from UltraFeedback and answers its prompts four times; a judge that learned from arena-bench
scores the answers, and DPO goes on with them. Beside it DPO trains twice as long on its old pairs. Both are compared
with DPO by judges that were trained on other data.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def recipe(model: str, data: Path) -> dict[str, Any]:
    def trained(name: str, **settings: Any) -> dict[str, Any]:
        return {"train": {"path": str(data / f"{name}.jsonl.gz"), **settings}}

    rule = {"pairs": "all", "min_gap": 1, "most": 30}
    panel = {"size": 400, "seed": 260834, "path": str(data / "alpaca-eval-Qwen-14B-Chat.jsonl.gz")}
    return {
        "name": "rounds",
        "model": {"path": model},
        "data": {"path": str(data / "ultrafeedback-train.jsonl.gz"), "max_length": 1024},
        "training": {"epochs": 2, "batch": 32, "learning_rate": 5e-5, "warmup": 10},
        "policies": {
            "dpo": {"objective": "dpo"},
            "longer": {"objective": "dpo", "training": {"epochs": 4}},
            "second": {
                "objective": "dpo",
                "after": {
                    "policy": "dpo", "judge": trained("arena-bench-v1", pairing=rule), "max_new_tokens": 256,
                    "sampling": {"samples": 4, "temperature": 0.9},
                },
            },
        },
        "evaluation": {
            "baseline": "dpo", "initial": True, "seeds": [42, 17, 7], "max_new_tokens": 256,
            "judges": {"votes": trained("pandalm-v1"), "feedback": trained("ultrafeedback-train")},
            "panels": {"alpaca": panel},
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    given = parser.parse_args()
    given.store.mkdir(parents=True, exist_ok=True)
    place = given.store / "rounds.yaml"
    place.write_text(json.dumps(recipe(str(given.model.resolve()), given.data.resolve())))  # YAML reads JSON
    command = [sys.executable, "-m", "unmdpo", "run", str(place), "--store", str(given.store), "--full"]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
