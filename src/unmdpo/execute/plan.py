"""What a run will cost: tokens, FLOPs and memory of what it trains, and time of every stage as far as it is known."""

import tempfile
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data.panels import panel_size, prompts_in
from unmdpo.engine.cost import USABLE, available
from unmdpo.engine.meta import meta_model, parameters
from unmdpo.engine.models import context_length, load_model
from unmdpo.engine.pairs.proof import Proof, prove
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import device_name, local_device
from unmdpo.engine.rates import PEAKS, matrix_rate, peak_rate
from unmdpo.engine.shapes import pair_lengths
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs
from unmdpo.execute.costs import H200_USEFUL, Cost, longest_pair, training_cost
from unmdpo.stages.comparisons import COMPARISONS_STAGE, read_stage
from unmdpo.stages.encoded import ENCODED_STAGE, MANY_LEFT_OUT
from unmdpo.stages.pilot import PILOT_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.base import Job, Notes
from unmdpo.stages.shared.files import COMPARISONS, PAIRS
from unmdpo.store.runs import runs_of
from unmdpo.store.store import Store

ASSUMED_PAIRS = 10_000
SAMPLED_PAIRS = 512
SMALL_MODEL, SMALL_MODEL_ON_GPU = 2e8, 1e10  # parameters of one that is tried when a run is planned
TRIED_TOKENS = 256  # in what it is tried on
MEMORY = {"h200": 141e9, "h100": 80e9, "a100": 80e9}  # bytes
GPUS = (1, 2, 4, 8, 16, 32, 64)  # that may share one model
CPU_SHARE = 0.35  # of the measured rate: 0.3 when scoring, 0.5 when training
HELD_OUT = 0.05  # prompts for evaluation, as a share of those to train on, where nobody has counted them


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


def count_fitting(run: Pipeline, sizes: Sizes) -> list[str]:
    """A warning if many comparisons, counted in a sample, do not fit in the recipe's number of tokens; raises if none
    does."""
    longest = run.recipe.data.max_length
    if sizes.assumed or read_stage(run.stages).name not in run.finished:
        return []
    count, fitting = int(_notes(run)["comparisons"]), len(sizes.lengths)
    lost = f"of {count:,} comparisons fit in {longest:,} tokens: raise data.max_length, or check the data"
    if not fitting:
        raise UserError(f"none {lost}")
    return [f"only some {fitting:,} {lost}"] if count - fitting > MANY_LEFT_OUT * count else []


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
class PlannedStage:
    name: str
    kind: str
    is_finished: bool
    cost: Cost | None  # of what trains; None: little beside it
    earlier_seconds: float | None  # what a stage of this kind took in this store, on this device


@dataclass(frozen=True)
class Plan:
    stages: list[PlannedStage]
    assumed: list[str]  # what had to be assumed

    @property
    def unfinished(self) -> list[PlannedStage]:
        return [stage for stage in self.stages if not stage.is_finished]

    def seconds(self, useful_flops: float) -> float:
        """Time for the unfinished stages, run one after another."""
        return sum(seconds_of(stage, useful_flops) or 0.0 for stage in self.unfinished)

    @property
    def pilot_share(self) -> float:
        """The share of all training spent on pilots: the price of a learned scale."""
        flops = {stage.name: stage.cost.flops for stage in self.stages if stage.cost is not None}
        pilots = sum(flops.get(stage.name, 0.0) for stage in self.stages if stage.kind == PILOT_STAGE.name)
        return pilots / max(1.0, sum(flops.values()))


def seconds_of(stage: PlannedStage, useful_flops: float) -> float | None:
    """By the rate of training, or by earlier stages; None if nothing says so."""
    trained = None if stage.cost is None or not stage.cost.flops else stage.cost.seconds(useful_flops)
    return trained if trained is not None else stage.earlier_seconds


