"""Trains a judge outside this project's engine: TRL's RewardTrainer on scored answers of other models.

    python -m benchmarks.arena_judge MODEL arena-bench-v1.jsonl.gz OUT [--check ultrafeedback-eval.jsonl.gz]

MODEL is a folder with an instruction-tuned model. A fifth of the prompts is held out by hash. Prints, and writes to
OUT/accuracy.json, the share of held-out pairs that the judge orders as the scores do, and what length alone would
reach. Needs trl and datasets.
"""

import argparse
import gzip
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmdpo.data.identity import Message, prompt_hash
from unmdpo.engine.inference.judges import RewardModel
from unmdpo.engine.settings import ModelSource

PAIRS_OF_A_PROMPT, SEED = 24, 42


@dataclass(frozen=True)
class Pair:
    prompt: str
    better: str
    worse: str
    gap: float

    @property
    def is_held_out(self) -> bool:
        return int(prompt_hash((Message("user", self.prompt),))[:8], 16) % 5 == 0

    def to_trl(self) -> dict[str, list[dict[str, str]]]:
        def turn(role: str, content: str) -> list[dict[str, str]]:
            return [{"role": role, "content": content}]

        answers = {"chosen": turn("assistant", self.better), "rejected": turn("assistant", self.worse)}
        return {"prompt": turn("user", self.prompt)} | answers


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def arena_pairs(path: Path) -> list[Pair]:
    """At most PAIRS_OF_A_PROMPT pairs per prompt, with scores that differ by at least one."""
    answers: dict[str, list[tuple[float, str]]] = {}
    for row in lines(path):
        mean = sum(row["scores"]) / len(row["scores"])
        answers.setdefault(row["prompt"], []).append((mean, row["response"]))
    rng, pairs = random.Random(SEED), list[Pair]()
    for prompt, scored in answers.items():
        candidates = [
            Pair(prompt, max(a, b)[1], min(a, b)[1], abs(a[0] - b[0]))
            for a, b in itertools.combinations(scored, 2)
            if abs(a[0] - b[0]) >= 1
        ]
        pairs += rng.sample(candidates, min(PAIRS_OF_A_PROMPT, len(candidates)))
    return pairs


def feedback_pairs(path: Path) -> list[Pair]:
    return [
        Pair(row["prompt"][-1]["content"], row["chosen"][-1]["content"], row["rejected"][-1]["content"], gap)
        for row in lines(path)
        if (gap := row["score_chosen"] - row["score_rejected"]) > 0
    ]


def train(model: str, pairs: Sequence[Pair], out: Path, batch: int, rate: float) -> int:
    """Trains the judge and returns how many pairs were short enough to train on."""
    from datasets import Dataset  # noqa: PLC0415 - only needed here
    from trl import RewardConfig, RewardTrainer  # noqa: PLC0415

    cuda = torch.cuda.is_available()
    settings = RewardConfig(
        output_dir=str(out / "trainer"), num_train_epochs=1, per_device_train_batch_size=batch,
        learning_rate=rate, lr_scheduler_type="cosine", warmup_steps=10, max_length=1024, bf16=cuda,
        gradient_checkpointing=False, logging_steps=10, save_strategy="no", report_to="none", seed=SEED,
        pad_token="<|endoftext|>", model_init_kwargs={"dtype": "float32"}, use_cpu=not cuda,
    )  # fmt: skip
    rows = Dataset.from_list([pair.to_trl() for pair in pairs])
    trainer = RewardTrainer(model=model, args=settings, train_dataset=rows)
    trainer.train()
    trainer.save_model(str(out))
    return len(trainer.train_dataset)


def accuracy(judge: RewardModel, pairs: Sequence[Pair]) -> dict[str, float]:
    """Accuracy of the judge, of the judge on clear pairs, and of `longer is better`."""
    prompts = [(Message("user", pair.prompt),) for pair in pairs]
    better, worse = (
        torch.tensor(judge(prompts, [getattr(pair, side) for pair in pairs])) for side in ("better", "worse")
    )
    right = (better > worse).float()
    clear = torch.tensor([pair.gap >= 3 for pair in pairs])
    longer = [len(pair.better) > len(pair.worse) for pair in pairs]
    return {
        "pairs": len(pairs),
        "accuracy": float(right.mean()),
        "accuracy where scores differ by 3 or more": float(right[clear].mean()),
        "accuracy of length alone": sum(longer) / len(longer),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--check", type=Path, help="pairs of another kind, to see how well the judge generalizes")
    parser.add_argument("--pairs", type=int, help="train on only this many")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-5)
    given = parser.parse_args()
    pairs = arena_pairs(given.data)
    training = [pair for pair in pairs if not pair.is_held_out]
    random.Random(SEED).shuffle(training)
    trained = train(given.model, training[: given.pairs], given.out, given.batch, given.rate)
    judge = RewardModel(ModelSource(path=str(given.out)))
    results: dict[str, Any] = {"trained on": trained}
    results["held out"] = accuracy(judge, [pair for pair in pairs if pair.is_held_out])
    if given.check is not None:
        results["elsewhere"] = accuracy(judge, feedback_pairs(given.check))
    (given.out / "accuracy.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
