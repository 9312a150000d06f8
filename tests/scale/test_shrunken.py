"""The pooled head with as much shrinkage as unseen prompts ask for."""

import pytest
import torch

from tests.worlds.scales import world
from unmdpo.core.errors import UserError
from unmdpo.scale import PooledScale, ShrunkenScale
from unmdpo.scale.check import out_of_fold_log_scales
from unmdpo.scale.fitting import losses_by


def held_out_loss(units, rows, penalty, factor):
    pooled = PooledScale(penalty=penalty, updates=50)
    log_q = out_of_fold_log_scales(lambda: PooledScale(penalty=penalty, updates=50), units, rows)
    return float(losses_by(pooled.settings)(rows)(factor * log_q).mean())


def test_the_best_on_unseen_prompts_is_taken():
    units, rows = world(3, 0.6, prompts=200)
    found = ShrunkenScale(penalties=[0.01, 0.3], factors=[0.0, 0.5, 1.0], updates=50).fit(units, rows)
    losses = {(p, f): held_out_loss(units, rows, p, f) for p in (0.01, 0.3) for f in (0.0, 0.5, 1.0)}
    assert (found.penalty_, found.factor_) == min(losses, key=losses.get)
    assert torch.equal(found.q_, PooledScale(penalty=found.penalty_, updates=50).fit(units, rows).q_ ** found.factor_)


@pytest.mark.soak
def test_nothing_to_find_is_hardly_a_scale():
    for seed in range(2):
        units, rows = world(seed, 0.0, prompts=300, dimensions=40)
        found, plain = (kind(updates=40).fit(units, rows) for kind in (ShrunkenScale, PooledScale))
        assert found.diagnostics_["log_std"] < 0.6 * plain.diagnostics_["log_std"]
        assert (found.factor_ == 0) == bool(found.diagnostics_.get("constant"))


def test_something_to_choose_from_is_needed():
    with pytest.raises(UserError, match="factors"):
        ShrunkenScale(factors=[])
