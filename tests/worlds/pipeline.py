"""A small model folder, preference files with strengths and votes, and recipes that use them."""

import json
import random
import sys

import torch

from tests.worlds.models import tiny, word_tokenizer
from unmdpo.execute import execute
from unmdpo.execute.progress import View
from unmdpo.recipe import Recipe
from unmdpo.results.verify import verify


def write_model(folder, name="llama, tied"):
    word_tokenizer().save_pretrained(folder)
    tiny(name, "sdpa", torch.float32).save_pretrained(folder)
    return folder


def write_data(path, prompts=24, seed=0):
    """HelpSteer3's shape: two comparisons per prompt, votes, four domains."""
    rng = random.Random(seed)

    def text(low, high):
        return " ".join(f"w{rng.randrange(60)}" for _ in range(rng.randint(low, high)))

    rows = []
    for number in range(prompts):
        context = [{"role": "user", "content": f"w{number % 60} w{number // 60} {text(1, 6)}"}]
        for _ in range(2):
            label = rng.choice([-3, -2, -1, 1, 2, 3, 0])
            rows.append(
                {
                    "domain": ["general", "code"][number % 2], "language": "english", "context": context,
                    "response1": text(1, 8), "response2": text(1, 8), "overall_preference": label,
                    "individual_preference": [
                        {"score": max(-3, min(3, (label or 1) + rng.choice([-1, 0, 1]))) or 1,
                         "reasoning": "", "feedback1": "", "feedback2": ""}
                        for _ in range(3)
                    ],
                }
            )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe(folder, **changes):
    """A small recipe with every part."""
    described = {
        "name": "small",
        "model": {"path": str(folder / "model")},
        "data": {
            "source": "helpsteer3", "path": str(folder / "data.jsonl"), "max_length": 64,
            "validation": {"fraction": 0.25},
        },
        "training": {"updates": 2, "batch": 8, "learning_rate": 1e-3, "warmup": 1},
        "pilots": {"folds": 2, "updates": 2},
        "scales": {
            "seq": {"estimator": "pooled", "settings": {"updates": 15}},
            "ln": {"estimator": "pooled", "length_normalized": True, "settings": {"updates": 15}},
        },
        "policies": {
            "dpo": {"objective": "dpo"},
            "unm-wr": {"objective": "unm-wr", "scale": "seq"},
            "ulnm-wr": {"objective": "ulnm-wr", "scale": "ln"},
        },
        "evaluation": {
            "baseline": "dpo",
            "panels": {"one": {"size": 3, "seed": 1}, "two": {"size": 2, "seed": 2}},
            "judge": {"function": "tests.worlds.judges:longest"},
            "max_new_tokens": 4,
            "initial": True,
        },
    }  # fmt: skip
    return Recipe.model_validate(described | changes)


def world(folder):
    write_model(folder / "model")
    write_data(folder / "data.jsonl")
    return folder


class Seen(View):
    def __init__(self):
        self.events = []

    def cached(self, stage):
        self.events.append((stage, "cached"))

    def finished(self, stage, seconds):
        self.events.append((stage, "finished"))

    def progress(self, stage, text):
        self.events.append((stage, text))

    def retried(self, stage, why):
        self.events.append((stage, why))


def events(run, **how):
    seen = Seen()
    execute(run, view=seen, **how)
    return seen.events


def judged_by(function):
    """A small evaluation with one of the world's judges."""
    judge = {"function": f"tests.worlds.judges:{function}"}
    return {"baseline": "dpo", "panels": {"one": {"size": 2, "seed": 1}}, "judge": judge, "max_new_tokens": 2}


def problems(run):
    return [finding for finding in verify(run) if finding.problem]


def judged_by_function(folder, judge, **changes):
    """One policy, judged by the function with this name."""
    evaluation = {"baseline": "dpo", "panels": {"one": {"size": 2, "seed": 1}}, "max_new_tokens": 2}
    return recipe(
        folder, evaluation=evaluation | {"judge": {"function": judge}}, policies={"dpo": {"objective": "dpo"}},
        scales={}, **changes,
    )  # fmt: skip


WAIT = 240  # seconds for a small run in a process of its own


def small_run(folder, tmp_path):
    """The command of a run that trains one policy."""
    file = tmp_path / "small.yaml"
    file.write_text(recipe(folder, scales={}, policies={"dpo": {"objective": "dpo"}}, evaluation=None).to_yaml())
    return [sys.executable, "-m", "unmdpo", "run", str(file), "--store", str(tmp_path / "store")]
