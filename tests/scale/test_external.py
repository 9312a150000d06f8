"""Scales from a file."""

import json
import math

import pytest
import torch

from unmdpo.core.errors import UserError
from unmdpo.data.panels import read_scales
from unmdpo.scale import Rows, Units, load_scale, make_estimator, save_scale

ROWS = Rows(torch.arange(3), torch.zeros(3), torch.ones(3))


def given(values, **settings):
    units = Units(torch.tensor(values).log()[:, None])
    return make_estimator("given", {"path": "q.jsonl", **settings}).fit(units, ROWS)


def test_they_are_centered(tmp_path):
    scale = given([1.0, 2.0, 4.0])
    assert scale.q_.tolist() == pytest.approx([0.5, 1.0, 2.0])
    save_scale(scale, tmp_path)
    assert load_scale(tmp_path).q_.equal(scale.q_)
    with pytest.raises(UserError, match="say nothing about others"):
        scale.predict(Units(torch.zeros(1, 1)))


def test_they_can_be_bounded_and_weakened():
    bounded = given([0.01, 1.0, 100.0], bound=math.log(2) / 2).q_
    assert bounded.tolist() == pytest.approx([1 / math.sqrt(2), 1.0, math.sqrt(2)], rel=1e-5)
    assert given([0.25, 1.0, 4.0], power=0.5).q_.tolist() == pytest.approx([0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "a", "q": 0.0}], "positive number"),
        ([{"prompt": "a", "q": 1e300}], "positive number, from 1e-06 to 1e"),
        ([{"prompt": "a", "q": 1e-300}], "positive number, from 1e-06 to 1e"),
        ([{"prompt": "a", "q": 1.0}, {"prompt": "a", "q": 2.0}], "second, different q"),
        ([{"prompt": "a"}], "q"),
    ],
)
def test_bad_files_are_reported(tmp_path, rows, message):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=message):
        read_scales(path)
