"""Estimates what a run will cost: tokens, FLOPs, memory and time of every stage."""

import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data.panels import panel_size, prompts_in
from unmdpo.engine.cost import USABLE, available
from unmdpo.engine.models import context_length, load_model
from unmdpo.engine.pairs.proof import Proof, prove
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import local_device
from unmdpo.engine.rates import PEAKS, matrix_rate, narrow_rate, peak_rate
from unmdpo.engine.shapes import pair_lengths
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs
from unmdpo.stages.data import COMPARISONS_STAGE, ENCODED_STAGE, MANY, read_stage
from unmdpo.stages.pilots import PILOT_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.base import Job, Notes, Stage
from unmdpo.stages.shared.estimates import H200_USEFUL, HELD_OUT, Cost, Estimates, Speed, meta_model, parameters
from unmdpo.stages.shared.files import COMPARISONS, PAIRS

ASSUMED_PAIRS = 10_000
SAMPLED_PAIRS = 512
SMALL, SMALL_ON_GPU = 2e8, 1e10  # parameters of a model that is tried when a run is planned
LONGEST = 256  # tokens in what it is tried on
MEMORY = {"h200": 141e9, "h100": 80e9, "a100": 80e9}
GPUS = (1, 2, 4, 8, 16, 32, 64)  # that may share one model
CPU_SHARE = 0.35  # of the measured rates: 0.3 when scoring, 0.5 when training


@dataclass(frozen=True)
class Sizes:
    lengths: NDArray[np.int32]  # (n, 3) of the pairs that can be trained on: prompt, chosen, rejected
    prompts: int  # distinct ones
    assumed: list[str]  # what is neither known nor measured


def sizes_of(run: Pipeline) -> Sizes:
    """Writes nothing, and reaches for nothing on the Hub."""
    data, finished = run.recipe.data, run.finished
    if ENCODED_STAGE.name in finished:
        lengths = PAIRS.load(finished[ENCODED_STAGE.name]).valid_lengths
        return Sizes(lengths, min(int(_notes(run)["prompts"]), len(lengths)), [])
    read = finished.get(COMPARISONS_STAGE.name) or finished.get(read_stage(run.stages).name)
    if read is not None:
        return _sampled(run, read.path, read.manifest["notes"])
    if all(part.path is not None and part.path.local is not None for part in data.parts.values()):
        with tempfile.TemporaryDirectory() as name:
            stage, folder = read_stage(run.stages), Path(name)
            notes = Job(stage, folder, {}, run.recipe.compute, lambda _: None).do()
            return _sampled(run, folder, notes)
    assumed = ["lengths as in HelpSteer3"]
    if data.official is not None:
        pairs, prompts = data.official.pairs, data.official.prompts
    else:
        pairs = prompts = ASSUMED_PAIRS
        assumed = [f"{ASSUMED_PAIRS:,} comparisons", *assumed]
    return Sizes(_like_helpsteer3(pairs, data.max_length), prompts, assumed)


def count_fitting(run: Pipeline) -> list[str]:
    """A warning if many comparisons, counted in a sample, do not fit in the recipe's number of tokens; raises if none
    does."""
    sizes, longest = sizes_of(run), run.recipe.data.max_length
    if sizes.assumed:
        return []
    count, fitting = int(_notes(run)["comparisons"]), len(sizes.lengths)
    lost = f"of {count:,} comparisons fit in {longest:,} tokens: raise data.max_length, or check the data"
    if not fitting:
        raise UserError(f"none {lost}")
    return [f"only some {fitting:,} {lost}"] if count - fitting > MANY * count else []


def _notes(run: Pipeline) -> Notes:
    read = run.finished.get(COMPARISONS_STAGE.name) or run.artifact(read_stage(run.stages).name)
    notes: Notes = read.manifest["notes"]
    return notes


def _sampled(run: Pipeline, folder: Path, notes: Notes) -> Sizes:
    """Of comparisons that are read but not encoded: all of them, as long as some of them are."""
    count, prompts, longest = int(notes["comparisons"]), int(notes["prompts"]), run.recipe.data.max_length
    model = run.recipe.model
    if not Path(model.path).is_dir():
        return Sizes(_like_helpsteer3(count, longest), prompts, ["lengths as in HelpSteer3"])
    rows = COMPARISONS.read(folder / COMPARISONS.name)
    chosen = np.linspace(0, len(rows) - 1, min(SAMPLED_PAIRS, len(rows))).astype(int)
    encoder = Encoder.of(model, min(longest, context_length(model) or longest))
    pairs = EncodedPairs.of(encoder.encode([rows[int(row)] for row in chosen]))
    fitting = round(count * float(pairs.valid.mean()))
    return Sizes(np.resize(pairs.valid_lengths, (fitting, 3)), min(prompts, fitting), [])


def _like_helpsteer3(count: int, longest: int) -> NDArray[np.int32]:
    return np.array(pair_lengths(count, longest), dtype=np.int32)


@dataclass(frozen=True)
class StageCost:
    stage: str
    kind: str
    cached: bool
    cost: Cost


