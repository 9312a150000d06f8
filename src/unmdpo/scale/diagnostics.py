"""Numbers that describe a fitted scale and catch the known ways it can go wrong."""

import torch
from torch import Tensor

from unmdpo.scale.data import Rows

SATURATED = 0.95  # share of the map's bound above which a unit counts as pinned


def diagnose(q: Tensor, rows: Rows, margin: Tensor, squashed: Tensor) -> dict[str, float]:
    """Describes unit scales (u,) and the rows they were fitted to, with `margin` (n,) τ·m(k).

    `squashed` (u,) in [−1, 1] is each unit's position between the bounds of its map.
    """
    valid = rows.mask
    log_q, row_log_q = q.double().log(), q.double().log()[rows.unit[valid]]
    residual = (rows.evidence.double() - margin.double())[valid]
    described = {
        "geometric_mean": float(log_q.mean().exp()),
        "min": float(q.min()),
        "max": float(q.max()),
        "log_std": float(log_q.std(correction=0)),
        "negative_residuals": float((residual < 0).double().mean()),
        "saturated": float((squashed.abs() > SATURATED).double().mean()),
        "valid_rows": float(valid.sum()),
        "masked_rows": float((~valid).sum()),
        "strength_correlation": correlation(row_log_q, rows.strength[valid]),
    }
    if rows.lengths is not None:
        described["length_correlation"] = correlation(row_log_q, rows.lengths[valid])
    return described


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; 0 if one of them does not vary, whatever rounding makes of its mean."""
    if len(a) == 0 or a.min() == a.max() or b.min() == b.max():
        return 0.0
    x, y = a.double() - a.double().mean(), b.double() - b.double().mean()
    spread = float(torch.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / spread if spread > 0 else 0.0
