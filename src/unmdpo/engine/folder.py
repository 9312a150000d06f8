"""A trained policy as a Hugging Face model folder, with a card that says where it came from."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from unmdpo.core.errors import UserError
from unmdpo.core.files import replacing, sha256
from unmdpo.engine.adapters import full_tensor, save_adapter
from unmdpo.engine.models import compute_dtype
from unmdpo.engine.ranks import Ranks, local_device

if TYPE_CHECKING:
    from unmdpo.engine.adapters import PeftModel

CARD = "README.md"
CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Provenance:
    """What someone using the model should know. Values are printed as they are."""

    name: str
    base_model: str
    objective: str
    recipe: str  # YAML
    library: str = "transformers"
    data: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def export_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    provenance: Provenance,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Writes the model, or other `weights` for it. All ranks must call this."""
    found = gathered(model.state_dict() if weights is None else weights, model)
    _export(folder, tokenizer, provenance, lambda aside: model.save_pretrained(aside, state_dict=found))


def export_adapter(
    adapted: "PeftModel",
    masters: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    provenance: Provenance,
) -> None:
    """Writes only the adapter, for `PeftModel.from_pretrained` or `AutoModelForCausalLM`. All ranks must call this."""
    found = {name: full_tensor(value.detach()).cpu() for name, value in masters.items()}
    _export(folder, tokenizer, provenance, lambda aside: save_adapter(adapted, aside, found))


def _export(
    folder: Path, tokenizer: PreTrainedTokenizerBase, provenance: Provenance, save: Callable[[Path], None]
) -> None:
    """Writes the folder atomically: it appears complete or not at all."""
    ranks = Ranks.current()
    if ranks.first:
        try:
            with replacing(folder) as aside:
                aside.mkdir(exist_ok=True)
                save(aside)
                tokenizer.save_pretrained(aside)
                (aside / CARD).write_text(model_card(provenance, write_checksums(aside)), "utf-8")
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise UserError(f"{folder}: the model could not be written: {reason}") from error
    ranks.wait()


def write_checksums(folder: Path) -> dict[str, str]:
    sums = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != CARD}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n", "utf-8")
    return sums


def push(folder: Path, name: str) -> str:
    """Uploads an exported policy to the Hub, as a private repository if it is new; returns its address."""
    from huggingface_hub import HfApi  # noqa: PLC0415 - only needed here
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        place = HfApi().create_repo(name, private=True, exist_ok=True)
        HfApi().upload_folder(repo_id=name, folder_path=folder)
    except (HfHubHTTPError, OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{name} could not be uploaded ({first}); is `hf auth login` done? It lies in {folder}"
        ) from error
    return str(place)


def gathered(weights: Mapping[str, torch.Tensor], model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Every full weight, on the CPU, in the precision that the model is used in: float32 shards are masters. Only the
    first rank gets them; the others get an empty dict."""
    ranks, found = Ranks.current(), dict[str, torch.Tensor]()
    dtype, tied = compute_dtype(local_device()), getattr(model, "all_tied_weights_keys", {})
    for name, value in weights.items():
        full = full_tensor(value.detach())
        if ranks.first and not (name in tied and tied[name] in weights):  # a tied weight is written once
            rounded = full.to(dtype) if ranks.world > 1 and full.dtype == torch.float32 else full
            found[name] = rounded.cpu()
    return found


def model_card(provenance: Provenance, checksums: dict[str, str]) -> str:
    p = provenance
    header = ["---", f"base_model: {json.dumps(p.base_model)}", f"library_name: {p.library}"]
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
