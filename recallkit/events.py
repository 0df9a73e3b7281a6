"""Machine-readable logs: everything on stderr as JSON Lines, one event per line (`--log-json`).

Off by default. When it is on, notes, progress, stages and errors are events; whatever libraries,
native code and other processes write to stderr passes through a pipe and becomes events too, so
that every line parses.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import math
import os
import sys
import threading
import warnings
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError, as_utf8, printable, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OPTION = "--log-json"
VARIABLE = "RECALLKIT_LOG_JSON"
"""Any value but 0, no, off or false turns events on, as `--log-json` does; child processes inherit
it."""
_COMMAND = "RECALLKIT_LOG_COMMAND"
"""The name of the command, for its child processes."""

COMMAND: ContextVar[str | None] = ContextVar("command", default=None)
"""The command line that is run, as results record it; None in Python."""

OUTPUT = "standard output"

_NO = ("", "0", "no", "off", "false")
_LONGEST_OUTPUT = 1 << 20
"""Bytes of foreign output that one event contains at most: a progress bar that never ends its line
must not fill the memory."""
_SECONDS_TO_DRAIN = 2.0
"""How long the program waits at its end for output still in the pipe: the reader of the log may be
slow."""

is_uncut = False
"""Whether an interrupt waits, because a block of `uncut` is under way."""

_lock = threading.RLock()
_pump: _Pump | None = None


def are_on() -> bool:
    """Whether stderr carries events."""
    return os.environ.get(VARIABLE, "").strip().lower() not in _NO


def start(command: str | None = None) -> None:
    """From now on stderr carries only events, of this process and its children; a further call only
    sets the command's name."""
    global _pump
    os.environ[VARIABLE] = "1"
    if command is not None:
        os.environ[_COMMAND] = printable(command)
    warnings.showwarning = _emit_warning
    write_whole_lines()
    if _pump is None and _is_standard_error():
        _pump = _Pump()
        # registered first, hence called last: output of other exit handlers becomes events too
        atexit.register(stop)


def write_whole_lines() -> None:
    """Has stderr write line by line, with PYTHONUNBUFFERED, too: there processes that share it
    would mix the pieces that `print` writes."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(line_buffering=True, write_through=False)


class _Result(io.FileIO):
    """Standard output: an error names it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, OUTPUT) from error


class _Log(io.FileIO):
    """Standard error: where it cannot be written, work goes on without it."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(data)


def open_streams() -> None:
    """Gives this process all its standard streams, and makes a result count more than what is said
    of it.

    A file that is opened while one of them is closed would take its place, and what libraries write
    to stderr with it.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:  # it is closed: of no other is the number free
            # one that cannot be written for results
            os.set_inheritable(os.open(os.devnull, mode), True)
    for name, number, kind in (("stdout", 1, _Result), ("stderr", 2, _Log)):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, io.TextIOWrapper):
            writer = io.BufferedWriter(kind(number, "w", closefd=False))
            by_line = not stream or stream.line_buffering or stream.write_through
            encoding, errors = (
                (stream.encoding, stream.errors) if stream else ("utf-8", "backslashreplace")
            )
            text = io.TextIOWrapper(writer, encoding, errors, line_buffering=by_line)
            setattr(sys, name, text)


def stop() -> None:
    """Restores stderr after forwarding what is still in the pipe."""
    global _pump
    if _pump is not None:
        _pump.close()
        _pump = None


def _emit_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    """Writes what Python's `warnings` would print as one event."""
    emit(
        "warning",
        str(message),
        level="warning",
        category=category.__name__,
        file=filename,
        line=lineno,
    )


def _is_standard_error() -> bool:
    """Whether `sys.stderr` is file descriptor 2, not an object that a test or a notebook put in its
    place."""
    try:
        return sys.stderr.fileno() == 2
    except (AttributeError, OSError, ValueError):
        return False


def emit(event: str, message: str, *, level: str = "info", **fields: Any) -> None:
    """Writes an event if events are on. It may contain any text: control characters and lone
    surrogates are escaped."""
    if not are_on():
        return
    _write(_line(event, message, level, fields))


