"""What is not text is refused, or left out by the user's own word."""

import json

import pytest

from unmdpo.core.errors import UserError
from unmdpo.data import load_comparisons

PAIR = {"prompt": "Why is the sky blue?", "chosen": "Light scatters.", "rejected": "It is not.", "strength": 2}


@pytest.mark.parametrize("name", ["images", "image", "audio", "video"])
def test_what_is_not_text_is_refused_unless_it_is_left_out(tmp_path, name):
    path = tmp_path / "rows.jsonl"
    rows = [PAIR, PAIR | {name: []}, PAIR | {name: [{"path": "x.png"}]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        UserError, match=rf"row 3: '{name}' is not read, because only text is.*data\.ignore: \[{name}\]"
    ):
        load_comparisons(str(path))
    assert len(load_comparisons(str(path), ignore=[name])) == 3
