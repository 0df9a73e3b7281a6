"""The command that makes a result again, from what its manifest says: without folders, which would tell of the machine."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Value = str | int | float | None | Sequence[str | int | float]

MOST_NAMED = 4
"""Files of a text that a command names; more are `TEXT...`."""


def command_line(name: str, /, *words: str, **options: Value) -> str:
    """`recallkit mqar zoo:attention zoo:hyena --pairs 4,8 --seq-len 256 -o DIR`.

    An option of one letter has one dash. Those that are None, False or empty are left out; True is an option without a value, a list
    is joined with commas, and a tuple repeats the option.
    """
    parts = ["recallkit", name, *map(shlex.quote, words)]
    for key, value in options.items():
        flag = f"-{key}" if len(key) == 1 else f"--{key.replace('_', '-')}"
        if value is True:
            parts.append(flag)
        elif value is not None and value is not False and value not in ("", [], ()):
            joined = [",".join(map(str, value))] if isinstance(value, list) else value
            values = joined if isinstance(joined, list | tuple) else [joined]
            parts += [f"{flag} {shlex.quote(str(each))}" for each in values]
    return " ".join(parts)


def bare(name: str) -> str:
    """A file's name without its folder; a hub id, preset or URL as it is."""
    return PurePath(name).name if PurePath(name).is_absolute() or name.startswith(("./", "../", "~")) else name
