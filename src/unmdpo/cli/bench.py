"""`unmdpo bench`: measures how fast this machine trains and scores."""

import json
from typing import Annotated

import typer

from unmdpo.cli.output import say


def bench(
    model: Annotated[str, typer.Option(help="135m, 1b, 8b, tiny, or a model's folder or Hub name.")] = "1b",
    batch: Annotated[int, typer.Option(min=1, help="Pairs in a global batch.")] = 128,
    updates: Annotated[int, typer.Option(min=1, help="Updates to time, after one warm-up.")] = 3,
    budget: Annotated[
        int | None, typer.Option(min=64, help="Tokens per microbatch; default: chosen for the device.")
    ] = None,
    max_length: Annotated[int, typer.Option(min=32, help="Most tokens of a prompt with its response.")] = 4096,
    lora: Annotated[int | None, typer.Option(min=1, help="Train a LoRA adapter of this rank.")] = None,
    offload: Annotated[bool, typer.Option("--offload-optimizer", help="Keep moments in host memory.")] = False,
    checkpointing: Annotated[
        bool | None,
        typer.Option("--checkpointing/--no-checkpointing", help="Recompute activations; default: if needed."),
    ] = None,
    objective: Annotated[str, typer.Option(help="Any objective that needs no learned scale.")] = "dpo",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Time training and scoring on random pairs with HelpSteer3's lengths."""
    from unmdpo.engine.bench import BenchSettings
    from unmdpo.engine.bench import bench as run
    from unmdpo.engine.settings import ObjectiveChoice

    ObjectiveChoice(name=objective).objective  # noqa: B018 - refuses unknown names
    settings = BenchSettings(model, batch, updates, budget, max_length, lora, offload, checkpointing, objective)
    for line in run(settings, lambda text: say(text, err=True)):
        say(json.dumps(line) if as_json else _sentence(line))


def _sentence(line: dict[str, object]) -> str:
    parts = [
        f"{line['what']}: {line['pairs_per_s']} pairs/s",
        f"{line['tokens_per_s']:,} tokens/s",
        f"{line['useful_tflops']} useful TFLOP/s",
        f"{100 * float(str(line['share_of_matrix_rate'])):.0f}% of this device's matrix rate",
    ]
    if "peak_gib" in line:
        parts.append(f"{line['peak_gib']} GiB")
    return " · ".join(parts)
