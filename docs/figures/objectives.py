"""Draws docs/figures/placements.svg: the loss against the reward gap under AO and WR for several scales.

python docs/figures/objectives.py        needs the `docs` extra
"""

from pathlib import Path

import matplotlib
import torch

from unmdpo.objectives import OBJECTIVES, PairLogps

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.hashsalt": "unmdpo", "svg.fonttype": "path", "font.size": 9}
import matplotlib.pyplot as plt  # noqa: E402

STRENGTH, SCALES = 2.0, {0.5: "#1b7837", 1.0: "#555555", 2.0: "#762a83"}


def losses(name: str, gaps: torch.Tensor, scale: float) -> torch.Tensor:
    zeros, ones = torch.zeros_like(gaps), torch.ones_like(gaps)
    pairs = PairLogps(
        chosen=gaps / 0.05,  # β₀·A is the reward gap
        rejected=zeros,
        ref_chosen=zeros,
        ref_rejected=zeros,
        chosen_tokens=ones,
        rejected_tokens=ones,
        strength=STRENGTH * ones,
        scale=scale * ones,
    )
    return OBJECTIVES[name].loss(pairs)


def main() -> None:
    gaps = torch.linspace(-2, 8, 400)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.9), sharey=True, layout="constrained")
    titles = {"unm-ao": "AO: the threshold moves with q", "unm-wr": "WR: the threshold stays, the slope changes"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for scale, colour in SCALES.items():
            axis.plot(gaps, losses(name, gaps, scale), color=colour, label=f"q = {scale:g}")
            threshold = STRENGTH * (scale if name == "unm-ao" else 1)
            axis.plot(threshold, torch.log(torch.tensor(2.0)), "o", color=colour, markersize=4)
        axis.set(title=title, xlabel="reward gap β₀A", ylim=(0, 6))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("loss, margin τ·m(k) = 2")
    axes[0].legend(frameon=False)
    figure.savefig(Path(__file__).parent / "placements.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