def note(message: str, *, event: str = "note", level: str = "info", **fields: Any) -> None:
    """A line for the user on stderr; where stderr is for events one of this kind and level, with
    these fields."""
    if are_on():
        emit(event, message, level=level, **fields)
        return
    sys.stderr.write(f"recallkit: {printable(redacted(message))}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def uncut() -> Iterator[None]:
    """A short block that Ctrl-C and SIGTERM do not cut: they are heard once it has ended."""
    global is_uncut
    is_uncut = True
    try:
        yield
    finally:
        is_uncut = False


def emit_error(
    problem: str, *, where: object = None, remedy: str | None = None, **fields: Any
) -> None:
    """The event with which a command fails: the last one, after everything that was written to
    stderr before."""
    if _pump is not None:
        _pump.drain()
    line = UserError(problem, where=where, remedy=remedy).line()
    facts = {"problem": problem, "where": None if where is None else str(where), "remedy": remedy}
    emit("error", line, level="error", **facts, **fields)


def _line(event: str, message: str, level: str, fields: Mapping[str, Any]) -> bytes:
    stamp = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level,
        "event": event,
        "command": os.environ.get(_COMMAND) or None,
        "pid": os.getpid(),
        "message": printable(message),
    }
    value = strict(
        {**stamp, **{name: field for name, field in fields.items() if name not in stamp}}
    )
    return (
        json.dumps(
            _redacted(value), allow_nan=False, default=lambda other: redacted(as_utf8(str(other)))
        ).encode("ascii")
        + b"\n"
    )


def _redacted(value: Any) -> Any:
    """The value without secrets in its texts."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {redacted(key): _redacted(item) for key, item in value.items()}
    return [*map(_redacted, value)] if isinstance(value, list) else value


def strict(value: Any) -> Any:
    """The value as strict JSON has it, which parsers in other languages take: null for infinities,
    such as the perplexity of a mean NLL above 709 nats, and lone surrogates, such as those of file
    names that are not UTF-8, escaped.
    """
    if isinstance(value, str):
        return as_utf8(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {as_utf8(str(key)): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def _write(line: bytes) -> None:
    with contextlib.suppress(OSError), _lock:  # a closed log must not stop the work
        if _pump is not None:
            _pump.write(line)
        else:
            sys.stderr.write(line.decode("ascii"))
            sys.stderr.flush()


class _Pump:
    """A pipe in place of stderr: lines that are events are passed on, others become events of kind
    `output`."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self._real = os.dup(2)
        reading, self._pipe = os.pipe()
        os.dup2(self._pipe, 2)  # child processes inherit it
        self._mark, self._reached = (
            f"mark of {os.getpid()} {os.urandom(8).hex()}".encode(),
            threading.Event(),
        )
        self._thread = threading.Thread(
            target=self._forward, args=(reading,), name="stderr to events", daemon=True
        )
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Writes to the real stderr, past the pipe, so that a process's last event is not lost when
        it ends."""
        while line:
            line = line[os.write(self._real, line) :]

    def drain(self) -> None:
        """Waits until everything written before has been forwarded."""
        sys.stderr.flush()
        self._reached.clear()
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"\n" + self._mark + b"\n")
        self._reached.wait(_SECONDS_TO_DRAIN)

    def close(self) -> None:
        """Restores descriptor 2; child processes may still have the pipe open."""
        sys.stderr.flush()
        os.dup2(self._real, 2)
        self.drain()

    def _forward(self, reading: int) -> None:
        rest = b""
        while chunk := os.read(reading, 1 << 16):
            # progress bars return to the start of the line
            *lines, rest = (rest + chunk.replace(b"\r", b"\n")).split(b"\n")
            if len(rest) > _LONGEST_OUTPUT:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._pass_on(line)

    def _pass_on(self, line: bytes) -> None:
        text = line.decode("utf-8", "backslashreplace").strip()
        if line == self._mark:
            self._reached.set()
        elif _is_event(line):
            _write(line + b"\n")
        elif text:
            _write(_line("output", text, "warning" if "warning" in text.lower() else "info", {}))


def _is_event(line: bytes) -> bool:
    """Whether the line is an event of recallkit."""
    if not line.startswith(b'{"time": '):
        return False
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict) and {"time", "level", "event", "command", "message"} <= value.keys()
    )
