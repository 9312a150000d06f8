"""The board that a terminal shows: all stages at work, what is done, what failed."""

import io

from rich.console import Console

from unmdpo.cli.progress import Board


def drawn(board):
    out = io.StringIO()
    Console(file=out, width=100).print(board.drawn())
    return out.getvalue()


def test_the_board_follows_the_stages():
    board = Board(5)
    board.cached("comparisons")
    board.started("pilot[0]")
    board.started("pilot[1]")
    board.progress("pilot[1]", "update 3/80 [x]")
    text = drawn(board)
    assert "pilot[0]" in text
    assert "update 3/80 [x]" in text  # no markup is made of it
    assert "1 of 5 stages done, 1 reused" in text
    board.finished("pilot[0]", 2.0)
    board.failed("pilot[1]", "out of memory")
    text = drawn(board)
    assert "pilot[0]" not in text
    assert "2 of 5 stages done" in text
    assert "failed: pilot[1]" in text
