"""The engine's speed for `docs/evidence/performance.md`: `unmdpo bench` with options for developers.

    python -m benchmarks.engine [--model 1b|8b|135m|tiny] [--budget 16384] [--lora 64] [--profile] …

Prints one JSON line each for scoring and training. Needs a GPU for the large shapes.
"""

import argparse
import json

import torch

from unmdpo.engine.bench import BenchSettings, bench
from unmdpo.engine.pairs import flash, scorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="1b")
    parser.add_argument("--budget", type=int)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--lora", type=int)
    parser.add_argument("--objective", default="dpo")
    parser.add_argument("--offload-optimizer", action="store_true")
    parser.add_argument("--checkpointing", action=argparse.BooleanOptionalAction)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--kernel-options", help="FlexAttention's block sizes as JSON; {} for its defaults")
    parser.add_argument("--without-flash", action="store_true", help="FlexAttention, instead of FlashAttention")
    given = parser.parse_args()
    if given.without_flash:
        flash.CAPABILITY = {2: (99, 0), 4: (99, 0)}
    if given.kernel_options is not None:
        scorer.HOPPER_BLOCKS = json.loads(given.kernel_options)
    settings = BenchSettings(
        model=given.model,
        batch=given.batch,
        updates=given.updates,
        token_budget=given.budget,
        max_length=given.max_length,
        lora=given.lora,
        offload_optimizer=given.offload_optimizer,
        checkpointing=given.checkpointing,
        objective=given.objective,
        compile=not given.no_compile,
    )
    profiler = torch.profiler.profile() if given.profile else None
    for line in bench(settings):
        print(json.dumps(line), flush=True)
        if profiler is not None and line["what"] == "score":
            profiler.start()
    if profiler is not None:
        profiler.stop()
        sort = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=sort, row_limit=30, max_name_column_width=90))


if __name__ == "__main__":
    main()
