"""All stateless losses: log-probabilities in, one loss per pair out; nothing is reduced or logged.

ζ(−x) = −log σ(x) throughout, which `logsigmoid` computes without overflow for any x.
"""

import math

import torch
from scipy.optimize import brentq
from scipy.special import entr, expit
from torch import Tensor
from torch.nn.functional import logsigmoid

from unmdpo.core.margins import StrengthMap, advantage_only, whole_residual
from unmdpo.objectives.pairs import PairLogps, wide

Levels = tuple[float, ...] | None


def dpo(pairs: PairLogps, *, beta: float) -> Tensor:
    """ζ(−β₀A) (Eq. dpo-loss)."""
    return -logsigmoid(beta * pairs.log_ratio)


def fixed_margin(pairs: PairLogps, *, beta: float, tau: float, levels: Levels) -> Tensor:
    """ζ(τ·m(k) − β₀A): the margin of UNM-DPO with q ≡ 1."""
    return -logsigmoid(beta * pairs.log_ratio - margin(pairs, tau, levels))


def unm_ao(pairs: PairLogps, *, beta: float, tau: float, levels: Levels) -> Tensor:
    """UNM-DPO-AO (Eqs. evidence-only and unm-dpo-loss)."""
    gap = beta * pairs.log_ratio
    return -logsigmoid(advantage_only(gap, margin(pairs, tau, levels), pairs.prompt_scale))


def unm_wr(pairs: PairLogps, *, beta: float, tau: float, levels: Levels) -> Tensor:
    """UNM-DPO-WR (Eqs. whole-residual and unm-dpo-loss)."""
    gap = beta * pairs.log_ratio
    return -logsigmoid(whole_residual(gap, margin(pairs, tau, levels), pairs.prompt_scale))


def ulnm_ao(pairs: PairLogps, *, beta: float, tau: float, levels: Levels) -> Tensor:
    """The AO placement with β_LN·A^LN in place of β₀·A."""
    gap = beta * pairs.mean_log_ratio
    return -logsigmoid(advantage_only(gap, margin(pairs, tau, levels), pairs.prompt_scale))


def ulnm_wr(pairs: PairLogps, *, beta: float, tau: float, levels: Levels) -> Tensor:
    """ULNM-DPO-WR (Eq. length-normalized-wr)."""
    gap = beta * pairs.mean_log_ratio
    return -logsigmoid(whole_residual(gap, margin(pairs, tau, levels), pairs.prompt_scale))


def ln_dpo(pairs: PairLogps, *, beta: float) -> Tensor:
    """DPO on length-normalized log-ratios (SimPO's Appendix H)."""
    return -logsigmoid(beta * pairs.mean_log_ratio)


def odpo(pairs: PairLogps, *, beta: float, offset: float) -> Tensor:
    """ζ(0.75k − β₀A) (table of baseline losses); the offset is in units of the raw strength."""
    return -logsigmoid(beta * pairs.log_ratio - offset * wide(pairs.strength))


def mmpo(pairs: PairLogps, *, beta: float, slope: float) -> Tensor:
    """CE(σ(2.2k), β₀A): strength sets a soft target instead of a margin."""
    z = beta * pairs.log_ratio
    certainty = slope * wide(pairs.strength)
    return -torch.sigmoid(certainty) * logsigmoid(z) - torch.sigmoid(-certainty) * logsigmoid(-z)


def simpo(pairs: PairLogps, *, beta: float, gamma: float) -> Tensor:
    """ζ(γ − β·P̄): no reference, log-probabilities per token, one margin for all."""
    return -logsigmoid(beta * pairs.mean_policy_gap - gamma)


def spo(pairs: PairLogps, *, alpha: float) -> Tensor:
    """SPO-basic: ζ(−α·P)/α, no reference and no KL term."""
    return -logsigmoid(alpha * pairs.policy_gap) / alpha


def cdpo(pairs: PairLogps, *, beta: float, flips: float) -> Tensor:
    """CE(1 − ε, β₀A): label smoothing, as if a share ε of the labels were wrong (Mitchell's conservative DPO)."""
    z = beta * pairs.log_ratio
    return -(1 - flips) * logsigmoid(z) - flips * logsigmoid(-z)


def robust_dpo(pairs: PairLogps, *, beta: float, flips: float) -> Tensor:
    """((1 − ε)·ζ(−β₀A) − ε·ζ(β₀A))/(1 − 2ε): its mean over labels flipped at rate ε is DPO's loss on the true ones
    (Chowdhury et al., 2024)."""
    z = beta * pairs.log_ratio
    return (flips * logsigmoid(-z) - (1 - flips) * logsigmoid(z)) / (1 - 2 * flips)


def ipo(pairs: PairLogps, *, beta: float) -> Tensor:
    """(A^LN − 1/(2β))² (Azar et al., 2023), with log-ratios per token as its authors and TRL run it."""
    return (pairs.mean_log_ratio - 1 / (2 * beta)) ** 2


def rpo_sq(pairs: PairLogps, *, beta: float, eta: float) -> Tensor:
    """(β₀A − ηk)²: rewards as far apart as the strength says (RPO with a squared distance, Sun et al., 2025)."""
    return (beta * pairs.log_ratio - eta * wide(pairs.strength)) ** 2


def rpo_fwd_kl(pairs: PairLogps, *, beta: float, eta: float) -> Tensor:
    """KL(σ(β₀A) ‖ σ(ηk)), RPO's forward divergence as NeMo names it. The backward one is MMPO with slope η, up to a
    constant."""
    z, target = beta * pairs.log_ratio, eta * wide(pairs.strength)
    better, worse = logsigmoid(z), logsigmoid(-z)
    return better.exp() * (better - logsigmoid(target)) + worse.exp() * (worse - logsigmoid(-target))


def sft(pairs: PairLogps) -> Tensor:
    """−log π(x⁺)/|x⁺|: a term beside any objective that keeps the chosen response likely (Pang et al., 2024)."""
    return -wide(pairs.chosen) / wide(pairs.chosen_tokens)


def ada_dpo(pairs: PairLogps, *, beta: float, rho: float, low: float, high: float) -> Tensor:
    """Adaptive Preference Scaling: min over s ∈ [low, high] of s·ζ(−r/s) + (ρ − log 2)·s, r = β₀A.

    Its derivative in s is H(σ(r/s)) − (log 2 − ρ), where H is the binary entropy, so the minimizer is |r|/u* for the
    only u* > 0 with H(σ(u*)) = log 2 − ρ: exact, without inner iterations. By the envelope theorem, its dependence
    on r contributes no gradient.
    """
    r = beta * pairs.log_ratio
    s = (r.detach().abs() / _entropy_root(rho)).clamp(low, high)
    return -s * logsigmoid(r / s) + (rho - math.log(2)) * s


def _entropy_root(rho: float) -> float:
    """u > 0 with H(σ(u)) = log 2 − ρ; infinite if ρ leaves no entropy at all."""
    level = math.log(2) - rho
    if level <= 0:
        return math.inf
    return float(brentq(lambda u: entr(expit(u)) + entr(expit(-u)) - level, 0.0, 1e3, xtol=1e-14))


def margin(pairs: PairLogps, tau: float, levels: Levels) -> Tensor:
    """τ·m(k)."""
    return tau * StrengthMap(levels).of(wide(pairs.strength))
