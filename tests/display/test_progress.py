"""Progress of long work: what a log and a terminal say, how fast it is, how long it will take."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from recallkit.display import progress as module
from recallkit.display.progress import one_after_another, progress


@pytest.fixture(autouse=True)
def usual_times(monkeypatch):
    monkeypatch.delenv("RECALLKIT_LOG_SECONDS", raising=False)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves: `clock(s)` lets s seconds pass."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "_last_line", 0.0)
    monkeypatch.setattr(module, "_ended", 0.0)

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_a_log_has_a_line_at_the_beginning_and_then_every_half_minute(clock, capsys):
    with progress("scoring x", total=1000) as show:
        show(100)  # what an earlier run did
        clock(0.5)
        show(104)
        for done in range(200, 1001, 100):
            clock(12.5)
            show(done)
    assert capsys.readouterr().err.splitlines() == [
        "recallkit: scoring x: 104 of 1,000 tokens, 8/s, 1 min 52 s left",
        "recallkit: scoring x: 400 of 1,000 tokens, 7.89/s, 1 min 16 s left",
        "recallkit: scoring x: 700 of 1,000 tokens, 7.95/s, 38 s left",
        "recallkit: scoring x: 1,000 of 1,000 tokens, 7.96/s",
    ]


def test_a_line_comes_within_the_first_second_whatever_the_work_does(capsys, monkeypatch):
    monkeypatch.setattr(module, "_last_line", -module._APART)
    monkeypatch.setattr(module, "_ended", 0.0)
    with progress("loading", total=3, unit="models"):
        time.sleep(0.95)  # as of a batch that takes minutes
    assert capsys.readouterr().err == "recallkit: loading: 0 of 3 models\n"
    with progress("loading", total=3, unit="models"):
        pass
    assert capsys.readouterr().err == "", "short work has nothing to tell"


def test_many_short_pieces_of_work_are_one_that_is_long_and_do_not_fill_a_log(clock, capsys):
    for number in range(50):
        with progress(f"reading {number}", total=9) as show:
            clock(0.25)
            show(9)
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in said] == [f" reading {number}" for number in (1, 21, 41)]
    clock(60)
    with progress("reading again", total=9) as show:
        clock(0.25)
        show(9)
    assert capsys.readouterr().err == "", "a short piece long after that"


def test_the_innermost_work_alone_tells(clock, capsys):
    with progress("outside") as outside:
        with progress("inside") as inside:
            clock(40)
            outside(1)
            inside(2)
        clock(10)
        outside(3)
    assert capsys.readouterr().err.splitlines() == [
        "recallkit: inside: 2 tokens, 0.05/s",
        "recallkit: outside: 3 tokens, 0.06/s",
    ]


def test_without_a_total_or_anything_done_nothing_is_invented(clock, capsys):
    with progress("counting") as show:
        clock(31)
        show(0)
        clock(31)
        show(6200)
    assert capsys.readouterr().err.splitlines() == [
        "recallkit: counting: 0 tokens",
        "recallkit: counting: 6,200 tokens, 100/s",
    ]


def test_a_total_that_is_estimated_is_told_as_such_and_may_change(clock, capsys, monkeypatch):
    with progress("counting") as show:
        clock(31)
        show(6200, 12_345)
        clock(31)
        show(12_400, 24_800)
    with progress("counting", total=100) as show:
        clock(31)
        show(31, 50)
    assert capsys.readouterr().err.splitlines() == [
        "recallkit: counting: 6,200 of about 12.3k tokens, 200/s, 31 s left",
        "recallkit: counting: 12,400 of about 24.8k tokens, 200/s, 1 min 2 s left",
        "recallkit: counting: 31 of 100 tokens, 1/s, 1 min 9 s left",
    ]
    assert "100/~400 tokens  10/s  30 s left" in _drawn(
        monkeypatch, clock, "counting", None, 100, 400
    )


def _drawn(monkeypatch, clock, description, total, *shown) -> str:
    """What a terminal of 80 columns has been sent when this was shown after ten seconds."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(module, "stderr", lambda: screen)
    with progress(description, total=total) as show:
        clock(10)
        show(*shown)
        time.sleep(0.3)
    return screen.file.getvalue()


def test_a_bar_is_one_line_of_80_columns_with_its_figures(monkeypatch, clock):
    name = "scoring checkpoints/a-very-long-name-of-a-model-of-1.3B-parameters (2 of 8)"
    drawn = _drawn(monkeypatch, clock, name, 98_200, 12_345)
    assert "12.3k/98.2k tokens  1.23k/s  1 min 10 s left" in drawn
    assert "(2 of 8)" in drawn
    assert "left" not in (done := _drawn(monkeypatch, clock, name, 98_200, 98_200))
    assert "98.2k/98.2k tokens  9.82k/s" in done
    # One line up where the bar is removed at its end; redrawing two lines would have others.
    lines_up = "\x1b[1A"
    assert [text.count(lines_up) for text in (drawn, done)] == [1, 1]


def test_one_of_several_says_which(clock, capsys):
    for name in one_after_another(["a", "b"]):
        with progress(f"scoring {name}") as show:
            clock(30)
            show(0)
    for name in one_after_another(["c"]):
        with progress(f"scoring {name}") as show:
            clock(30)
            show(0)
    said = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("recallkit: scoring ") for line in said] == [
        "a (1 of 2): 0 tokens",
        "b (2 of 2): 0 tokens",
        "c: 0 tokens",
    ]


def test_an_interrupt_says_how_much_was_done_or_is_kept(capsys):
    for kept in (None, lambda: 20):
        with pytest.raises(KeyboardInterrupt), progress("scoring x", total=100, saved=kept) as show:
            show(25)
            raise KeyboardInterrupt
    assert capsys.readouterr().err.splitlines() == [
        "recallkit: scoring x: 25 of 100 tokens done",
        "recallkit: scoring x: 20 of 100 tokens kept",
    ]
