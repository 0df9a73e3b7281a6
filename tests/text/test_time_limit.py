"""Calls that are given up: values and errors come back, a call without end does not keep anyone waiting, a slow one is let be."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from recallkit.text.time_limit import call_within


@pytest.fixture
def burn():
    """A call that keeps a core busy without the interpreter's lock, as native code does, until the test has ended."""
    ended, data = threading.Event(), b"x" * 1_000_000

    def work() -> None:
        while not ended.is_set():
            hashlib.sha256(data)

    yield work
    ended.set()  # or its processor time would count in the tests that follow


def test_values_and_errors_are_those_of_the_call():
    assert call_within(60, lambda: 3) == 3
    with pytest.raises(KeyError, match="here"):
        call_within(60, lambda: {}["here"])
    assert call_within(60, lambda: call_within(60, lambda: 4)) == 4, "one call inside another"


def test_a_call_without_end_is_given_up_and_the_next_one_is_made(burn):
    with pytest.raises(TimeoutError, match="within 0 s"):
        call_within(0.3, burn)
    assert call_within(60, lambda: 5) == 5, "not by the thread that is busy"


def test_waiting_is_no_reason_to_give_up():
    """What takes long because the machine does something else takes no processor time: six looks at the clock pass here."""
    assert call_within(0.2, lambda: time.sleep(1.2) or "done") == "done"


def test_calls_of_several_threads_do_not_mix():
    found: dict[int, int] = {}

    def work(number: int) -> None:
        for _ in range(50):
            found[number] = call_within(60, lambda: number)
            assert found[number] == number

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number for number in range(8)}


def test_threads_are_kept():
    call_within(60, lambda: 1)
    before = threading.active_count()
    for _ in range(100):
        call_within(60, lambda: 1)
    assert threading.active_count() <= before + 1


def test_a_forked_process_makes_threads_of_its_own():
    call_within(60, lambda: 1)
    program = (
        "import os, sys; from recallkit.text.time_limit import call_within; call_within(60, lambda: 1)\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(call_within(60, lambda: 7))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False, timeout=60).returncode == 7


@pytest.fixture
def sigint():
    """Ctrl-C raises KeyboardInterrupt: a shell lets what it starts in the background ignore it, and so do the tests in it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_heard_once_the_call_has_ended(sigint):
    """And not before: native code must not come back into a program that is ending."""
    ended = []
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        call_within(60, lambda: ended.append(time.sleep(0.6)))
    assert ended == [None]
