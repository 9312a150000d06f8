"""`unmdpo theory`: the numbers it prints are the paper's formulas, worked out here once more."""

import math
import re

import pytest
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

from unmdpo.cli import app


def said(*words, code=0):
    done = CliRunner().invoke(app, ["theory", *words])
    assert done.exit_code == code, done.output
    return done.output


def test_a_cycle_whose_margins_do_not_cancel_gives_the_scale():
    told = said("identify", "--q", "2.5")
    assert "A over C with margin 3: WR score -0.4000" in told  # (2 − 3)/2.5
    assert "from the scores alone: q = 2.5" in told
    assert f"κ = {1 / math.sqrt(3):.4f}" in told  # one cycle of three edges, sum 1


def test_margins_that_cancel_have_a_twin():
    told = said("identify", "A>B:1", "B>C:1", "A>C:2", "--q", "1.5")
    assert "not identified" in told
    q, *rewards = (float(value) for value in re.findall(r"(?:q = |[ABC] )(-?[\d.]+)", told.splitlines()[-1]))
    by_name = dict(zip("ABC", rewards, strict=True))
    for better, worse, margin in (("A", "B", 1), ("B", "C", 1), ("A", "C", 2)):
        score = float(re.search(rf"{better} over {worse} .* score (-?[\d.]+)", told)[1])
        assert (by_name[better] - by_name[worse] - margin) / q == pytest.approx(score, abs=1e-4)


def test_lengths_alone_spread_scales():
    def loss(s, spreads=(0.8, 0.2), margin=2.0):
        terms = [
            math.log1p(math.exp(-margin * spread * v / math.exp(sign * s)))
            for spread, sign in zip(spreads, (1, -1), strict=True)
            for v in (-1, 1)
        ]
        return sum(terms) / 4 + 0.01 * s * s

    best = minimize_scalar(loss, bounds=(0, math.log(2)), method="bounded", options={"xatol": 1e-10}).x
    told = said("length")
    assert f"q = {math.exp(best):.4f} and {math.exp(-best):.4f}" in told


def test_categories_by_hand():
    told = said("ordinal", "--gap", "0.5", "--q", "2", "--cutpoints", "-1,1")
    low = 1 / (1 + math.exp((0.5 + 1) / 2))
    assert f"from −∞ to -1: {100 * low:.2f} %" in told
    shares = [float(share) for share in re.findall(r": ([\d.]+) %", told)]
    assert sum(shares) == pytest.approx(100, abs=0.02)


def test_equal_prompts_drift_apart():
    assert "equal prompts drift apart, to q = e^±" in said("centering")
    told = said("centering", "--residual", "2")
    d, sigma = 2.0, 1 / (1 + math.exp(-2.0))
    assert f"J″(0) = {d * (1 - sigma) * (d * sigma - 1) + 0.02:.4f}, not below 0" in told


@pytest.mark.parametrize("command", ["identify", "length", "ordinal", "centering"])
def test_every_command_has_an_example(command):
    assert len(said(command).splitlines()) >= 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["identify", "A-B"], "write A>B:2"),
        (["identify", "A>B:1..2"], "float"),
        (["identify", *(f"a{n}>b{n}:1" for n in range(14))], "too many to look at"),
        (["length", "--first", "0.1"], "0 < δ₂ < δ₁ < 1"),
        (["ordinal", "--cutpoints", "2,1"], "cutpoints must increase"),
        (["ordinal", "--cutpoints", "a"], "could not convert"),
    ],
)
def test_mistakes_are_reported(words, told):
    assert told in said(*words, code=2)
