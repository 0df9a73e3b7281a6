"""All checks, several at a time, in the order in which they are printed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from recallkit.doctor import machine, packages, surroundings
from recallkit.doctor.checks import Check, guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS, _SECONDS_FULL = 20.0, 120.0
"""Time limit of one check. Those in processes of their own import torch, which takes up to ten seconds on a busy machine."""
_AT_ONCE = 2
_QUICK = 6.0


def examine(*, full: bool = False) -> list[Check]:
    """Runs all checks; `full` gives slow checks more time, and starts Ray. Never raises."""
    seconds = _SECONDS_FULL if full else _SECONDS
    looks: list[tuple[str, str, Callable[[], list[Check]], float]] = [
        ("packages", "python", packages.check_python, _QUICK),
        ("packages", "versions", packages.check_versions, _QUICK),
        *(("packages", f"{name} at work", partial(packages.check_working, name, seconds), seconds) for name in packages.WORKING),
        ("machine", "processor", machine.check_processor, _QUICK),
        ("machine", "memory", machine.check_memory, _QUICK),
        ("machine", "devices", partial(machine.check_torch, seconds), seconds),
        *(
            ("folders", name, partial(machine.check_folder, name, folder, is_needed=name == "temporary files"), _QUICK)
            for name, folder in machine.folders().items()
        ),
        ("surroundings", "compiled loops", partial(surroundings.check_numba, seconds), seconds),
        ("surroundings", "tokenizer", partial(surroundings.check_tokenizer, seconds), seconds),
        ("surroundings", "kernels", partial(surroundings.check_triton, seconds), seconds),
        ("surroundings", "ray", partial(surroundings.check_ray, seconds, full=full), seconds),
        ("surroundings", "hub", surroundings.check_hub, _QUICK),
        ("surroundings", "built-in text", surroundings.check_builtin, _QUICK),
        ("surroundings", "encoding", surroundings.check_encoding, _QUICK),
        ("surroundings", "variables", surroundings.check_settings, _QUICK),
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [pool.submit(guarded, group, name, look, seconds=limit + 1) for group, name, look, limit in looks]
        return [check for future in waiting for check in future.result()]
