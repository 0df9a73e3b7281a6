"""How long each stage of a command took, and how much it processed: kept in the manifest, reported
as events.

Seconds are of a monotonic clock. They are in lists of members (`manifest.json`), never in a table's
footer: the tables of an interrupted run and of an uninterrupted one have the same bytes, and no
digest covers timings.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from recallkit import events
from recallkit.errors import UserError
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = artifacts.TIMINGS
"""The key of timings in a manifest."""


@dataclass(slots=True)
class Stage:
    """A running stage: `amounts` (unit -> how much it processed) may be set until it ends.

    `resumed`: an earlier run did a part of it; `seconds` and `amounts` are of this run only.
    """

    resumed: bool = False
    seconds: float = 0.0
    amounts: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Seconds, amounts, amounts per second; `resumed` if it is set."""
        rates = {
            f"{unit}_per_second": amount / self.seconds
            for unit, amount in self.amounts.items()
            if self.seconds > 0
        }
        return {
            "seconds": self.seconds,
            **self.amounts,
            **rates,
            **({"resumed": True} if self.resumed else {}),
        }


class Timings:
    """The stages of one output, in order, and the `device` of the work, if there was one to
    choose."""

    def __init__(self, device: str | None = None) -> None:
        self._stages: dict[str, dict[str, Any]] = {}
        self._device = device

    @contextlib.contextmanager
    def stage(
        self, name: str, *, item: str | None = None, resumed: bool = False
    ) -> Iterator[Stage]:
        """Times a block; reports its begin, and its end if it succeeds. `item`: which of several,
        for events."""
        stage, shown = Stage(resumed), name if item is None else f"{name} ({item})"
        events.emit("stage", f"{shown} begins", stage=name, state="begin", of=item, resumed=resumed)
        begun = time.monotonic()
        yield stage
        stage.seconds = time.monotonic() - begun
        self._stages[name] = stage.to_json()
        events.emit(
            "stage",
            f"{shown} took {stage.seconds:.1f} s",
            stage=name,
            state="end",
            of=item,
            **stage.to_json(),
        )

    def keep(self, name: str, manifest: Path, stage: str) -> None:
        """Takes over, as `name`, a stage of another result from its manifest file, if it is known
        there."""
        if (known := read_timings(manifest)) is not None and stage in known["stages"]:
            self._stages[name] = known["stages"][stage]

    def to_json(self) -> dict[str, Any]:
        """`seconds` of all stages together, `resumed` if they exclude work of an earlier run,
        `stages` by name; when it `ended`, on which `device`, and the `command` that was typed."""
        stages = self._stages.values()
        return {
            "seconds": sum(stage.get("seconds", 0) for stage in stages),
            "resumed": any(stage.get("resumed") for stage in stages),
            "stages": self._stages,
            "ended": datetime.now().astimezone().isoformat(timespec="seconds"),
            "device": self._device,
            "command": events.COMMAND.get(),
        }


def read_timings(path: Path, kind: str | None = None) -> dict[str, Any] | None:
    """The timings in a manifest file (of this `kind`); None if it is absent or damaged, or has
    none: nothing depends on timings."""
    with contextlib.suppress(UserError):
        manifest = artifacts.read_list(path) if path.exists() else {}
        if kind in (None, manifest.get("kind")):
            return manifest.get(KEY)
    return None
