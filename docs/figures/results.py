"""Draws the figures of docs/evidence/results.md from a finished run of the recipe `smollm2-135m`.

python docs/figures/results.py STORE RUN        needs the `docs` extra; RUN is a folder of STORE/runs
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from benchmarks.lab.charts import standalone

from unmdpo.report.charts import Interval, forest

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.hashsalt": "unmdpo", "svg.fonttype": "path", "font.size": 9}
import matplotlib.pyplot as plt  # noqa: E402

HERE, OVER = Path(__file__).parent, 9  # updates of a moving mean
CURVES = {"dpo": "#555555", "fixed-margin": "#4477aa", "unm-ao": "#1b7837", "unm-wr": "#ee6677", "ulnm-wr": "#762a83"}
MEASURES = {"rewards/accuracies": "pairs ordered rightly", "logps/chosen": "log-probability of chosen responses"}


def draw_curves(policies: dict[str, Path]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
    for axis, (key, title) in zip(axes, MEASURES.items(), strict=True):
        for name, colour in CURVES.items():
            lines = (policies[name] / "metrics.jsonl").read_text("utf-8").splitlines()
            values = [json.loads(line)[key] for line in lines]
            smooth = np.convolve(values, np.full(OVER, 1 / OVER), mode="valid")
            axis.plot(np.arange(len(smooth)) + OVER, smooth, color=colour, label=name)
        axis.set(title=title, xlabel=f"update (mean of {OVER})")
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False)
    figure.savefig(HERE / "smollm2-curves.svg", metadata={"Date": None})


def draw_wins(summary: dict[str, Any]) -> None:
    found = {name: outcome["win_rate"] for name, outcome in summary["alpaca"]["against"]["dpo"].items()}
    rows = [
        Interval(name, rate["value"], rate["low"], rate["high"])
        for name, rate in sorted(found.items(), key=lambda item: -item[1]["value"])
    ]
    chart = forest(rows, "Win rate against DPO", "win rate against DPO, %, 700 AlpacaEval instructions", 50.0)
    (HERE / "smollm2-wins.svg").write_text(standalone(chart), encoding="utf-8")


def main(store: Path, run: str) -> None:
    stages = json.loads((store / "runs" / run / "run.json").read_text("utf-8"))["stages"]
    places = {name: store / "artifacts" / stage["place"] for name, stage in stages.items()}
    draw_curves({name: places[f"policy[{name}]"] for name in CURVES})
    draw_wins(json.loads((places["summary"] / "summary.json").read_text("utf-8")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
