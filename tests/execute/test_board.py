"""The board that a terminal shows: all stages at work, what is done, what failed."""

import io

import pytest
from rich.console import Console

from unmdpo.execute.board import Board
from unmdpo.execute.progress import Events, Lines, fraction


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


def test_a_silent_stage_is_shown_with_the_time_since_it_was_heard(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    board = Board(2)
    board.started("policy[dpo]")
    board.progress("policy[dpo]", "3/80 · loss 0.6")
    now[0] += 59
    assert "no sign of life" not in drawn(board)
    now[0] += 31
    assert "3/80 · loss 0.6 (no sign of life for 90 s)" in drawn(board)


def test_a_log_has_a_line_a_minute_between_ends(monkeypatch):
    now, stream = [100.0], io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = Lines(stream)
    lines.started("a")
    lines.started("b")
    for second in range(120):
        now[0] += 1
        lines.progress("a", f"{second}/500")
        lines.progress("b", f"{second}/600")
    lines.finished("b", 120.0)
    now[0] += 60
    lines.progress("a", "180/500")
    said = [line.partition("] ")[2] for line in stream.getvalue().splitlines()]
    assert said[2:] == ["a: 59/500; b: 58/600", "a: 119/500; b: 118/600", "b: finished in 120.0 s", "a: 180/500"]


def test_a_training_ends_with_its_last_loss():
    stream = io.StringIO()
    lines = Lines(stream)
    lines.started("policy[dpo]")
    lines.progress("policy[dpo]", "150/150 · loss 0.4102 · accuracy 0.81 · 48.9 pairs/s · ETA 0:00")
    lines.finished("policy[dpo]", 9.0)
    assert "finished in 9.0 s (150/150 · loss 0.4102 · accuracy 0.81)" in stream.getvalue()


def test_lines_tell_how_many_stages_are_left():
    stream = io.StringIO()
    lines = Lines(stream, stages=4)
    lines.cached("comparisons")
    for name in "ab":
        lines.started(name)
        lines.finished(name, 1.0)
    said = stream.getvalue()
    assert "a: finished in 1.0 s; 2 stages left" in said
    assert "b: finished in 1.0 s; 1 stage left" in said


def test_a_function_is_called_with_every_event():
    told = []
    view = Events(told.append)
    view.started("policy[dpo]")
    view.progress("policy[dpo]", "3/12 · loss 0.6")
    view.finished("policy[dpo]", 2.0)
    assert [(one["event"], one["stage"]) for one in told] == [
        (event, "policy[dpo]") for event in ("started", "progress", "finished")
    ]
    assert told[1]["share"] == 0.25


@pytest.mark.parametrize(
    ("text", "share"), [("3/12 · x", 0.25), ("1,000/2,000 judged", 0.5), ("proving", None), ("5/0", None)]
)
def test_what_a_progress_text_counts(text, share):
    assert fraction(text) == share
