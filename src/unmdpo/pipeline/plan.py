"""What a run will cost, before it is spent: pairs, tokens, FLOPs, memory and time of every stage.

Lengths are exact once the data is encoded; before that they are drawn from HelpSteer3's distribution and
the plan says so. Times follow from useful FLOP/s measured by `benchmarks.engine` on one H200; an A100 is
taken to reach the same share of its peak.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from unmdpo.catalog import CATALOG
from unmdpo.engine.bench import SHAPES, pair_lengths
from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.flops import forward_flops, matrix_rate
from unmdpo.engine.memory import USABLE, available, estimate
from unmdpo.engine.ranks import local_device
from unmdpo.errors import UserError
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stage import Stage

H200_USEFUL = 446e12  # FLOP/s in training of the 1B model, docs/performance.md
MEASURED_SHARES = {135e6: 0.47, 1.2e9: 1.0, 8e9: 0.8}  # of that, by parameters; the nearest size counts
PEAKS = {"h200": 989e12, "a100": 312e12}  # dense bfloat16, by the vendor
MEMORY = {"h200": 141e9, "a100": 80e9}
CPU_SHARE = 0.1  # of the measured matrix rate
DECODING_SHARE = 0.28  # of the training rate, one token at a time: 50,400 tokens/s of the 1B model
DECODING_MOST = 59_500  # tokens/s on an H200, however small the model; docs/performance.md
KNOWN_SHAPES = {  # so that packaged recipes can be planned without a network
    "meta-llama/Llama-3.2-1B-Instruct": "1b",
    "meta-llama/Llama-3.1-8B-Instruct": "8b",
    "Skywork/Skywork-Reward-V2-Llama-3.1-8B": "8b",
    "models/smollm2": "135m",
    "models/arena-judge": "135m",
}
KNOWN_PAIRS = {"helpsteer3": 36_299, "helpsteer2": 6_766}  # training comparisons of the official data
KNOWN_PROMPTS = {"helpsteer3": 22_756, "helpsteer2": 6_765}
ASSUMED_PAIRS, MEAN_PROMPT = 10_000, 490


@dataclass(frozen=True)
class Cost:
    """What one stage takes. Zero FLOPs: no model is involved, and the time is not worth naming."""

    stage: str
    cached: bool
    tokens: float = 0.0
    flops: float = 0.0
    memory: float = 0.0  # bytes on the device
    checkpointing: bool = False
    decoding: bool = False
    share: float = 1.0  # of the 1B model's rate, that a model of this size reaches in training

    def seconds(self, useful_rate: float) -> float:
        if not self.decoding:
            return self.flops / (useful_rate * self.share)
        slowest = self.tokens / (DECODING_MOST * useful_rate / H200_USEFUL)
        return max(slowest, self.flops / (useful_rate * DECODING_SHARE))


@dataclass(frozen=True)
class Plan:
    costs: list[Cost]
    assumed: list[str]  # what is not known yet

    def seconds(self, useful_rate: float) -> float:
        """Of what is not there yet, one stage after another."""
        return sum(cost.seconds(useful_rate) for cost in self.costs if not cost.cached)

    @property
    def pilot_share(self) -> float:
        """The share of all FLOPs that pilots and their scoring take: the price of a learned scale."""
        pilots = sum(cost.flops for cost in self.costs if cost.stage.startswith("pilot"))
        return pilots / max(1.0, sum(cost.flops for cost in self.costs))


def useful_rate(device: str) -> float:
    """Useful FLOP/s in training: of a named GPU, or of `this` machine."""
    if device in PEAKS:
        return H200_USEFUL * PEAKS[device] / PEAKS["h200"]
    if device != "this":
        raise UserError(f"unknown device '{device}'; known: this, {', '.join(PEAKS)}")
    here = local_device()
    share = H200_USEFUL / PEAKS["h200"] if here.type == "cuda" else CPU_SHARE
    return matrix_rate(here) * share


def plan(run: Run, device: str = "this") -> Plan:
    planner = _Planner(run, MEMORY.get(device) or available(local_device()), run.recipe.compute.ranks)
    return Plan([planner.cost(stage) for stage in run.stages.values()], planner.assumed)


@dataclass(frozen=True)
class Need:
    """What a run takes on GPUs of one kind."""

    device: str
    gpus: int  # that share one model; several policies may be trained side by side
    memory: float  # bytes on each, at most
    hours: float  # of one GPU, all that is not there yet

    @property
    def name(self) -> str:
        return f"{self.device.upper()} ({MEMORY[self.device] / 1e9:.0f} GB)"


def needs(run: Run) -> list[Need]:
    """On each kind of GPU: how many must share a model for it to fit, and for how long they work."""
    return [_need(run, device) for device in PEAKS]


def _need(run: Run, device: str) -> Need:
    for gpus in (1, 2, 4, 8, 16):
        planner = _Planner(run, MEMORY[device], gpus)
        costs = [planner.cost(stage) for stage in run.stages.values()]
        memory = max((cost.memory for cost in costs), default=0.0)
        if memory <= USABLE * MEMORY[device]:
            break
    return Need(device, gpus, memory, Plan(costs, []).seconds(useful_rate(device)) / 3600)


class _Planner:
    """Costs of stages on devices of so much memory, `ranks` of which share a model that is trained."""

    def __init__(self, run: Run, memory: float, ranks: int) -> None:
        self.run, self.memory, self.ranks, self.assumed = run, memory, ranks, list[str]()
        self.lengths, self._passes = self._lengths(), dict[int, float]()

    def _lengths(self) -> NDArray[np.int32]:
        """(n, 3) of the valid training pairs."""
        encoded = self.run.finished.get("encoded")
        if encoded is not None:
            pairs = EncodedPairs.load(encoded.file("pairs.safetensors"))
            valid: NDArray[np.int32] = pairs.lengths[pairs.valid]
            return valid
        comparisons = self.run.finished.get("comparisons")
        data = self.run.recipe.data
        if comparisons is not None:
            count = int(comparisons.manifest["notes"]["comparisons"])
        elif data.path is None and data.source in KNOWN_PAIRS:
            count = KNOWN_PAIRS[data.source]
        else:
            count = ASSUMED_PAIRS
            self.assumed.append(f"{count:,} comparisons")
        self.assumed.append("lengths of HelpSteer3's shape")
        return _drawn(count, data.max_length)

    def _pass(self, model: PreTrainedModel) -> float:
        """FLOPs of one pass over all pairs; models are made once, so their identity will do."""
        if id(model) not in self._passes:
            self._passes[id(model)] = forward_flops(model, self.lengths)
        return self._passes[id(model)]

    def cost(self, stage: Stage) -> Cost:
        cached = self.run.store.find(stage.place) is not None
        made = getattr(self, f"_{stage.kind.name}", None)
        return made(stage, cached) if made is not None else Cost(stage.name, cached)

    def _scoring(self, stage: Stage, cached: bool, share: float = 1.0) -> Cost:
        model = _meta_model(stage.settings["model"])
        tokens, flops = share * float(self.lengths.sum()), share * self._pass(model)
        return Cost(stage.name, cached, tokens, flops, 2.0 * _parameters(model))

    _reference = _scoring

    def _features(self, stage: Stage, cached: bool) -> Cost:
        model = _meta_model(stage.settings["model"])
        prompts = KNOWN_PROMPTS.get(self.run.recipe.data.source, len(self.lengths))
        tokens = float(min(prompts, len(self.lengths)) * MEAN_PROMPT)
        return Cost(stage.name, cached, tokens, 2 * _parameters(model) * tokens, 2.0 * _parameters(model))

    def _training(self, stage: Stage, cached: bool, share: float) -> Cost:
        """`share` of the pairs are trained on."""
        given, model = stage.settings["training"], _meta_model(stage.settings["model"])
        slots = share * len(self.lengths)
        updates = given["updates"] or given["epochs"] * int(slots // given["batch"])
        seen = updates * given["batch"] / max(1, len(self.lengths))
        spec = CATALOG[stage.settings["objective"]]
        passes = (2.05 if given["adapter"] else 3) + spec.batch
        budget, offload = (
            self.run.recipe.compute.token_budget or 16_384,
            self.run.recipe.compute.offload_optimizer,
        )
        needs = {
            flag: _adapter_memory(model, budget, flag, given["adapter"], offload, self.ranks)
            for flag in (False, True)
        }
        checkpointing = needs[False] > USABLE * self.memory
        return Cost(
            stage.name,
            cached,
            tokens=seen * float(self.lengths.sum()),
            flops=(passes + checkpointing) * seen * self._pass(model),
            memory=needs[checkpointing],
            checkpointing=checkpointing,
            share=_size_share(model),
        )

    def _policy(self, stage: Stage, cached: bool) -> Cost:
        return self._training(stage, cached, share=1.0)

    def _pilot(self, stage: Stage, cached: bool) -> Cost:
        folds = stage.settings["folds"]
        trained = self._training(stage, cached, share=1 - 1 / folds)
        scored = self._scoring(stage, cached, share=1 / folds)
        return Cost(
            stage.name, cached, trained.tokens + scored.tokens, trained.flops + scored.flops, trained.memory,
            trained.checkpointing, share=trained.share,
        )  # fmt: skip

    def _generation(self, stage: Stage, cached: bool) -> Cost:
        model = _meta_model(stage.settings["model"])
        tokens = float(stage.inputs["panel"].settings["size"] * stage.settings["max_new_tokens"])
        flops = 2 * _parameters(model) * tokens
        return Cost(stage.name, cached, tokens, flops, 2.0 * _parameters(model), decoding=True)

    def _judgement(self, stage: Stage, cached: bool) -> Cost:
        judge = stage.settings["judge"]
        if judge["path"] is None:
            return Cost(stage.name, cached)
        model = _meta_model({"path": judge["path"], "revision": judge["revision"]})
        written = stage.inputs["generation"].settings["max_new_tokens"]
        tokens = float(stage.inputs["panel"].settings["size"] * (MEAN_PROMPT + written))
        return Cost(stage.name, cached, tokens, 2 * _parameters(model) * tokens, 2.0 * _parameters(model))


@lru_cache(maxsize=4)
def _drawn(count: int, longest: int) -> NDArray[np.int32]:
    return np.array(pair_lengths(count, longest), dtype=np.int32)


def _adapter_memory(
    model: PreTrainedModel, budget: int, checkpointing: bool, adapter: Any, offload: bool, ranks: int
) -> float:
    """With an adapter nearly nothing is trained; without one, everything is."""
    for parameter in model.parameters():
        parameter.requires_grad_(adapter is None)
    needed = estimate(model, budget, checkpointing=checkpointing, offload_optimizer=offload, world=ranks)
    return float(needed.total)


def _parameters(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _size_share(model: PreTrainedModel) -> float:
    size = _parameters(model)
    return MEASURED_SHARES[min(MEASURED_SHARES, key=lambda known: abs(np.log(size / known)))]


def _meta_model(settings: Mapping[str, Any]) -> PreTrainedModel:
    return _built(settings["path"], settings.get("revision"), settings.get("gguf_file"))


@lru_cache(maxsize=8)
def _built(path: str, revision: str | None, gguf_file: str | None) -> PreTrainedModel:
    """The model's shape without its weights."""
    if path in KNOWN_SHAPES:
        config: Any = LlamaConfig(**SHAPES[KNOWN_SHAPES[path]])
    else:
        more = {} if gguf_file is None else {"gguf_file": gguf_file}
        try:
            config = AutoConfig.from_pretrained(path, revision=revision, **more)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the model '{path}' cannot be planned for: {reason}") from error
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.bfloat16
        )
    return model
