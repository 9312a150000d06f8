"""The engine on a CPU compared with a plain training loop: both responses padded, all logits kept.

    python -m benchmarks.plain_loop

Uses small Llamas with random weights, as in the demo and the tests; prints median milliseconds per update.
"""

import copy
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import softplus
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from unmdpo.engine.pairs.padding import PaddedBatch
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.settings import ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs, Tokens
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.schedule import batch_of
from unmdpo.engine.training.trainer import Trainer

UPDATES, WARM_UP, PAIRS = 12, 2, 512


@dataclass(frozen=True)
class World:
    vocabulary: int
    width: int
    layers: int
    prompt: int  # median tokens
    response: int
    batch: int

    def model(self) -> PreTrainedModel:
        torch.manual_seed(0)
        return LlamaForCausalLM(  # type: ignore[no-untyped-call]
            LlamaConfig(
                vocab_size=self.vocabulary, hidden_size=self.width, intermediate_size=3 * self.width,
                num_hidden_layers=self.layers, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=512, tie_word_embeddings=True,
            )
        )  # fmt: skip

    def pairs(self) -> EncodedPairs:
        rng = np.random.default_rng(0)

        def ids(median: int) -> Tokens:
            count = max(2, int(median * np.exp(rng.normal(0, 0.5))))
            return rng.integers(0, self.vocabulary, count).astype(np.int32)

        prompt, response = self.prompt, self.response
        return EncodedPairs.of(
            EncodedPair(ids(prompt), ids(response), ids(response), valid=True) for _ in range(PAIRS)
        )


WORLDS = {"demo": World(1024, 128, 4, 24, 16, 32), "tests": World(64, 32, 3, 6, 6, 8)}


def median_ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds[WARM_UP:])


def ours(world: World, model: PreTrainedModel, data: TrainingData) -> float:
    settings = TrainingSettings(updates=UPDATES, batch=world.batch)
    trainer, seconds = Trainer(PairScorer(model), data, ObjectiveChoice(name="dpo"), settings), []
    for _ in range(UPDATES):
        started = time.perf_counter()
        trainer.step()
        seconds.append(time.perf_counter() - started)
    return median_ms(seconds)


def plain(world: World, model: PreTrainedModel, data: TrainingData) -> float:
    assert data.reference is not None
    optimizer, seconds = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1), []
    model.train()
    for update in range(UPDATES):
        started = time.perf_counter()
        slots = batch_of(update, len(data), world.batch, seed=42)
        batch = PaddedBatch.of(data.pairs.select(slots))
        logits = model(input_ids=batch.tokens, attention_mask=batch.mask, use_cache=False).logits
        logs = logits.float().log_softmax(-1).flatten(0, 1)[batch.predictor, batch.target]
        sums = logs.new_zeros(2 * len(slots)).index_add(0, batch.response, logs).view(-1, 2)
        ratio = (sums - data.reference[slots]) @ torch.tensor([1.0, -1.0])
        optimizer.zero_grad()
        softplus(-0.05 * ratio).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return median_ms(seconds)


def main() -> None:
    for name, world in WORLDS.items():
        model, pairs = world.model(), world.pairs()
        data = TrainingData(pairs, torch.ones(PAIRS), reference=score(PairScorer(model), pairs))
        print(f"{name}: ours {ours(world, copy.deepcopy(model), data):.0f} ms, ", end="", flush=True)
        print(f"plain {plain(world, copy.deepcopy(model), data):.0f} ms")


if __name__ == "__main__":
    main()
