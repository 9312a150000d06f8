"""What a model's tokenizer makes of some comparisons, before anything is trained."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from unmdpo.audit.look import Spread, Tokens
from unmdpo.data.comparison import Comparison
from unmdpo.engine.models import longest_input
from unmdpo.engine.pairs.encode import EncodedPairs, Encoder, longest
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.sharding import empty_model


class ModelFacts(NamedTuple):
    parameters: int
    context: int | None  # None: its configuration does not say


def facts_of(source: ModelSource) -> ModelFacts:
    """The model's size and context, from its configuration alone."""
    shape = empty_model(source, torch.bfloat16)
    return ModelFacts(sum(parameter.numel() for parameter in shape.parameters()), longest_input(shape.config))


def measure(source: ModelSource, rows: Sequence[Comparison]) -> Tokens:
    encoder = Encoder.of(source)
    lengths = EncodedPairs.of(encoder.encode(rows)).lengths
    return Tokens(
        sampled=len(rows),
        longest=longest(lengths),
        prompt=Spread.of(lengths[:, 0].tolist()),
        response=Spread.of(lengths[:, 1:].ravel().tolist()),
        remarks=tuple(encoder.remarks()),
    )
