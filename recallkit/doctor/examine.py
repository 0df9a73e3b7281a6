"""All checks, several at a time, and what is printed of them.

`python -m recallkit.doctor.examine NAME` answers one of them in a process of its own, as JSON.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.doctor import installation, machine, surroundings
from recallkit.doctor.checks import Check, Probe

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 60.0
"""Time limit of one check. Many import torch, which takes up to ten seconds on a busy machine."""
_AT_ONCE = 2


PROBES = (
    Probe("python", installation.check_python),
    Probe("versions", installation.check_versions),
    Probe("tables at work", installation.check_tables, True, "fail", "pip install --force-reinstall polars pyarrow duckdb"),
    Probe("transformers at work", installation.check_transformers, True, "warn", "pip install --force-reinstall transformers"),
    Probe("processor", machine.check_processor),
    Probe("memory", machine.check_memory),
    Probe("devices", machine.check_devices, True, "fail", "reinstall torch as pytorch.org says for this machine"),
    *(Probe(name, partial(machine.check_folder, name), True) for name in machine.FOLDERS),
    Probe("compiled loops", surroundings.check_numba, True, "fail", f"{surroundings.NUMBA_REMEDY}, or reinstall numba"),
    Probe("tokenizer", surroundings.check_tokenizer, True, "fail", "reinstall recallkit and tokenizers"),
    Probe("kernels", surroundings.check_triton, True, "warn", "RECALLKIT_KERNELS=torch works without them"),
    Probe("hub", surroundings.check_hub, True),
    Probe("variables", surroundings.check_settings),
)
"""In the order in which they are printed."""


def examine() -> list[Check]:
    """Runs all checks. Never raises."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [pool.submit(probe.inspect, _SECONDS) for probe in PROBES]
        return [check for future in waiting for check in future.result()]


def doctor_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The worst status, and each check."""
    worst = next((status for status in ("fail", "warn") if _names(checks, status)), "ok")
    return {"status": worst, "checks": [asdict(check) for check in checks]}


def print_doctor(checks: Sequence[Check]) -> None:
    """How many are not ok, then status, name and what was found, with the remedy below those that are not ok."""
    found = ((_names(checks, status), word) for status, word in (("fail", "failed"), ("warn", "with warnings")))
    counts = "; ".join(f"{len(names)} {word}: {', '.join(names)}" for names, word in found if names)
    rows = []
    for check in checks:
        rows.append((f"{check.status:<4}  {check.name}", check.found))
        rows += [("", f"-> {check.remedy}")] if check.remedy and check.status != "ok" else []
    console.print_list(f"{len(checks)} checks; {counts or 'all passed'}.", rows)


def failure_line(checks: Sequence[Check]) -> str | None:
    """Which checks failed, and where what to do about them is; None if none did."""
    failed = _names(checks, "fail")
    return f"failed: {', '.join(failed)}; the remedy is given with each of these checks" if failed else None


def _names(checks: Sequence[Check], status: str) -> list[str]:
    return [check.name for check in checks if check.status == status]


if __name__ == "__main__":
    next(each for each in PROBES if each.name == sys.argv[1]).answer()
