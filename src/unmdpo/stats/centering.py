"""Why centering is not identification (appendix, "Optimization rationale for scale learning").

For two prompts with the same single residual d and q₁ = e^t, q₂ = e^{−t}, the constant scale need not even be a local
minimum of the centered, regularized objective.
"""

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit


def objective(t: float, residual: float, penalty: float) -> float:
    """J(t) = ½[ζ(−d·e^{−t}) + ζ(−d·e^{t})] + λ_q·t²."""
    data = np.logaddexp(0, -residual * np.exp([-t, t])).mean()
    return float(data + penalty * t**2)


def curvature(residual: float, penalty: float) -> float:
    """J″(0) = d·σ(−d)·{d·σ(d) − 1} + 2λ_q."""
    d = residual
    return float(d * expit(-d) * (d * expit(d) - 1) + 2 * penalty)


def drift(residual: float, penalty: float) -> float:
    """t ≥ 0 that minimizes J: how far apart two equal prompts are drawn, q = e^±t."""
    return float(minimize_scalar(objective, args=(residual, penalty), bounds=(0.0, 6.0), method="bounded").x)


def splitting_residuals(penalty: float) -> tuple[float, float] | None:
    """The open interval of residuals where J″(0) < 0, so equal prompts drift apart.

    The data term is negative only for 0 < d with d·σ(d) < 1, where it has a single dip; a penalty that outweighs the
    dip leaves no such residual.
    """
    end = float(brentq(lambda d: d * expit(d) - 1, 1.0, 2.0))
    dip = float(minimize_scalar(curvature, args=(0.0,), bounds=(0.0, end), method="bounded").x)
    if curvature(dip, penalty) >= 0:
        return None
    low = 0.0 if penalty == 0 else float(brentq(curvature, 0.0, dip, args=(penalty,)))
    high = end if penalty == 0 else float(brentq(curvature, dip, end, args=(penalty,)))
    return low, high
