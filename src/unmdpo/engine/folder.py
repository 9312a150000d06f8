"""A trained policy as a Hugging Face model folder, with a card that says where it came from."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from unmdpo.engine.ranks import Ranks
from unmdpo.errors import UserError
from unmdpo.files import replacing, sha256

CARD = "README.md"
CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Provenance:
    """What someone using the model should know. Values are printed as they are."""

    name: str
    base_model: str
    objective: str
    recipe: str  # YAML
    data: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def export_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, provenance: Provenance
) -> None:
    """Writes the folder atomically: it appears complete or not at all. All ranks must call this."""
    ranks, weights = Ranks.current(), gathered(model)
    if ranks.first:
        try:
            with replacing(folder) as aside:
                model.save_pretrained(aside, state_dict=weights)
                tokenizer.save_pretrained(aside)
                sums = {path.name: sha256(path) for path in sorted(aside.iterdir())}
                (aside / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n", "utf-8")
                (aside / CARD).write_text(model_card(provenance, sums), "utf-8")
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise UserError(f"{folder}: the model could not be written: {reason}") from error
    ranks.wait()


def gathered(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Every full weight, on the CPU. Only the first rank gets them; the others get an empty dict."""
    first, weights = Ranks.current().first, {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        if first:
            weights[name] = whole.detach().cpu()
    return weights


def model_card(provenance: Provenance, checksums: dict[str, str]) -> str:
    p = provenance
    header = ["---", f"base_model: {json.dumps(p.base_model)}", "library_name: transformers"]
    header += ["pipeline_tag: text-generation", "tags: [unmdpo, preference-optimization, dpo]", "---"]
    lines = [
        *header,
        "",
        f"# {p.name}",
        "",
        f"`{p.base_model}` trained with `{p.objective}` by unmdpo.",
        *_table("Data", p.data),
        *_table("Prompt scale", p.scale),
        *_table("Metrics at the end of training", p.metrics),
        "",
        "## Recipe",
        "",
        "```yaml",
        p.recipe.strip(),
        "```",
        *_table("SHA-256", checksums),
    ]
    return "\n".join(lines) + "\n"


def _table(title: str, values: dict[str, Any]) -> list[str]:
    if not values:
        return []
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return ["", f"## {title}", "", "| | |", "|---|---|", *rows]


def _cell(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
