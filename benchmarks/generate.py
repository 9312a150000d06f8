"""How fast policies answer, compared with `model.generate` on all prompts at once and one at a time.

    python -m benchmarks.generate [--model 1b] [--prompts 192] [--new-tokens 256] [--loop 2]

Random weights rarely end a response, so both write the full number of tokens. Needs a GPU for large shapes.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.trl_peer import words_tokenizer
from unmdpo.data.identity import Message
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.ranks import local_device
from unmdpo.engine.shapes import SHAPES
from unmdpo.engine.text.encode import Encoder

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="1b", choices=[*SHAPES])
    parser.add_argument("--prompts", type=int, default=192)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--loop", type=int, default=2, help="number of prompts in the plain loop")
    given = parser.parse_args()
    shape, device = SHAPES[given.model], local_device()
    torch.manual_seed(0)
    with device:
        config = LlamaConfig(**shape, max_position_embeddings=8192)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = LlamaForCausalLM._from_config(config, dtype=dtype, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    tokenizer = words_tokenizer(shape["vocab_size"])
    tokenizer.chat_template = TEMPLATE
    words = torch.randint(0, shape["vocab_size"] - 2, (given.prompts, 128)).tolist()
    prompts = [(Message("user", " ".join(f"t{word}" for word in row)),) for row in words]
    generator = Generator(model, Encoder(tokenizer), GenerationSettings(max_new_tokens=given.new_tokens))

    def ours() -> int:
        return sum(made.tokens for batch in generator.generate(prompts) for made in batch)

    def loop() -> int:
        written = 0
        for row in words[: given.loop]:
            ids = torch.tensor([row], device=device)
            made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=given.new_tokens)
            written += made.shape[1] - ids.shape[1]
        return written

    def batch() -> int:
        ids = torch.tensor(words, device=device)
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=given.new_tokens)
        return int(made.numel() - ids.numel())

    for name, job in {
        "ours": ours,
        "ours, again": ours,
        "model.generate, one batch": batch,
        "model.generate, one batch, again": batch,
        "plain loop": loop,
        "plain loop, again": loop,
    }.items():
        print(json.dumps({"what": name, "model": given.model} | _timed(job)), flush=True)


def _timed(job: Callable[[], int]) -> dict[str, float]:
    began = time.perf_counter()
    tokens = job()
    seconds = time.perf_counter() - began
    return {"tokens": tokens, "seconds": round(seconds, 2), "tokens_per_s": round(tokens / seconds)}


if __name__ == "__main__":
    main()
