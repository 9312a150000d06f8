"""Everything of the evaluation guide in one run, on real weights: drawn answers, two judges, and public tasks.

    python -m benchmarks.public MODEL DATA STORE

MODEL is a folder or a GGUF file; DATA a folder with ultrafeedback-train, pandalm-v1 and alpaca-eval-Qwen-14B-Chat, all
.jsonl.gz. The tasks are those of lm-evaluation-harness, with its own prompts and scores, on questions that are made
here in the form of the published ones: GSM8K, ARC and IFEval. So it needs no network, and its scores are not those of
the published questions. Small enough for two cores: it shows that the parts work together, not which policy is better.
"""

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

NAMES = ("Ann", "Ben", "Cleo", "Dev", "Eve")
THINGS = ("apples", "books", "coins", "pens")
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima",
    "Norway": "Oslo", "Kenya": "Nairobi", "Greece": "Athens", "Cuba": "Havana", "Chile": "Santiago", "Iran": "Tehran",
}  # fmt: skip
RULES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Do not use any commas.", "punctuation:no_comma", {}),
    ("Use only lowercase letters.", "change_case:english_lowercase", {}),
    ("Answer in at least 20 words.", "length_constraints:number_words", {"num_words": 20, "relation": "at least"}),
    ("End with the exact words: That is all.", "startend:end_checker", {"end_phrase": "That is all."}),
    ("Put your whole answer in double quotation marks.", "startend:quotation", {}),
)


def sums(count: int) -> Iterable[dict[str, Any]]:
    for i in range(count):
        name, thing, first, more = NAMES[i % 5], THINGS[i % 4], 3 + 7 * i % 11, 2 + 5 * i % 9
        question = f"{name} has {first} {thing} and gets {more} more. How many {thing} does {name} have now?"
        yield {"question": question, "answer": f"{first} + {more} = {first + more}\n#### {first + more}"}


def capitals() -> Iterable[dict[str, Any]]:
    cities = [*CAPITALS.values()]
    for i, (country, city) in enumerate(CAPITALS.items()):
        texts = [cities[(i + step) % len(cities)] for step in (1, 4, 7)]
        texts.insert(i % 4, city)
        choices = {"text": texts, "label": [*"ABCD"]}
        yield {"question": f"What is the capital of {country}?", "choices": choices, "answerKey": "ABCD"[i % 4]}


def instructions() -> Iterable[dict[str, Any]]:
    for i, country in enumerate(CAPITALS):
        rule, name, settings = RULES[i % len(RULES)]
        prompt = f"Tell me something about {country}. {rule}"
        yield {"key": i, "prompt": prompt, "instruction_id_list": [name], "kwargs": [settings]}


def write_tasks(folder: Path) -> dict[str, dict[str, Any]]:
    """The harness's own tasks, with questions of ours in place of the published ones."""
    spec = find_spec("lm_eval")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install 'unmdpo[lm-eval]'")
    theirs, made = Path(spec.origin).parent / "tasks", {"gsm8k": sums(24), "arc_easy": capitals()}
    for name, place, rows in (
        ("gsm8k", "gsm8k/gsm8k.yaml", made["gsm8k"]),
        ("arc_easy", "arc/arc_easy.yaml", made["arc_easy"]),
        ("ifeval", "ifeval/ifeval.yaml", instructions()),
    ):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = dict.fromkeys(("train", "test", "validation"), str(file))
        task: dict[str, Any] = {"include": str(theirs / place), "task": f"{name}_made_here", "dataset_path": "json"}
        task |= {"dataset_name": None, "dataset_kwargs": {"data_files": files}}
        if name == "ifeval":  # 1,280 tokens would take two cores a quarter of an hour for each policy
            task["generation_kwargs"] = {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": 128}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return {"gsm8k_made_here": {"few_shot": 2}, "arc_easy_made_here": {"chat": False}, "ifeval_made_here": {}}


def recipe(model: str, data: Path, folder: Path) -> dict[str, Any]:
    with gzip.open(data / "pandalm-v1.jsonl.gz", "rt") as lines:
        (folder.parent / "votes.jsonl").write_text("".join(islice(lines, 150)))
    panel = {"size": 24, "seed": 260834, "path": str(data / "alpaca-eval-Qwen-14B-Chat.jsonl.gz")}
    votes = {"train": {"path": str(folder.parent / "votes.jsonl"), "max_length": 256, "batch": 16}}
    return {
        "name": "public",
        "model": {"path": model},
        "data": {"path": str(data / "ultrafeedback-train.jsonl.gz"), "max_length": 256},
        "training": {"updates": 6, "batch": 8, "learning_rate": 5e-5, "warmup": 1},
        "policies": {"dpo": {"objective": "dpo"}, "fixed-margin": {"objective": "fixed-margin"}},
        "evaluation": {
            "baseline": "dpo", "initial": True, "max_new_tokens": 48, "panels": {"alpaca": panel},
            "judges": {"votes": votes, "shorter": {"function": "benchmarks.public:shorter"}},
            "sampling": {"samples": 2, "temperature": 0.7, "top_p": 0.9},
            "tasks": write_tasks(folder), "task_folder": str(folder),
        },
    }  # fmt: skip


def shorter(prompts: Any, responses: list[str]) -> list[float]:
    """A second judge that everybody understands."""
    return [-float(len(response)) for response in responses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    given = parser.parse_args()
    tasks = given.store / "tasks"
    tasks.mkdir(parents=True, exist_ok=True)
    place = given.store / "public.yaml"
    place.write_text(json.dumps(recipe(str(given.model.resolve()), given.data.resolve(), tasks.resolve())))
    for command in (("run", "--full"), ("table", "--format", "markdown"), ("report",)):
        argv = [sys.executable, "-m", "unmdpo", command[0], str(place), *command[1:], "--store", str(given.store)]
        if subprocess.run(argv, check=False).returncode:
            sys.exit(1)


if __name__ == "__main__":
    main()
