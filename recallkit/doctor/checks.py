"""One check of the installation or the machine, here or in a process of its own: it never raises and is limited in time."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from recallkit.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `fail`: every command needs it; `warn`: some do, or it is slower than it could be. Both have a `remedy`."""

    name: str
    status: Status
    found: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A function that checks something, and what it means if it raises, crashes or takes too long."""

    name: str
    function: Callable[[], list[Check]]
    is_apart: bool = False
    """Whether it runs in a process of its own, because it may hang or crash: imports, compilers, file systems, the network."""
    otherwise: Status = "warn"
    remedy: str = "try again when the machine is idle; if it persists, please report a bug"

    def inspect(self, seconds: float) -> list[Check]:
        """The checks, within `seconds` where the function runs apart."""
        try:
            return self._ask_process(seconds) if self.is_apart else self.function()
        except subprocess.TimeoutExpired:
            return [Check(self.name, "warn", f"no answer within {seconds:g} s", self.remedy)]
        except Exception as error:  # noqa: BLE001 - whatever it was, the other checks continue
            return [self._failed(described(error))]

    def answer(self) -> None:
        """Prints the checks as JSON: the other side of `_ask_process`."""
        try:
            checks = self.function()
        except Exception as error:  # noqa: BLE001 - the process that asked reports it
            checks = [self._failed(described(error))]
        # On a line of its own, whatever a library has printed.
        sys.stdout.write("\n" + json.dumps([dataclasses.astuple(each) for each in checks]) + "\n")

    def _failed(self, reason: str) -> Check:
        return Check(self.name, self.otherwise, printable(reason)[:200], self.remedy)

    def _ask_process(self, seconds: float) -> list[Check]:
        path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
        # -P: a file torch.py in the user's folder must not be imported
        command = [sys.executable, "-P", "-m", "recallkit.doctor.examine", self.name]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=seconds, check=False)
        out, err = (output.decode("utf-8", "replace").strip() for output in (done.stdout, done.stderr))
        if done.returncode:
            return [self._failed(err.splitlines()[-1] if err else f"exit status {done.returncode}")]
        return [Check(*fields) for fields in json.loads(out.splitlines()[-1])]


def described(error: Exception) -> str:
    """The type of an error, and the first line of its message."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
