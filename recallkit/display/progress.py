"""Progress of long work on stderr: a bar on a terminal, a line every half a minute elsewhere, or events (`--log-json`)."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from recallkit import events
from recallkit.display.cells import abbreviate, duration
from recallkit.display.console import stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.progress import Progress

_T = TypeVar("_T")

SECONDS_BETWEEN_EVENTS = 10.0
SECONDS_BETWEEN_LINES = 30.0
"""How often a log tells how far the work is, unless $RECALLKIT_LOG_SECONDS says otherwise."""

_AT_ONCE = 1e-2
"""What is reported so soon after the beginning was done by an earlier run."""

_which = ""


class Show(Protocol):
    """Tells how much is done."""

    def __call__(self, done: int, about: int | None = None, /) -> None:
        """`done` of the total, or of `about` so many where the total is not known."""


def one_after_another(items: Sequence[_T]) -> Iterator[_T]:
    """The items; where there are several, progress says meanwhile which of them it is of: `scoring zoo:mamba (2 of 8)`."""
    global _which
    try:
        for place, item in enumerate(items, start=1):
            _which = f" ({place} of {len(items)})" if len(items) > 1 else ""
            yield item
    finally:
        _which = ""


@contextlib.contextmanager
def progress(description: str, *, total: int | None = None, unit: str = "tokens", kept: Callable[[], int] | None = None) -> Iterator[Show]:
    """A block of long work: yields a function to be called with how much is done, of `total` if that is known.

    Rate and remaining time are of this run, from its beginning on, so that they are there however long a batch takes. If the work is
    interrupted, a line says how much was done, or is `kept`, which is asked for then.
    """
    pace = _Pace(description + _which, total, unit)
    try:
        with _shown(pace) as show:
            pace.begin()
            yield show
    except KeyboardInterrupt:
        if kept is not None:
            pace.update(kept())
        events.note(f"{pace.description}: {pace.amount()} {'done' if kept is None else 'kept'}")
        raise


@contextlib.contextmanager
def _shown(pace: _Pace) -> Iterator[Show]:
    """A block whose progress is shown."""
    if events.are_on():
        yield _Every(SECONDS_BETWEEN_EVENTS, pace, _emit)
    elif not stderr().is_terminal:
        yield _Every(SECONDS_BETWEEN_LINES, pace, lambda pace: events.note(pace.line()))
    else:
        with _bar(pace) as bar:

            def show(done: int, about: int | None = None, /) -> None:
                pace.update(done, about)
                bar.update(bar.task_ids[0], completed=done, total=pace.total)

            yield show


class _Pace:
    """How much is done, and how fast. What is there at the beginning may be an earlier run's work, and is in no rate."""

    def __init__(self, description: str, total: int | None, unit: str) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.done, self._first, self.is_estimate = 0, 0, total is None
        self.begin()

    def begin(self) -> None:
        """The work begins now."""
        self._begun = time.monotonic()

    def update(self, done: int, about: int | None = None) -> None:
        """`done` of `total`, or of `about` so many."""
        if self.is_estimate:
            self.total = about
        if not self.done and time.monotonic() - self._begun < _AT_ONCE:
            self._first = done
        self.done = done

    def now(self) -> tuple[float | None, float | None]:
        """Units per second, and the seconds until all is done at this rate; None where nothing is done yet, or no total known."""
        seconds = time.monotonic() - self._begun
        if seconds <= 0 or self.done <= self._first:
            return None, None
        rate = (self.done - self._first) / seconds
        return rate, None if self.total is None else max(0, self.total - self.done) / rate

    def amount(self) -> str:
        """`12,288 of 100,000 tokens`; `12,288 of about 98k tokens` for an estimate."""
        if self.total is None:
            return f"{self.done:,} {self.unit}"
        return f"{self.done:,} of {f'about {abbreviate(self.total)}' if self.is_estimate else f'{self.total:,}'} {self.unit}"

    def line(self) -> str:
        """`scoring zoo:mamba: 12,288 of 100,000 tokens, 1.2k/s, 1 min 13 s left`"""
        rate, left = self.now()
        parts = [f"{self.description}: {self.amount()}"]
        parts += [f"{abbreviate(rate)}/s"] if rate else []
        parts += [f"{duration(left)} left"] if left is not None else []
        return ", ".join(parts)


class _Every:
    """Tells how far the work is when something was done and the last time was long ago."""

    def __init__(self, seconds: float, pace: _Pace, tell: Callable[[_Pace], None]) -> None:
        self._seconds, self._pace, self._tell = _seconds_between(seconds), pace, tell
        self._due = time.monotonic() + self._seconds

    def __call__(self, done: int, about: int | None = None, /) -> None:
        self._pace.update(done, about)
        if time.monotonic() >= self._due:
            self._tell(self._pace)
            self._due = time.monotonic() + self._seconds


def _emit(pace: _Pace) -> None:
    rate, left = pace.now()
    facts: dict[str, Any] = {
        "task": pace.description,
        "done": pace.done,
        "total": pace.total,
        "total_is_estimate": pace.is_estimate and pace.total is not None,
        "unit": pace.unit,
        "rate": rate,
        "eta_seconds": left,
    }
    events.emit("progress", f"{pace.description}: {pace.amount()}", **facts)


def _bar(pace: _Pace) -> Progress:
    """A bar that is drawn anew several times a second."""
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Amount(ProgressColumn):
        def render(self, task: Any) -> Text:
            of = "" if pace.total is None else f"/{'~' * pace.is_estimate}{abbreviate(pace.total)}"
            rate, left = pace.now()
            ends = [f"{abbreviate(rate or 0)}/s"] * (rate is not None) + [f"{duration(round(left or 0))} left"] * (left is not None)
            return Text("  ".join([f"{abbreviate(pace.done)}{of} {pace.unit}", *ends]))

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), Amount(), TimeElapsedColumn()]
    bar = Progress(*columns, console=stderr(), transient=True)
    bar.add_task(pace.description, total=pace.total)
    return bar


def _seconds_between(usual: float) -> float:
    """$RECALLKIT_LOG_SECONDS if it is a number from 0 on, else what is usual."""
    try:
        seconds = float(os.environ.get("RECALLKIT_LOG_SECONDS", ""))
    except ValueError:
        return usual
    return seconds if seconds >= 0 else usual
