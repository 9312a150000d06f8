"""Every layout on real weights and real pairs: its error, the model's own, the verdict, speed and memory.

    python -m benchmarks.layouts MODEL DATA [--max-length 2048] [--updates 4] [--dtype float32] [--template FILE.jinja]

Prints JSON lines: one for each layout, one for each mistake that is planted, which must be refused, and,
with updates, one for training in each layout.
"""

import argparse
import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from unmdpo.data import load_comparisons
from unmdpo.engine.cost import estimate, microbatch_tokens
from unmdpo.engine.models import load_model
from unmdpo.engine.pairs import proof
from unmdpo.engine.pairs.head import Head
from unmdpo.engine.pairs.layout import Layout
from unmdpo.engine.pairs.logprobs import token_log_probs
from unmdpo.engine.pairs.packing import PackedBatch, Runs
from unmdpo.engine.pairs.sample import Sample
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer, compile_layers
from unmdpo.engine.ranks import local_device
from unmdpo.engine.settings import ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.reward import (
    JudgeObjective,
    RewardSettings,
    open_reward_scorer,
    padding_token,
    reward_pair,
)
from unmdpo.engine.training.trainer import Trainer

ROWS = 2000
GIB = 2**30


def _shifted(batch: PackedBatch) -> PackedBatch:
    """Rejected responses begin one position late."""
    rejected = batch.runs.shared_end > 0
    return replace(batch, positions=batch.positions + rejected)


def _leaking(batch: PackedBatch) -> PackedBatch:
    """Rejected responses see the last token of the chosen one."""
    rejected = batch.runs.shared_end > 0
    runs = Runs(batch.runs.own - rejected.long(), batch.runs.shared, batch.runs.shared_end)
    return replace(batch, runs=runs)


def _forgetting(batch: PackedBatch) -> PackedBatch:
    """Rejected responses do not see the prompt's first token, as with a window that is too narrow."""
    rejected = batch.runs.shared_end > 0
    return replace(batch, runs=batch.runs._replace(shared=batch.runs.shared + rejected.long()))


def _unscaled(head: Head, layer: nn.Linear, hidden: Tensor, target: Tensor) -> Tensor:
    """Logits too small by a hundredth, as with a scale that was not noticed."""
    return token_log_probs(0.99 * hidden, layer.weight, target, head.softcap, layer.bias)


LAID_OUT: dict[str, Callable[[PackedBatch], PackedBatch]] = {
    "a shifted position": _shifted,
    "a token of the other response": _leaking,
    "a window too narrow by one": _forgetting,
}
MISTAKES = (*LAID_OUT, "a missing scale")


@contextlib.contextmanager
def planted(mistake: str) -> Iterator[None]:
    """While active, packed pairs are scored with this mistake."""
    right = PackedBatch.of.__func__  # type: ignore[attr-defined]

    def wrong(cls: type[PackedBatch], *args: Any, **more: Any) -> PackedBatch:
        return LAID_OUT[mistake](right(cls, *args, **more))

    place: Any = (PackedBatch, "of", classmethod(wrong)) if mistake in LAID_OUT else (Head, "log_probs", _unscaled)
    with mock.patch.object(*place):
        yield


def errors(scorer: PairScorer, pairs: EncodedPairs) -> Iterator[dict[str, Any]]:
    """What the proof finds of each layout, not only of the first that is right."""
    sample = Sample(pairs, microbatch_tokens(scorer))
    trial = proof.Trial(scorer, sample, sample.plain(scorer))
    trial._agrees_sharply("padded")  # so that the truth is known
    for layout in scorer.layouts:
        found = None if layout == "single" else trial._scores(layout, training=True)
        error = None if found is None else float((found - trial._truth).abs().max())
        right = trial.error_of(layout) is not None
        yield {
            "layout": layout,
            "right": right,
            "error": error,
            "own_error": trial.own_error,
            "bound": float((trial._chance / trial._units).max()),
            "per_root_token": None if found is None else float(((found - trial._truth).abs() / sample.roots).max()),
            "why": trial.passed_over.get(layout),
        }


