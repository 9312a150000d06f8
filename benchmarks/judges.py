"""Judges trained outside this project's engine: TRL's RewardTrainer on public pairs, each judge on data of its own.

    python -m benchmarks.judges train arena|feedback|votes MODEL DATA OUT
    python -m benchmarks.judges panel DATA FILE

MODEL is a folder with an instruction-tuned model, DATA the folder of the files that docs/evidence/results.md lists.
`arena` learns from scored answers, `feedback` from UltraFeedback's pairs, `votes` from PandaLM's votes and
AlpacaEval's annotations. Prompts are held out by hash, a fifth of them, and three fifths of AlpacaEval's; `panel`
writes the latter to a file. `train` prints, and writes to OUT/accuracy.json, the share of held-out pairs of every set
that the judge orders as their labels do, and what length alone would reach. Needs trl and datasets.
"""

import argparse
import gzip
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmdpo.data.identity import Message, prompt_hash
from unmdpo.engine.inference.reward_model import RewardModel
from unmdpo.engine.settings import ModelPlace, ModelSource

PAIRS_OF_A_PROMPT, SEED = 16, 42
ANNOTATED = ("Qwen-14B-Chat", "FuseChat-Llama-3.1-8B-Instruct", "FuseChat-Llama-3.2-1B-Instruct")


@dataclass(frozen=True)
class Pair:
    prompt: str
    better: str
    worse: str
    held_out: int = 1  # fifths of the prompts of its kind

    @property
    def is_held_out(self) -> bool:
        return bucket(self.prompt) < self.held_out

    def to_trl(self) -> dict[str, list[dict[str, str]]]:
        def turn(role: str, content: str) -> list[dict[str, str]]:
            return [{"role": role, "content": content}]

        answers = {"chosen": turn("assistant", self.better), "rejected": turn("assistant", self.worse)}
        return {"prompt": turn("user", self.prompt)} | answers


def bucket(prompt: str) -> int:
    """One of five, by the prompt's hash."""
    return int(prompt_hash((Message("user", prompt),))[:8], 16) % 5


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def arena_pairs(data: Path) -> Iterator[Pair]:
    """At most PAIRS_OF_A_PROMPT pairs per prompt, with scores that differ by at least one."""
    answers: dict[str, list[tuple[float, str]]] = {}
    for row in lines(data / "arena-bench-v1.jsonl.gz"):
        mean = sum(row["scores"]) / len(row["scores"])
        answers.setdefault(row["prompt"], []).append((mean, row["response"]))
    rng = random.Random(SEED)
    for prompt, scored in answers.items():
        candidates = [
            Pair(prompt, max(a, b)[1], min(a, b)[1])
            for a, b in itertools.combinations(scored, 2)
            if abs(a[0] - b[0]) >= 1
        ]
        yield from rng.sample(candidates, min(PAIRS_OF_A_PROMPT, len(candidates)))


def feedback_pairs(data: Path) -> Iterator[Pair]:
    for name in ("train", "eval"):
        for row in lines(data / f"ultrafeedback-{name}.jsonl.gz"):
            if row["score_chosen"] > row["score_rejected"]:
                yield Pair(row["prompt"][-1]["content"], row["chosen"][-1]["content"], row["rejected"][-1]["content"])


def vote_pairs(data: Path) -> Iterator[Pair]:
    """Pairs with a majority, and annotated pairs that are not close to a tie."""
    panel = set(panel_prompts(data))
    for row in lines(data / "pandalm-v1.jsonl.gz"):
        votes = [row[f"annotator{number}"] for number in (1, 2, 3)]
        prompt = "\n\n".join(filter(None, (row["instruction"], row["input"])))
        if not {prompt, row["instruction"]} & panel and votes.count(1) != votes.count(2):
            first, second = str(row["response1"]), str(row["response2"])  # one is the boolean true
            yield Pair(prompt, *((first, second) if votes.count(1) > votes.count(2) else (second, first)))
    for model in ANNOTATED:
        for row in lines(data / f"alpaca-eval-{model}.jsonl.gz"):
            if row["preference"] is not None and abs(row["preference"] - 1.5) > 0.1:
                first, second = row["output_1"], row["output_2"]
                answers = (first, second) if row["preference"] < 1.5 else (second, first)
                yield Pair(row["instruction"], *answers, held_out=3)


def panel_prompts(data: Path) -> list[str]:
    """AlpacaEval's instructions that no judge has seen."""
    rows = lines(data / f"alpaca-eval-{ANNOTATED[0]}.jsonl.gz")
    return [row["instruction"] for row in rows if bucket(row["instruction"]) < 3]


SETS: dict[str, tuple[Callable[[Path], Iterator[Pair]], int]] = {  # and epochs: some are small
    "arena": (arena_pairs, 1),
    "feedback": (feedback_pairs, 3),
    "votes": (vote_pairs, 2),
}


def train(model: str, pairs: Sequence[Pair], out: Path, epochs: int) -> int:
    """Trains the judge and returns how many pairs were short enough to train on."""
    from datasets import Dataset  # noqa: PLC0415 - only needed here
    from trl import RewardConfig, RewardTrainer  # noqa: PLC0415

    cuda = torch.cuda.is_available()
    settings = RewardConfig(
        output_dir=str(out / "trainer"), num_train_epochs=epochs, per_device_train_batch_size=16, learning_rate=2e-5,
        lr_scheduler_type="cosine", warmup_steps=10, max_length=1024, bf16=cuda, gradient_checkpointing=False,
        logging_steps=10, save_strategy="no", report_to="none", seed=SEED, pad_token="<|endoftext|>",
        model_init_kwargs={"dtype": "float32"}, use_cpu=not cuda,
    )  # fmt: skip
    rows = Dataset.from_list([pair.to_trl() for pair in pairs])
    trainer = RewardTrainer(model=model, args=settings, train_dataset=rows)
    trainer.train()
    trainer.save_model(str(out))
    return len(trainer.train_dataset)


def accuracy(judge: RewardModel, pairs: Sequence[Pair]) -> dict[str, float]:
    """Of the judge, and of `longer is better`."""
    prompts = [(Message("user", pair.prompt),) for pair in pairs]
    better, worse = (
        torch.tensor(judge(prompts, [getattr(pair, side) for pair in pairs])) for side in ("better", "worse")
    )
    longer = [len(pair.better) > len(pair.worse) for pair in pairs]
    right = float((better > worse).float().mean())
    return {"pairs": len(pairs), "accuracy": right, "accuracy of length alone": sum(longer) / len(longer)}


def train_and_check(name: str, model: str, data: Path, out: Path) -> None:
    pairs, epochs = SETS[name]
    training = [pair for pair in pairs(data) if not pair.is_held_out]
    random.Random(SEED).shuffle(training)
    results: dict[str, Any] = {"trained on": train(model, training, out, epochs)}
    judge = RewardModel(ModelSource(path=ModelPlace(out)))
    for other, (read, _) in SETS.items():
        results[other] = accuracy(judge, [pair for pair in read(data) if pair.is_held_out])
    (out / "accuracy.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    print(json.dumps(results, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    training = commands.add_parser("train")
    training.add_argument("name", choices=SETS)
    training.add_argument("model")
    training.add_argument("data", type=Path)
    training.add_argument("out", type=Path)
    panel = commands.add_parser("panel")
    panel.add_argument("data", type=Path)
    panel.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.command == "train":
        train_and_check(given.name, given.model, given.data, given.out)
    else:
        rows = [json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in panel_prompts(given.data)]
        given.file.write_text("".join(rows), "utf-8")


if __name__ == "__main__":
    main()
