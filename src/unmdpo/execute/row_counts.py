"""What became of every row: read, bad, left out, tied, too long, used. Nothing is dropped without a number here."""

from dataclasses import dataclass, field

from unmdpo.engine.text.encode import REMARKS
from unmdpo.stages.comparisons import COMPARISONS_STAGE, READ
from unmdpo.stages.encoded import ENCODED_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.files import BAD_ROWS


@dataclass(frozen=True)
class RowCounts:
    """Counts in the order in which rows are lost, and remarks about those that are used."""

    counts: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)  # comparisons of each part of a mixture
    remarks: list[str] = field(default_factory=list)

    def line(self) -> str:
        """`7,545 rows read · 1 bad · 30 ties · 7,514 comparisons`."""
        return " · ".join(f"{count:,} {what}" for what, count in self.counts.items())


def count_rows(run: Pipeline) -> RowCounts | None:
    """From the manifests of what is finished; None before anything was read."""
    comparisons, encoded = (run.finished.get(kind.name) for kind in (COMPARISONS_STAGE, ENCODED_STAGE))
    if comparisons is None:
        return None
    notes = comparisons.manifest["notes"]
    read = run.finished.get(READ, comparisons)
    bad = f"bad ({read.path / BAD_ROWS.name})" if notes["bad"] else "bad"
    counts = {"rows read": notes["read"], bad: notes["bad"]}
    counts |= {f"left out ({why})": count for why, count in notes["left_out"].items()}
    tied = f"ties ({notes['both_bad']:,} both bad)" if notes["both_bad"] else "ties"
    weighted = any(weight != 1 for weight in notes.get("weights", {}).values())
    trained = "training comparisons, by weight" if weighted else "training comparisons"
    counts |= {"comparisons": notes["found"], tied: notes["ties"], "held out": notes["held_out"]}
    if "disagreed" in notes:
        counts |= {"left out (the judge prefers the other response)": notes["disagreed"]}
        counts |= {"left out (the judge sees no difference)": notes["undecided"]}
    counts |= {trained: notes["comparisons"]}
    remarks = []
    if encoded is not None:
        lengths = encoded.manifest["notes"]
        counts |= {"too long or empty": lengths["pairs"] - lengths["valid"], "used": lengths["valid"]}
        remarks = [
            f"{count:,} {REMARKS[what]}" for what, count in lengths.get("joined", {}).items() if what in REMARKS
        ]
    return RowCounts(counts, notes.get("parts", {}), remarks)
