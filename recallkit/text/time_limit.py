"""Time limits for calls into native code: Python cannot interrupt them, but it can stop waiting for them.

A tokenizer's pattern can backtrack for years on one line of text. Calls are made in a second thread, which works as long as the
native code releases the interpreter lock; the caller gets an error after the limit, and what was finished before is kept. The
thread itself runs until the process ends.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")

_TURN = 1.0
"""Seconds between looks at the clock: if the process is stopped in between, at most this much of that time is counted."""
_GRACE = 5.0
"""Seconds that an interrupted call is given to end: native code that returns into an exiting interpreter can crash it."""


class _Caller:
    """A thread that makes one call at a time. It is reused, because starting a thread takes longer than encoding a short text."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="recallkit-calls").start()

    def _work(self) -> None:
        while True:
            call = self.calls.get()
            try:
                answer: tuple[Any, BaseException | None] = (call(), None)
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                answer = (None, error)
            self.answers.put(answer)
            del call, answer  # the result may be large

    def wait(self, seconds: float) -> tuple[Any, BaseException | None]:
        """The answer. Raises queue.Empty if there is none yet."""
        return self.answers.get(timeout=seconds)


_idle: list[_Caller] = []
os.register_at_fork(after_in_child=_idle.clear)


def call_within(seconds: float, call: Callable[[], Value]) -> Value:
    """The value of `call()`; raises what it raises, and TimeoutError once it has run for longer than `seconds`.

    Both elapsed time and CPU time of this process must exceed the limit, so that neither a busy machine nor a process that was
    stopped for an hour causes an error. It is the CPU time of the whole process, because tokenizers use threads of their own; an
    abandoned call still uses some, so that for later calls elapsed time alone decides.
    """
    try:
        caller = _idle.pop()
    except IndexError:
        caller = _Caller()
    caller.calls.put(call)
    value, error = _await(caller, seconds)
    _idle.append(caller)  # a thread whose call timed out is not reused
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return value  # type: ignore[no-any-return]


def _await(caller: _Caller, seconds: float) -> tuple[Any, BaseException | None]:
    busy, waited, turn = time.process_time(), 0.0, min(_TURN, seconds)
    while True:
        try:
            return caller.wait(turn)
        except queue.Empty:
            waited += turn
            if waited >= seconds and time.process_time() - busy >= seconds:
                raise TimeoutError(f"not done within {seconds:.0f} s") from None
        except KeyboardInterrupt:
            _let_end(caller)
            raise


def _let_end(caller: _Caller) -> None:
    """Waits a few seconds for the call to end, even if Ctrl-C is pressed again."""
    end = time.monotonic() + _GRACE
    while (left := end - time.monotonic()) > 0:
        try:
            caller.wait(left)
        except queue.Empty:
            pass
        except KeyboardInterrupt:
            continue
        return
