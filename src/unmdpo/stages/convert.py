"""Converts a model in one quantized file, once, into a folder that loads in half a second."""

from typing import Any

import torch

from unmdpo.core.settings import Strict
from unmdpo.engine.models import load_model, load_tokenizer
from unmdpo.engine.settings import ModelSource
from unmdpo.stages.shared.base import CONVERTED, Graph, Job, Kind, Notes, PinnedModel, Stage
from unmdpo.stages.shared.files import MODEL


class ConvertedSettings(Strict):
    model: PinnedModel


def converted_model(graph: Graph, model: ModelSource, suffix: str = "") -> dict[str, Stage[Any]]:
    """The input for stages that load the model: its conversion, if it is a GGUF file."""
    if model.gguf_file is None:
        return {}
    settings = ConvertedSettings(model=graph.pin_model(model))
    return {CONVERTED: graph.stage(CONVERTED_STAGE, settings, {}, f"{CONVERTED_STAGE.name}{suffix}")}


def convert(job: Job[ConvertedSettings]) -> Notes:
    """Saves a GGUF file's weights, dequantized to bfloat16, with its tokenizer and chat template."""
    source, folder = job.settings.model, job.folder / MODEL.name
    tokenizer = load_tokenizer(source)
    model = load_model(source, device=torch.device("cpu"), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"parameters": model.num_parameters()}


CONVERTED_STAGE = Kind(CONVERTED, convert)
