"""Checks of the installation and the machine, which never raise and are limited in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from recallkit.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable

Status = Literal["ok", "warn", "fail"]
_RANKS: tuple[Status, ...] = ("ok", "warn", "fail")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: `found` is a line for people, `facts` the same for programs.

    `fail`: every command needs it; `warn`: some commands do, or something is slower than it could be. Both have a `remedy`.
    """

    group: str
    name: str
    status: Status
    found: str
    remedy: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"group": self.group, "name": self.name, "status": self.status, "found": self.found, "remedy": self.remedy, **self.facts}


def worst(checks: list[Check]) -> Status:
    """The worst status of all checks."""
    return max((check.status for check in checks), key=_RANKS.index, default="ok")


def guarded(group: str, name: str, look: Callable[[], list[Check]], *, seconds: float = 5.0) -> list[Check]:
    """The checks that `look` returns; a warning where it raises or exceeds its time."""
    try:
        return within(seconds, look)
    except TimeoutError:
        problem = f"no answer within {seconds:g} s"
    except Exception as error:  # noqa: BLE001 - whatever it was, the other checks continue
        problem = f"could not be checked ({printable(described(error))[:200]})"
    return [Check(group, name, "warn", problem, "try again when the machine is idle; if it persists, please report a bug")]


def within(seconds: float, look: Callable[[], _T]) -> _T:
    """The result or the error of `look`, run in a thread that is abandoned after `seconds`. Raises TimeoutError then."""
    answers: list[_T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            answers.append(look())
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)  # a hanging file system or name server must not block the exit
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]


class ProbeError(Exception):
    """A failure reported by a probe in a process of its own."""


def probe(name: str, *, seconds: float, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The result of a probe of `doctor/probes.py` in a process of its own, which may hang or crash without harm.

    Raises ProbeError with the reason, TimeoutError after `seconds`.
    """
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    # -P: a file torch.py in the user's folder must not be imported
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "recallkit.doctor.probes", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        start_new_session=True,
    )
    with process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            _kill_group(process)
    if process.returncode:
        raise ProbeError(_last_line(err) or f"exit status {process.returncode}")
    answer = json.loads(_last_line(out))
    if "error" in answer:
        raise ProbeError(str(answer["error"]))
    return dict(answer)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a probe and the processes that it started (Ray starts many)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        process.wait()


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def described(error: Exception) -> str:
    """The type of an error, and the first line of its message."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
