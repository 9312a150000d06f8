"""Scales under wider maps than the paper's."""

import math

import pytest
import torch

from tests.worlds.scales import world
from unmdpo.core.errors import UserError
from unmdpo.scale import load_scale, make_estimator, maps, save_scale

WIDE = math.log(10) / 2


@pytest.mark.parametrize("name", ["pooled", "cross-fitted", "ridge", pytest.param("auto", marks=pytest.mark.soak)])
def test_a_wider_map_lets_scales_differ_more(tmp_path, name):
    units, rows = world(0, spread=1.5, prompts=300, pairs=4)
    more = {"updates": 100, "learning_rate": 3e-3} if name in ("pooled", "cross-fitted") else {}
    narrow, wide = (make_estimator(name, more | {"bound": bound}).fit(units, rows) for bound in (maps.BOUND, WIDE))
    assert torch.equal(narrow.q_, make_estimator(name, more).fit(units, rows).q_)  # the paper's is the default
    assert wide.q_.log().std() > 1.2 * narrow.q_.log().std()
    assert wide.q_.max() / wide.q_.min() > 2.0 > narrow.q_.max() / narrow.q_.min() - 0.1
    assert wide.q_.max() / wide.q_.min() <= 10.0 * 1.2
    save_scale(wide, tmp_path)
    assert torch.equal(load_scale(tmp_path).predict(units), wide.predict(units))


def test_a_bound_of_a_map_that_has_none_is_refused():
    with pytest.raises(UserError, match="bound is the centered map's"):
        make_estimator("pooled", {"centered": False, "bound": 2.0})


def test_the_map_by_hand_with_another_bound():
    raw = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    expected = [WIDE * math.tanh(value / WIDE) for value in (-1.0, 0.0, 1.0)]
    assert maps.centered_here(raw, WIDE).tolist() == pytest.approx(expected, abs=1e-12)
    assert maps.squashed(raw, maps.center_of(raw, bound=WIDE)).tolist() == pytest.approx(
        [value / WIDE for value in expected]
    )
    slopes = [(math.tanh((v + 1e-6) / WIDE) - math.tanh((v - 1e-6) / WIDE)) * WIDE / 2e-6 for v in (-1.0, 0.0, 1.0)]
    assert maps.slope(raw, WIDE).tolist() == pytest.approx(slopes, abs=1e-8)
