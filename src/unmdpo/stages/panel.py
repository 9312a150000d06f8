"""Panels: the prompts that policies are judged on, or that the next round's data is made of."""

import warnings
from pathlib import Path

from unmdpo.core.errors import UnmdpoWarning
from unmdpo.core.places import Place
from unmdpo.core.settings import PanelSize
from unmdpo.data.domains import modal_domains
from unmdpo.data.identity import comparable
from unmdpo.data.panels import read_prompts, sample_panel
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import COMPARISONS, PANEL, Panel

EARLIER = "after "  # begins the names of inputs whose prompts a panel leaves out
TRAINING = "training"  # the comparisons that policies learn from


def draw_panel(job: Job, *, size: PanelSize, seed: int, path: Place | None) -> Notes:
    """Draws prompts from comparisons or a file of prompts, stratified by domain."""
    ids: dict[str, str] = {}
    if path is None:
        rows = job.load(COMPARISONS, "comparisons")
        prompts = {row.prompt_hash: row.prompt for row in rows}
        domains = modal_domains(rows)
    else:
        prompts, domains, ids = read_prompts(Path(path))
    earlier_panels = [PANEL.load(artifact) for role, artifact in job.inputs.items() if role.startswith(EARLIER)]
    earlier = {prompt for panel in earlier_panels for prompt in panel.hashes}
    drawn = sample_panel(domains, size, seed, exclude=earlier)
    panel = Panel(
        hashes=drawn,
        prompts=[prompts[name] for name in drawn],
        domains=[domains[name] for name in drawn],
        ids=[ids.get(name, "") for name in drawn],
    )
    job.save(PANEL, panel)
    notes = {"prompts": len(panel), "candidates": len(domains)}
    if TRAINING not in job.inputs:
        return notes
    return notes | {"training_prompts": _training_prompts(job, panel)}


def _training_prompts(job: Job, panel: Panel) -> int:
    """How many of a panel's prompts are also trained on; a warning if there are any."""
    trained_on = {comparable(row.prompt) for row in job.load(COMPARISONS, TRAINING)}
    count = sum(comparable(prompt) in trained_on for prompt in panel.prompts)
    if count:
        warnings.warn(
            f"{job.stage.name}: {count:,} of {len(panel):,} prompts are training prompts, so answers to them say "
            "little about new ones",
            UnmdpoWarning,
            stacklevel=2,
        )
    return count


PANEL_STAGE = Kind("panel", draw_panel)
