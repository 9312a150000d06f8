"""What a fitted scale looks like, in numbers that catch the known ways it goes wrong."""

import torch
from torch import Tensor

from unmdpo.scale.data import Rows
from unmdpo.scale.maps import LOG_2

SATURATED = 0.95  # share of the bound log 2 beyond which a scale counts as pinned


def describe(q: Tensor, rows: Rows, margin: Tensor) -> dict[str, float]:
    """Of unit scales (u,) and the rows they were fitted to, with `margin` (n,) τ·m(k)."""
    valid = rows.mask
    log_q, row_log_q = q.double().log(), q.double().log()[rows.unit[valid]]
    residual = (rows.evidence.double() - margin.double())[valid]
    described = {
        "geometric_mean": float(log_q.mean().exp()),
        "min": float(q.min()),
        "max": float(q.max()),
        "log_std": float(log_q.std(correction=0)),
        "negative_residuals": float((residual < 0).double().mean()),
        "saturated": float((log_q.abs() > SATURATED * LOG_2).double().mean()),
        "valid_rows": float(valid.sum()),
        "masked_rows": float((~valid).sum()),
        "strength_correlation": correlation(row_log_q, rows.strength[valid]),
    }
    if rows.lengths is not None:
        described["length_correlation"] = correlation(row_log_q, rows.lengths[valid])
    return described


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's; 0 where one of them does not vary."""
    x, y = a.double() - a.double().mean(), b.double() - b.double().mean()
    spread = float(torch.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / spread if spread > 0 else 0.0