def useful_flops_of(device: str) -> float:
    """FLOP in a second of training: on a named GPU, or measured on `this` machine. A GPU whose name is known is not
    measured: it may be busy."""
    if device in MEMORY:
        return H200_USEFUL * PEAKS[device] / PEAKS["h200"]
    if device != "this":
        raise UserError(f"unknown device '{device}'; known: this, {', '.join(MEMORY)}")
    here = local_device()
    if here.type != "cuda":
        return CPU_SHARE * matrix_rate(here)
    share = H200_USEFUL / PEAKS["h200"]
    return share * (peak_rate(here) or matrix_rate(here))


def memory_of(device: str) -> float:
    return MEMORY.get(device) or available(local_device())


def plan(run: Pipeline, device: str = "this", sizes: Sizes | None = None, ranks: int | None = None) -> Plan:
    """With as many ranks as the recipe says, or with another number for each model that does not fit on one."""
    sizes = sizes or sizes_of(run)
    memory = memory_of(device)
    earlier = earlier_seconds(run.store) if device == "this" else {}
    stages = []
    for name, stage in run.stages.items():
        cost = training_cost(
            stage, run.recipe.compute, memory, sizes.lengths, run.ranks(stage) if ranks is None else 1
        )
        if ranks is not None and cost is not None and stage.kind.ranked != "never" and cost.memory > USABLE * memory:
            cost = training_cost(stage, run.recipe.compute, memory, sizes.lengths, ranks)
        is_finished = run.find(stage) is not None
        stages.append(PlannedStage(name, stage.kind.name, is_finished, cost, earlier.get(stage.kind.name)))
    return Plan(stages, sizes.assumed)


def earlier_seconds(store: Store) -> dict[str, float]:
    """Kind of stage → what it took in this store, on a device like this one; the median."""
    here = device_name().partition(",")[0]
    places = {place for run in runs_of(store) for place in run.finished}
    artifacts = [store.find(place) for place in places]
    seconds: dict[str, list[float]] = defaultdict(list)
    for artifact in artifacts:
        if artifact is not None and artifact.intact and artifact.manifest["device"].partition(",")[0] == here:
            seconds[artifact.manifest["kind"]].append(float(artifact.manifest["seconds"]))
    return {kind: median(values) for kind, values in seconds.items()}


def gpus_needed(run: Pipeline, device: str, sizes: Sizes | None = None) -> int | None:
    """How many GPUs must share a model so that every training fits; None if 64 are not enough."""
    sizes = sizes or sizes_of(run)
    for gpus in GPUS:
        costs = [stage.cost for stage in plan(run, device, sizes, gpus).stages if stage.cost is not None]
        if max((cost.memory for cost in costs), default=0.0) <= USABLE * memory_of(device):
            return gpus
    return None


def longest_that_trains(run: Pipeline, device: str) -> int:
    """Tokens of the longest pair that policies can be trained on, with a prompt counted once."""
    recipe = run.recipe
    return longest_pair(recipe.model, recipe.training.adapter, recipe.compute, memory_of(device), recipe.compute.ranks)


def too_large(planned: Plan, device: str) -> list[PlannedStage]:
    """The unfinished stages that need more memory than the device has."""
    room = USABLE * memory_of(device)
    return [stage for stage in planned.unfinished if stage.cost is not None and stage.cost.memory > room]


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


def prove_small(run: Pipeline) -> Proof | None:
    """The proof for a model that is on this machine and quickly tried, on pairs of random tokens; None for others."""
    source, device = run.recipe.model, local_device()
    if not Path(source.path).is_dir():
        return None
    shape = meta_model(source)
    if parameters(shape) > (SMALL_MODEL if device.type == "cpu" else SMALL_MODEL_ON_GPU):
        return None
    context = min(context_length(source) or TRIED_TOKENS, TRIED_TOKENS)
    rng, known = np.random.default_rng(0), shape.config.get_text_config().vocab_size

    def ids(most: int) -> NDArray[np.int32]:
        return rng.integers(0, known, max(1, most * context // TRIED_TOKENS)).astype(np.int32)

    pairs = [
        EncodedPair(ids(p), ids(c), ids(r), True) for p, c, r in ((8, 9, 4), (1, 5, 30), (90, 20, 60), (40, 160, 9))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnmdpoWarning)  # the caller tells
        return prove(PairScorer(load_model(source, device=device)), EncodedPairs.of(pairs))