@dataclass(frozen=True)
class Plan:
    stages: list[StageCost]
    assumed: list[str]  # what had to be assumed

    def seconds(self, speed: Speed) -> float:
        """Time for the unfinished stages, run one after another."""
        return sum(stage.cost.seconds(speed) for stage in self.stages if not stage.cached)

    @property
    def pilot_share(self) -> float:
        """The share of all FLOPs spent on pilots and their scoring: the price of a learned scale."""
        pilots = sum(stage.cost.flops for stage in self.stages if stage.kind == PILOT_STAGE.name)
        return pilots / max(1.0, sum(stage.cost.flops for stage in self.stages))


def speed_of(device: str) -> Speed:
    """On a named GPU, or measured on `this` machine. A GPU whose name is known is not measured: it may be busy."""
    if device in MEMORY:
        return Speed(H200_USEFUL * PEAKS[device] / PEAKS["h200"])
    if device != "this":
        raise UserError(f"unknown device '{device}'; known: this, {', '.join(MEMORY)}")
    here = local_device()
    if here.type != "cuda":
        return Speed(CPU_SHARE * matrix_rate(here), CPU_SHARE * narrow_rate())
    share = H200_USEFUL / PEAKS["h200"]
    return Speed(share * (peak_rate(here) or matrix_rate(here)))


def plan(run: Pipeline, device: str = "this", sizes: Sizes | None = None) -> Plan:
    return _planned(run, sizes or sizes_of(run), MEMORY.get(device) or available(local_device()))


def gpus_needed(run: Pipeline, device: str, sizes: Sizes | None = None) -> int | None:
    """How many GPUs must share a model so that every stage fits; None if 64 are not enough."""
    memory = MEMORY.get(device) or available(local_device())
    for gpus in GPUS:
        planned = _planned(run, sizes or sizes_of(run), memory, gpus)
        if max(stage.cost.memory for stage in planned.stages) <= USABLE * memory:
            return gpus
    return None


def longest_that_trains(run: Pipeline, device: str, sizes: Sizes) -> int:
    """Tokens of the longest pair that policies can be trained on, with a prompt counted once."""
    memory, recipe = MEMORY.get(device) or available(local_device()), run.recipe
    estimates = Estimates(sizes.lengths, sizes.prompts, memory, recipe.compute.ranks, recipe.compute)
    return estimates.largest_pair(recipe.model, recipe.training.adapter)


def too_large(planned: Plan, device: str) -> list[StageCost]:
    """The unfinished stages that need more memory than the device has."""
    memory = MEMORY.get(device) or available(local_device())
    return [stage for stage in planned.stages if not stage.cached and stage.cost.memory > USABLE * memory]


def _planned(run: Pipeline, sizes: Sizes, memory: float, gpus: int | None = None) -> Plan:
    """With as many ranks as the recipe says; or with `gpus` for each model that does not fit on one."""
    estimates = Estimates(sizes.lengths, sizes.prompts, memory, 1, run.recipe.compute, _held_out(run))
    stages = []
    for name, stage in run.stages.items():
        cost = _cost(stage, replace(estimates, ranks=1 if gpus is not None else run.ranks(stage)))
        if gpus is not None and stage.kind.ranked != "never" and cost.memory > USABLE * memory:
            cost = _cost(stage, replace(estimates, ranks=gpus))
        stages.append(StageCost(name, stage.kind.name, run.find(stage) is not None, cost))
    return Plan(stages, sizes.assumed)


def _held_out(run: Pipeline) -> float:
    """Prompts for evaluation, as a share of those to train on."""
    share = run.recipe.data.validation.fraction
    return HELD_OUT if share is None else share / (1 - share)


def panel_prompts(run: Pipeline, panel: str, prompts: int | None) -> int | None:
    """How many prompts a panel has, of a run with so many `prompts` to train on; None if that cannot be told."""
    assert run.recipe.evaluation is not None
    size, path = run.recipe.evaluation.panels[panel].size, run.recipe.evaluation.panels[panel].path
    if path is not None:
        found = prompts_in(path)
        return None if found is None else panel_size(size, found)
    if not isinstance(size, int) and prompts is None:
        return None
    return panel_size(size, round(_held_out(run) * (prompts or 0)))


def _cost(stage: Stage[Any], estimates: Estimates) -> Cost:
    return Cost() if stage.kind.cost is None else stage.kind.cost(estimates, stage)


def prove_small(run: Pipeline) -> Proof | None:
    """The proof for a model that is on this machine and quickly tried, on pairs of random tokens; None for others."""
    source, device = run.recipe.model, local_device()
    if not Path(source.path).is_dir():
        return None
    shape = meta_model(source)
    if parameters(shape) > (SMALL if device.type == "cpu" else SMALL_ON_GPU):
        return None
    context = min(context_length(source) or LONGEST, LONGEST)
    rng, known = np.random.default_rng(0), shape.config.get_text_config().vocab_size

    def ids(most: int) -> NDArray[np.int32]:
        return rng.integers(0, known, max(1, most * context // LONGEST)).astype(np.int32)

    pairs = [
        EncodedPair(ids(p), ids(c), ids(r), True) for p, c, r in ((8, 9, 4), (1, 5, 30), (90, 20, 60), (40, 160, 9))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnmdpoWarning)  # the caller tells
        return prove(PairScorer(load_model(source, device=device)), EncodedPairs.of(pairs))
