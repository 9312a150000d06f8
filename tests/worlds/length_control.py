"""Inputs for the length-controlled win rate, and what alpaca_eval 0.6.6 (scikit-learn 1.9.1) computes from them."""

import numpy as np

from unmdpo.stats.length_control import GamedBaseline

EXPECTED = {  # seed: win rate, standard error, C, coefficients
    0: (34.27661227877063, 0.29175526271414587, 21.54434690031882,
        (-0.20204538094382843, 0.2218228034614905, -0.6509324505755801)),
    1: (33.24155438115115, 0.11131371920149447, 1291.5496650148827,
        (-0.3404337093500765, 0.09410464236985726, -0.6888621082267825)),
    2: (35.45417825274887, 0.26861853890263615, 2.782559402207126,
        (-0.22884749337411964, 0.2009468462776972, -0.5943594633746994)),
}  # fmt: skip


def world(seed, n=300, m=240):
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(0, 1, n)
    baseline, model = rng.integers(200, 3000, n).astype(float), rng.integers(100, 4000, n).astype(float)
    noise = rng.normal(0, 1.2, n)
    preference = 1 / (1 + np.exp(-(0.4 * np.tanh((model - baseline) / 1200) + 0.3 * difficulty - 0.8 + noise)))
    gamed = GamedBaseline(rng.uniform(0, 1, m), rng.normal(0, 1, m), rng.normal(0, 1, m))
    return preference, baseline, model, difficulty, gamed