def refused(scorer: PairScorer, pairs: EncodedPairs) -> Iterator[dict[str, Any]]:
    for mistake in MISTAKES:
        with planted(mistake), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = proof.prove(scorer, pairs)
        yield {"planted": mistake, "used_instead": found.layout, "why": found.passed_over.get("packed")}


def trained(
    open_scorer: Callable[[], PairScorer], pairs: EncodedPairs, layout: Layout, updates: int, what: str = "policy"
) -> dict[str, Any]:
    """Pairs per second of training a policy or a judge in a layout, the first two updates not counted."""
    scorer = open_scorer()
    scorer.use(layout)
    scorer.proven = True
    started = time.perf_counter()
    if scorer.device.type == "cuda":
        compile_layers(scorer)
    reference = score(scorer, pairs)
    settings = TrainingSettings(updates=updates + 2, batch=128, learning_rate=1e-6)
    trainer = Trainer(
        scorer,
        TrainingData(pairs, torch.ones(len(pairs)), reference),
        JudgeObjective() if what == "judge" else ObjectiveChoice(name="dpo"),
        settings,
    )
    for _ in range(2):
        trainer.step()
    warm = time.perf_counter() - started
    if scorer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(updates):
        began = time.perf_counter()
        trainer.step()
        seconds.append(time.perf_counter() - began)
    line = {
        "trained": what,
        "layout": layout,
        "pairs_per_s": round(128 * updates / sum(seconds), 1),
        "seconds": [round(each, 3) for each in seconds],
        "warm_up_s": round(warm, 1),
        "microbatch": trainer.budget,
    }
    if scorer.device.type == "cuda":
        line["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
        expected = estimate(scorer.model, trainer.budget, checkpointing=False, compiles=scorer.compiles)
        line["estimated_gib"] = round(expected.total / GIB, 2)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--dtype")
    parser.add_argument("--template")
    parser.add_argument("--layouts", default="flash,packed,padded,masked")
    parser.add_argument("--judge", action="store_true", help="train a judge on the same pairs too")
    given = parser.parse_args()
    source = ModelSource(
        path=given.model, template=None if given.template is None else Path(given.template).read_text()
    )
    rows = list(load_comparisons(given.data, split="all"))[:ROWS]
    pairs = EncodedPairs.of(pair for pair in Encoder.of(source, given.max_length).encode(rows) if pair.valid)
    print(json.dumps({"pairs": len(pairs), "mean_tokens": pairs.lengths.mean(axis=0).round().tolist()}), flush=True)
    dtype = None if given.dtype is None else getattr(torch, given.dtype)
    open_scorer = partial(_opened, source, dtype)
    scorer = open_scorer()
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = proof.prove(scorer, pairs)
    took = round(time.perf_counter() - started, 1)
    print(json.dumps({"proof": found.notes, "passed_over": found.passed_over, "seconds": took}), flush=True)
    for line in (*errors(scorer, pairs), *refused(scorer, pairs)):
        print(json.dumps({"model": Path(given.model).name, "dtype": str(scorer.model.dtype)} | line), flush=True)
    if given.updates:
        for layout in scorer.layouts:
            if layout in given.layouts.split(","):
                print(json.dumps(trained(open_scorer, pairs, layout, given.updates)), flush=True)
    if given.judge:
        encoder = Encoder.of(source)
        pad = padding_token(encoder.tokenizer, source)
        judged = EncodedPairs.of(
            reward_pair([*pair.prompt, *pair.chosen], [*pair.prompt, *pair.rejected], pad)
            for pair in map(pairs.pair, range(len(pairs)))
        )
        open_judge = partial(_opened_judge, source, encoder)
        print(json.dumps(trained(open_judge, judged, found.layout, given.updates, "judge")), flush=True)


def _opened(source: ModelSource, dtype: torch.dtype | None) -> PairScorer:
    torch._dynamo.reset()
    return PairScorer(load_model(source, device=local_device(), **({} if dtype is None else {"dtype": dtype})))


def _opened_judge(source: ModelSource, encoder: Encoder) -> PairScorer:
    torch._dynamo.reset()
    return open_reward_scorer(source, encoder.tokenizer, RewardSettings())[0]


if __name__ == "__main__":
    main()
