"""Tokens of the comparisons of a split."""

import warnings

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.engine.models import context_length
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.tally import Tally
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import COMPARISONS, PAIRS

MANY_LEFT_OUT = 0.05  # share of the comparisons that may be left out without a word


def encode(job: Job, *, model: ModelSource, max_length: int) -> Notes:
    """Encodes every comparison but ties, flagging those that are too long or empty."""
    rows = job.load(COMPARISONS, "comparisons").without_ties()
    _check_validation_rows(job, len(rows))
    context = context_length(model) or max_length
    encoder = Encoder.of(model, min(max_length, context))
    pairs = EncodedPairs.of(Tally(job.report, len(rows), "comparisons encoded").over(encoder.encode(rows)))
    for remark in encoder.remarks():
        _warn(remark)
    beyond = max(0, pairs.within(max_length) - pairs.within(context))
    if beyond:
        _warn(
            f"{beyond} comparisons are left out: they fit data.max_length ({max_length} tokens), but not the model's "
            f"context of {context}"
        )
    longest = min(max_length, context) if beyond else max_length
    valid = int(pairs.valid.sum())
    if not valid:
        raise UserError(
            f"none of the {len(pairs)} comparisons has two responses and fits in {longest} tokens: "
            "raise data.max_length, or check the data"
        )
    lost = len(pairs) - valid
    if lost > MANY_LEFT_OUT * len(pairs):
        _warn(
            f"{lost:,} of {len(pairs):,} comparisons ({100 * lost / len(pairs):.0f} %) are not trained on: they are "
            f"longer than {longest} tokens, or empty; data.max_length may be raised"
        )
    job.save(PAIRS, pairs)
    return {
        "pairs": len(pairs),
        "beyond_context": beyond,
        "valid": valid,
        "tokens": pairs.valid_tokens,
        "joined": {what: count for what, count in encoder.counts.items() if count},
    }


def _check_validation_rows(job: Job, count: int) -> None:
    """Panels take validation prompts whatever their strengths are; here, strengths count."""
    notes = job.inputs["comparisons"].manifest["notes"]
    if notes.get("cut_apart"):
        _warn(
            "the strengths of the validation comparisons are cut at quantiles of their own margins, not of the "
            "training data's: give both the same strength.thresholds"
        )
    if not count:
        raise UserError("all validation comparisons are ties: leave out training.validate_updates, or give others")


def _warn(message: str) -> None:
    warnings.warn(message, UnmdpoWarning, stacklevel=3)


ENCODED_STAGE = Kind("encoded", encode)
