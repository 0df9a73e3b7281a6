"""Progress of long work on stderr: a bar on a terminal; elsewhere a line within its first
second, then every half a minute, or events."""

from __future__ import annotations

import contextlib
import os
import threading
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

_FIRST, _APART, _PAUSE = 0.5, 5.0, 1.0
"""Seconds until work is long and tells of itself; at least so many are between the lines of
different work; and work that begins so soon after other work continues it, as many short pieces
are long together."""

_VARIABLE = "RECALLKIT_LOG_SECONDS"
_MINUTE = 60
_AMOUNT, _LEAST_NAME = 38, 16
"""Characters for `12.3k/98.2k tokens  1.23k/s  12 s left`, so that the bar does not move, and at
least for the name of the work."""

_AT_ONCE = 1e-2
"""What is reported so soon after the beginning was done by an earlier run."""

_which = ""
_running: list[_Work] = []
"""The work under way, the innermost last: it alone tells."""
_lock = threading.RLock()
_last_line = -_APART
_begun, _ended = 0.0, -_PAUSE
"""When work last said how far it is; when it began, in one piece or many; and when the last
piece ended, by `time.monotonic`."""


class Show(Protocol):
    """Tells how much is done."""

    def __call__(self, done: int, about: int | None = None, /) -> None:
        """`done` of the total, or of `about` so many where the total is not known."""


def one_after_another(items: Sequence[_T]) -> Iterator[_T]:
    """The items; where there are several, progress says meanwhile which of them it is of:
    `scoring zoo:mamba (2 of 8)`."""
    global _which
    try:
        for place, item in enumerate(items, start=1):
            _which = f" ({place} of {len(items)})" if len(items) > 1 else ""
            yield item
    finally:
        _which = ""


@contextlib.contextmanager
def progress(
    description: str,
    *,
    total: int | None = None,
    unit: str = "tokens",
    saved: Callable[[], int] | None = None,
) -> Iterator[Show]:
    """A block of long work: yields a function to be called with how much is done, of `total` if
    that is known.

    Rate and remaining time are of this run, from its beginning on, so that they are there however
    long a batch takes. If the work is interrupted, a line says how much was done, or is `saved`,
    which is asked for then.
    """
    global _begun, _ended
    work = _Work(description + _which, total, unit)
    # there is one bar at a time
    is_drawn = not _running and not events.are_on() and stderr().is_terminal
    _running.append(work)
    if len(_running) == 1 and time.monotonic() - _ended > _PAUSE:
        _begun = time.monotonic()
    try:
        with _bar(work) if is_drawn else _ticking(work):
            work.begin()
            yield work.show if is_drawn else work.tell
    except KeyboardInterrupt:
        if saved is not None:
            work.show(saved())
        events.note(f"{work.description}: {work.amount()} {'done' if saved is None else 'kept'}")
        raise
    finally:
        _running.remove(work)
        _ended = time.monotonic()


