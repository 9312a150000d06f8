"""A model that comes in one quantized file, once, as a folder that loads in half a second."""

import torch

from unmdpo.engine.models import load_model, load_tokenizer
from unmdpo.pipeline.common import model_source
from unmdpo.pipeline.stage import Job, Notes


def converted(job: Job) -> Notes:
    """The weights of a GGUF file, dequantized to bfloat16, with its tokenizer and chat template."""
    source = model_source(job.settings["model"])
    tokenizer = load_tokenizer(source)
    model = load_model(source, device=torch.device("cpu"), dtype=torch.bfloat16)
    model.save_pretrained(job.folder / "model")
    tokenizer.save_pretrained(job.folder / "model")
    return {"parameters": model.num_parameters()}
