"""What a run can show, from the noise of earlier runs in its store."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from unmdpo.core.files import read_small_json
from unmdpo.stages.summary import SUMMARY_STAGE
from unmdpo.stats.power import USUAL, Noise
from unmdpo.store.artifact import DAMAGED
from unmdpo.store.store import Store


def what_it_can_show(store: Store, prompts: int, seeds: int) -> str:
    """In a sentence."""
    known = [*_noises(store)]
    noise, whence = USUAL, "noise as in docs/evidence/statistics.md"
    if known:
        noise = Noise(*(median(getattr(one, name) for one in known) for name in ("seed", "prompt", "chance")))
        whence = f"noise of {len(known):,} comparisons in this store"
    found = noise.detectable(prompts, seeds)
    more = noise.prompts_for(found / 2, seeds)
    enough = "no number of prompts is enough, because seeds differ" if more is None else f"{more:,} prompts"
    counted = f"{seeds} seeds" if seeds > 1 else "one seed, whose own part is not counted"
    return (
        f"what it can show: with {prompts:,} prompts and {counted}, a difference of {found:.1f} points of win rate is "
        f"found in 80 % of cases; for {found / 2:.1f} points, {enough} ({whence})"
    )


def _noises(store: Store) -> Iterator[Noise]:
    """Of every comparison that an earlier run of this store reports."""
    for path in sorted((store.root / "artifacts" / SUMMARY_STAGE.name).glob("*/summary.json")):
        if DAMAGED in path.parent.name:
            continue
        try:
            panels: dict[str, Any] = read_small_json(path)
            for panel in panels.values():
                for tables in panel["judges"].values():
                    for outcomes in tables["against"].values():
                        yield from (Noise(**outcome["noise"]) for outcome in outcomes.values())
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # damaged, or of another version
            continue
