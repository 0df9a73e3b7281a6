"""Calls into native code that never come back, given up: Python cannot interrupt them, but need not wait for them either.

A tokenizer's pattern can backtrack for years on one line of text. Calls are made in a thread beside, which works as long as the
native code lets go of the interpreter's lock; who waits gets an error instead, and whatever was finished before stays as it is.
The thread itself goes on until the process ends.
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
"""Seconds of one look at the clock: of time in which the process was stopped no more than this is counted."""
_GRACE = 5.0
"""Seconds that an interrupted call may still take to end: native code that comes back into an ending program can crash it."""


class _Caller:
    """A thread that makes one call at a time. It is kept, for a thread takes longer to start than a short text to encode."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="recallkit-calls").start()

    def _work(self) -> None:
        while True:
            call = self.calls.get()
            try:
                answer: tuple[Any, BaseException | None] = (call(), None)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                answer = (None, error)
            self.answers.put(answer)
            del call, answer  # what it holds may be large

    def wait(self, seconds: float) -> tuple[Any, BaseException | None]:
        """The answer. Raises queue.Empty where there is none yet."""
        return self.answers.get(timeout=seconds)


_idle: list[_Caller] = []
os.register_at_fork(after_in_child=_idle.clear)


def call_within(seconds: float, call: Callable[[], Value]) -> Value:
    """The value of `call()`; raises what it raises, and TimeoutError once it has run for longer than `seconds`.

    Both the time that passed and the processor time of this process must exceed the limit: a slow machine, a busy one, a
    process that was stopped for an hour are no reason to give up. It is the whole process's time, because tokenizers work in
    threads of their own; a call that was given up still uses some, so that calls after it are judged by the time that passed.
    """
    try:
        caller = _idle.pop()
    except IndexError:
        caller = _Caller()
    caller.calls.put(call)
    value, error = _await(caller, seconds)
    _idle.append(caller)  # one that was given up is not used again
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame
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
    """Waits a little, whatever else is pressed."""
    end = time.monotonic() + _GRACE
    while (left := end - time.monotonic()) > 0:
        try:
            caller.wait(left)
        except queue.Empty:
            pass
        except KeyboardInterrupt:
            continue
        return