class _Work:
    """How much is done, and how fast. What is there at the beginning may be an earlier run's
    work, and is in no rate."""

    def __init__(self, description: str, total: int | None, unit: str) -> None:
        self.description, self.total, self.unit, self.is_estimate = (
            description,
            total,
            unit,
            total is None,
        )
        self.done = self._first = 0
        self._seconds = _seconds_between(
            SECONDS_BETWEEN_EVENTS if events.are_on() else SECONDS_BETWEEN_LINES
        )
        self.begin()

    def begin(self) -> None:
        """The work begins now."""
        self._begun = time.monotonic()
        self._last_report: float | None = None

    def show(self, done: int, about: int | None = None, /) -> None:
        """`done` of `total`, or of `about` so many: what the bar draws next."""
        if self.is_estimate:
            self.total = about
        if not self.done and time.monotonic() - self._begun < _AT_ONCE:
            self._first = done
        self.done = done

    def tell(self, done: int, about: int | None = None, /) -> None:
        """The same, and a line or an event of it if one is due."""
        self.show(done, about)
        self.tell_if_due()

    def seconds_left(self) -> float:
        """Until the next line: the first one is early, but not at the heels of other work's."""
        now = time.monotonic()
        if self._last_report is not None:
            return self._last_report + self._seconds - now
        is_chosen = _VARIABLE in os.environ  # then the first line has no other time
        first, apart = (self._seconds, 0.0) if is_chosen else (_FIRST, _APART)
        return max(_begun + first, _last_line + apart) - now

    def tell_if_due(self) -> None:
        """A line or an event of how much is done, if the last one was long ago."""
        global _last_line
        with _lock:
            if _running[-1:] == [self] and self.seconds_left() <= 0:
                self._last_report = _last_line = time.monotonic()
                self._write()

    def _write(self) -> None:
        if not events.are_on():
            events.note(", ".join([f"{self.description}: {self.amount()}", *self.paces()]))
            return
        rate, left = self.rate()
        is_estimate = self.is_estimate and self.total is not None
        facts: dict[str, Any] = {
            "task": self.description,
            "done": self.done,
            "total": self.total,
            "total_is_estimate": is_estimate,
        }
        events.emit(
            "progress",
            f"{self.description}: {self.amount()}",
            **facts,
            unit=self.unit,
            rate=rate,
            eta_seconds=left,
        )

    def rate(self) -> tuple[float | None, float | None]:
        """Units per second, and the seconds until all is done at this rate; None where nothing
        is done yet, or no total known."""
        seconds = time.monotonic() - self._begun
        if seconds <= 0 or self.done <= self._first:
            return None, None
        rate = (self.done - self._first) / seconds
        return rate, None if self.total is None else max(0, self.total - self.done) / rate

    def paces(self) -> list[str]:
        """`1.2k/s` and `12 s left`, where they are known; of less than a second nothing is said."""
        rate, left = self.rate()
        paces = [f"{abbreviate(rate)}/s"] if rate else []
        if left is not None and left >= 1:
            paces.append(f"{f'{left:.0f} s' if left < _MINUTE else duration(left)} left")
        return paces

    def amount(self) -> str:
        """`12,288 of 100,000 tokens`; `12,288 of about 98k tokens` for an estimate."""
        if self.total is None:
            return f"{self.done:,} {self.unit}"
        return (
            f"{self.done:,} of "
            f"{f'about {abbreviate(self.total)}' if self.is_estimate else f'{self.total:,}'} "
            f"{self.unit}"
        )


@contextlib.contextmanager
def _ticking(work: _Work) -> Iterator[None]:
    """A block whose lines a thread writes where the work does not, such as while a batch takes
    minutes."""
    is_over = threading.Event()

    def tell() -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed log must not stop the work
            while not is_over.wait(max(_LEAST_WAIT, work.seconds_left())):
                work.tell_if_due()

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


_LEAST_WAIT = 0.05
"""Seconds between two looks at the clock."""


def _bar(work: _Work) -> Progress:
    """A bar that is drawn several times a second, of the work done by then, in one line: the bar
    has the room that words leave."""
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.progress_bar import ProgressBar
    from rich.table import Column
    from rich.text import Text

    from recallkit.display.charts import shorten

    class Bar(ProgressColumn):
        def render(self, task: Any) -> ProgressBar:
            return ProgressBar(total=work.total, completed=work.done, pulse=work.total is None)

    class Amount(ProgressColumn):
        def render(self, task: Any) -> Text:
            amount = abbreviate(work.done)
            if work.total is not None:
                amount += f"/{'~' * work.is_estimate}{abbreviate(work.total)}"
            return Text("  ".join([f"{amount} {work.unit}", *work.paces()]))

    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        Bar(table_column=Column(ratio=1)),
        Amount(table_column=Column(no_wrap=True, min_width=_AMOUNT)),
    ]
    bar = Progress(*columns, console=stderr(), transient=True, expand=True)
    room = stderr().width - _AMOUNT - 8
    bar.add_task(shorten(work.description, max(_LEAST_NAME, room)), total=None)
    return bar


def _seconds_between(usual: float) -> float:
    """$RECALLKIT_LOG_SECONDS if it is a number from 0 on, else what is usual."""
    try:
        seconds = float(os.environ.get(_VARIABLE, ""))
    except ValueError:
        return usual
    return seconds if seconds >= 0 else usual
