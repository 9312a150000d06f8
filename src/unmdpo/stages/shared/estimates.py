"""Estimates what one stage will take: tokens, FLOPs, memory and time.

Times follow from the useful FLOP/s that `benchmarks.engine` measured on one H200. An A100 is assumed to reach the same
share of its peak.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    PreTrainedModel,
)

from unmdpo.core.errors import UserError
from unmdpo.engine.adapters import adapted_layers
from unmdpo.engine.cost import (
    USABLE,
    cached_bytes,
    estimate,
    forward_flops,
    largest_pair,
    reached_share,
    reading_memory,
    roomy_tokens,
    working_memory,
    writing_tokens,
)
from unmdpo.engine.models import body, decoder_layers
from unmdpo.engine.settings import AdapterSettings, ComputeSettings, ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.shapes import SHAPES
from unmdpo.engine.text.encoded import longest

H200_USEFUL = 446e12  # FLOP/s when training the 1B model, docs/evidence/performance.md
MEASURED_SHARES = {135e6: 0.47, 1.2e9: 1.0, 8e9: 0.8}  # share of that rate by parameters; the nearest size is used
DECODING_SHARE = 0.28  # of the training rate, one token at a time: 50,400 tokens/s for the 1B model
DECODING_MOST = 59_500  # tokens/s on an H200, however small the model; docs/evidence/performance.md
KNOWN_SHAPES = {  # lets packaged recipes be planned without a network
    "meta-llama/Llama-3.2-1B-Instruct": "1b",
    "meta-llama/Llama-3.1-8B-Instruct": "8b",
    "meta-llama/Llama-3.1-70B-Instruct": "70b",
    "meta-llama/Llama-3.3-70B-Instruct": "70b",
    "Skywork/Skywork-Reward-V2-Llama-3.1-8B": "8b",
    "models/smollm2": "135m",
    "models/arena-judge": "135m",
    "models/judge-arena": "135m",
    "models/judge-feedback": "135m",
    "models/judge-votes": "135m",
}
COMPILING = 12.0  # seconds in the first pass over pairs on a GPU; 9 to 19 were seen, and none in a warm process
KEPT = 2  # checkpoints
MEAN_PROMPT = 490  # tokens, in HelpSteer3
HELD_OUT = 0.05  # where the recipe does not say it and nobody has counted them
READ_TOKENS = 65_536  # in a batch of what is read, such as prompts to embed or answers to judge


@dataclass(frozen=True)
class Cost:
    """The cost of one stage. Zero FLOPs: no model is involved, and the time is negligible."""

    tokens: float = 0.0
    flops: float = 0.0
    memory: float = 0.0  # bytes on each device
    disk: float = 0.0  # bytes of checkpoints and results, at most
    kept: float = 0.0  # bytes of results alone
    ranks: int = 1  # devices that share the model
    checkpointing: bool = False
    decoding: bool = False
    share: float = 1.0  # share of the 1B model's rate that a model of this size reaches in training
    microbatch: int | None = None  # tokens, if pairs are scored or trained on

    def seconds(self, speed: "Speed") -> float:
        if speed.decoding is not None:
            return self.flops / (speed.decoding if self.decoding else speed.useful)
        if not self.decoding:
            compiling = 0.0 if self.microbatch is None else COMPILING
            return compiling + self.flops / (speed.useful * self.share)
        slowest = self.tokens / (DECODING_MOST * speed.useful / H200_USEFUL)
        return max(slowest, self.flops / (speed.useful * DECODING_SHARE))


@dataclass(frozen=True)
class Speed:
    """What a device does in a second."""

    useful: float  # FLOP in training
    decoding: float | None = None  # FLOP when one token is written at a time, if that was measured: on a CPU


@dataclass(frozen=True)
class Estimates:
    """What stages need to estimate their cost on devices with this much `memory`, where `ranks` of them share a
    model."""

    lengths: NDArray[np.int32]  # (n, 3) of the valid training pairs
    prompts: int  # distinct prompts among them
    memory: float
    ranks: int
    compute: ComputeSettings
    held_out: float = HELD_OUT  # prompts for evaluation, as a share of those to train on
    _known: dict[Any, float] = field(default_factory=dict)  # what took long to work out

    @property
    def mean_prompt(self) -> float:
        """Tokens of a prompt."""
        return float(self.lengths[:, 0].mean()) if len(self.lengths) else MEAN_PROMPT

    def scoring(self, model: ModelSource, share: float = 1.0) -> Cost:
        """The cost of log-probabilities for a share of the pairs."""
        shape = meta_model(model)
        tokens, flops, most = share * float(self.lengths.sum()), share * self._pass(shape), self._microbatch(shape)
        memory = _reading_memory(shape, self.ranks) + working_memory(shape, most)
        return Cost(tokens, flops, memory, ranks=self.ranks, share=_size_share(shape), microbatch=most)

    def reading(self, model: ModelSource, tokens: float) -> Cost:
        """The cost of one pass of a model over this many tokens."""
        shape = meta_model(model)
        memory = _reading_memory(shape, self.ranks) + working_memory(shape, READ_TOKENS)
        return Cost(tokens, 2 * parameters(shape) * tokens, memory, ranks=self.ranks, share=_size_share(shape))

    def training_judge(self, model: ModelSource, rank: int | None) -> Cost:
        """The memory that it takes; how many pairs it learns from is known when they are read."""
        shape, adapter = meta_model(model, judge=True), None if rank is None else AdapterSettings(rank=rank)
        memory, checkpointing = self._memory_to_train(shape, adapter)
        trained = parameters(shape) if adapter is None else adapter_size(shape, adapter)
        kept = 4.0 * parameters(shape)
        return Cost(
            memory=memory,
            disk=KEPT * 12.0 * trained + kept,
            kept=kept,
            checkpointing=checkpointing,
            share=_size_share(shape),
            microbatch=self._microbatch(shape),
        )

    def writing(self, model: ModelSource, tokens: float) -> Cost:
        """The cost of generating this many tokens, one at a time."""
        shape = meta_model(model)
        kept = cached_bytes(shape) * writing_tokens(shape, self.memory, cached_bytes(shape), self.ranks)
        memory = _reading_memory(shape, self.ranks) + kept
        return replace(self.reading(model, tokens), memory=memory, decoding=True)

    def training(
        self, model: ModelSource, settings: TrainingSettings, objective: ObjectiveChoice, share: float = 1.0
    ) -> Cost:
        """The cost of training on a `share` of the pairs."""
        shape, slots = meta_model(model), share * len(self.lengths)
        updates = settings.updates or (settings.epochs or 1) * int(slots // settings.batch)
        seen = updates * settings.batch / max(1, len(self.lengths))
        passes = _passes(shape, settings.adapter) + objective.objective.adaptive
        memory, checkpointing = self._memory_to_train(shape, settings.adapter)
        trained = parameters(shape) if settings.adapter is None else adapter_size(shape, settings.adapter)
        exported = _exported(shape, trained, settings.adapter)
        return Cost(
            tokens=seen * float(self.lengths.sum()),
            flops=(passes + checkpointing) * seen * self._pass(shape),
            memory=memory,
            disk=KEPT * 12.0 * trained + exported,
            kept=exported,
            ranks=self.ranks,
            checkpointing=checkpointing,
            share=_size_share(shape),
            microbatch=self._microbatch(shape),
        )

    def _microbatch(self, shape: PreTrainedModel) -> int:
        return self.compute.token_budget or _usual_microbatch(shape, self.memory, self.ranks)

    def _pass(self, shape: PreTrainedModel) -> float:
        """FLOPs of one pass over all pairs. Shapes are cached, so their id is a safe key."""
        if id(shape) not in self._known:
            self._known[id(shape)] = forward_flops(shape, self.lengths)
        return self._known[id(shape)]

    def _memory_to_train(self, shape: PreTrainedModel, adapter: AdapterSettings | None) -> tuple[float, bool]:
        """And whether activations are recomputed."""
        needs = {flag: self._training_memory(shape, flag, adapter) for flag in (False, True)}
        wanted = self.compute.activation_checkpointing
        checkpointing = needs[False] > USABLE * self.memory if wanted is None else wanted
        return needs[checkpointing], checkpointing

    def _training_memory(self, shape: PreTrainedModel, checkpointing: bool, adapter: AdapterSettings | None) -> float:
        """With an adapter, nearly nothing is trained; without one, everything is."""
        four_bit = adapter is not None and adapter.four_bit
        key = (id(shape), checkpointing, adapter is None, four_bit, self.ranks, self.memory)
        if key in self._known:
            return self._known[key]
        needed = estimate(
            _for_training(shape, adapter),
            max(self._microbatch(shape), int(self.lengths.sum(axis=1).max(initial=0))),
            checkpointing=checkpointing,
            row=int(longest(self.lengths).max(initial=0)),
            offload_optimizer=self.compute.offload_optimizer,
            world=self.ranks,
            memory=self.memory,
        )
        packed = 1.4 * parameters(shape) if four_bit else 0.0  # bytes that are saved
        return self._known.setdefault(key, float(needed.total) - packed)

    def largest_pair(self, model: ModelSource, adapter: AdapterSettings | None) -> int:
        """Tokens of the longest pair that trains."""
        shape, offload = _for_training(meta_model(model), adapter), self.compute.offload_optimizer
        return largest_pair(shape, self.memory, offload_optimizer=offload, world=self.ranks)


def _for_training(shape: PreTrainedModel, adapter: AdapterSettings | None) -> PreTrainedModel:
    for parameter in shape.parameters():
        parameter.requires_grad_(adapter is None)
    return shape


@lru_cache(maxsize=64)
def _usual_microbatch(shape: PreTrainedModel, memory: float, ranks: int) -> int:
    """Where all weights are trained; with an adapter there is room for more, which nobody needs."""
    return roomy_tokens(_for_training(shape, None), memory, ranks)


@lru_cache(maxsize=64)
def _reading_memory(shape: PreTrainedModel, ranks: int) -> int:
    return reading_memory(shape, ranks)


@lru_cache(maxsize=16)
def parameters(model: PreTrainedModel) -> int:
    """Of a model without weights, which does not change."""
    return sum(parameter.numel() for parameter in model.parameters())


def adapter_size(model: PreTrainedModel, adapter: AdapterSettings) -> int:
    """Parameters of an adapter beside every linear layer of the decoder, or of its last layers."""
    parts = [body(model)] if adapter.layers is None else adapted_layers(model, adapter)
    linear = [module for part in parts for module in part.modules() if isinstance(module, nn.Linear)]
    return sum(adapter.rank * (layer.in_features + layer.out_features) for layer in linear)


def _passes(model: PreTrainedModel, adapter: AdapterSettings | None) -> float:
    """An update's cost in forward passes. An adapter's own share is small, and gradients end at its first layer."""
    if adapter is None:
        return 3.0
    frozen = len(decoder_layers(model)) - len(adapted_layers(model, adapter))
    return 1.05 + reached_share(model, frozen)


def _exported(model: PreTrainedModel, trained: int, adapter: AdapterSettings | None) -> float:
    """Bytes of a policy on disk: its weights, or a float32 adapter and perhaps merged weights."""
    if adapter is None:
        return 2.0 * trained
    return 4.0 * trained + (2.0 * parameters(model) if adapter.merge else 0.0)


def _size_share(model: PreTrainedModel) -> float:
    size = parameters(model)
    return MEASURED_SHARES[min(MEASURED_SHARES, key=lambda known: abs(np.log(size / known)))]


def meta_model(source: ModelSource, *, judge: bool = False) -> PreTrainedModel:
    """The model's shape, without weights; with a score head, if it is to become a judge."""
    return _built(source.path, source.revision, source.trust_remote_code, judge)


@lru_cache(maxsize=8)
def _built(path: str, revision: str | None, trust: bool, judge: bool) -> PreTrainedModel:
    if path in KNOWN_SHAPES:
        config: Any = LlamaConfig(**SHAPES[KNOWN_SHAPES[path]])
    else:
        try:
            config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"cannot plan for the model '{path}': {reason}") from error
    causal = type(config) in AutoModelForCausalLM._model_mapping or "auto_map" in config.to_dict()
    kind: Any = AutoModelForCausalLM if causal else AutoModel  # a judge may be an encoder
    if judge:
        kind = AutoModelForSequenceClassification
        if type(config) not in kind._model_mapping and "auto_map" not in config.to_dict():
            raise UserError(f"'{path}' cannot become a judge: Transformers has no sequence classifier of its kind")
    with torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config, dtype=torch.bfloat16, trust_remote_code=trust)
    return model
