"""A small model folder, preference files with strengths and votes, and recipes over them."""

import json
import os
import random
import signal

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.test_engine_logprobs import tiny
from unmdpo.recipe import Recipe

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def longest(prompts, responses):
    """A judge."""
    return [float(len(response.split())) for response in responses]


def broken_judge(prompts, responses):
    raise RuntimeError("out of order")


def deadly_judge(prompts, responses):
    os.kill(os.getpid(), signal.SIGKILL)


def write_model(folder):
    words = ["<pad>", "<end>", "<user>", "<assistant>", *(f"w{i}" for i in range(60))]
    word_level = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_level, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    tiny("llama, tied", "sdpa", torch.float32).save_pretrained(folder)
    return folder


def write_data(path, prompts=24, seed=0):
    """HelpSteer3's shape: two comparisons for each prompt, votes, four domains."""
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
    """Small, but with every part."""
    described = {
        "name": "small",
        "model": {"path": str(folder / "model")},
        "data": {
            "source": "helpsteer3", "path": str(folder / "data.jsonl"), "max_length": 64,
            "validation": {"fraction": 0.25},
        },
        "training": {"updates": 2, "batch": 8, "learning_rate": 1e-3, "warmup": 1},
        "pilots": {"folds": 2, "updates": 2},
        "scales": {"seq": {"estimator": "pooled"}, "ln": {"estimator": "pooled", "length_normalized": True}},
        "policies": {
            "dpo": {"objective": "dpo"},
            "unm-wr": {"objective": "unm-wr", "scale": "seq"},
            "ulnm-wr": {"objective": "ulnm-wr", "scale": "ln"},
        },
        "evaluation": {
            "baseline": "dpo",
            "panels": {"one": {"size": 3, "seed": 1}, "two": {"size": 2, "seed": 2}},
            "judge": {"function": "tests.pipeline_world:longest"},
            "max_new_tokens": 4,
            "initial": True,
        },
    }  # fmt: skip
    return Recipe.model_validate(described | changes)


def world(folder):
    write_model(folder / "model")
    write_data(folder / "data.jsonl")
    return folder
