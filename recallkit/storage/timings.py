"""How long each stage of a command took, and how much it processed: kept in the manifest, reported as events.

Seconds are of a monotonic clock. They are in lists of members (`manifest.json`), never in a table's footer: the tables of an
interrupted run and of an uninterrupted one have the same bytes, and no digest covers timings.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recallkit import events
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = artifacts.TIMINGS
"""The key of timings in a manifest."""


@dataclass(slots=True)
class Stage:
    """A running stage: `amounts` (unit -> how much it processed) may be set until it ends.

    `seconds` are those of earlier runs until it ends, then of all of them. `resumed`: an earlier run did a part of it
    whose seconds are not known, so that `amounts` are of this run only.
    """

    name: str
    seconds: float = 0.0
    resumed: bool = False
    amounts: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Seconds, amounts, amounts per second; `resumed` if it is set."""
        rates = {f"{unit}_per_second": amount / self.seconds for unit, amount in self.amounts.items() if self.seconds > 0}
        return {"seconds": self.seconds, **self.amounts, **rates, **({"resumed": True} if self.resumed else {})}


class Timings:
    """The stages of one output, in order."""

    def __init__(self) -> None:
        self._stages: dict[str, dict[str, Any]] = {}
        self._resumed = False

    @contextlib.contextmanager
    def stage(self, name: str, *, of: str | None = None, before: float = 0.0, resumed: bool = False) -> Iterator[Stage]:
        """Times a block; reports its begin, and its end if it succeeds.

        `of`: which of several, for events. `before`: seconds that earlier runs spent in it. Yields the stage, whose amounts may be set.
        """
        stage, shown = Stage(name, before, resumed), name if of is None else f"{name} ({of})"
        events.emit("stage", f"{shown} begins", stage=name, state="begin", of=of, resumed=resumed or before > 0)
        begun = time.monotonic()
        yield stage
        stage.seconds = before + time.monotonic() - begun
        self.add(stage)
        events.emit("stage", f"{shown} took {stage.seconds:.1f} s", stage=name, state="end", of=of, **stage.to_json())

    def add(self, stage: Stage) -> None:
        """Keeps a stage that has ended; replaces one of the same name."""
        self._stages[stage.name] = stage.to_json()

    def keep(self, name: str, manifest: Path, stage: str, **facts: Any) -> None:
        """Adopts, as `name`, a stage that an earlier run finished, from its manifest file if that contains these `facts`.

        Otherwise its duration is not known.
        """
        known = read_timings(manifest, **facts)
        if known is None or stage not in known["stages"]:
            self._resumed = True
        else:
            self._stages[name] = dict(known["stages"][stage])

    def to_json(self) -> dict[str, Any]:
        """`seconds` of all stages together, `resumed` if they exclude work of an earlier run, `stages` by name."""
        resumed = self._resumed or any(stage.get("resumed") for stage in self._stages.values())
        seconds = sum(stage["seconds"] for stage in self._stages.values())
        return {"seconds": seconds, "resumed": resumed, "stages": self._stages}


def read_timings(path: Path, **facts: Any) -> dict[str, Any] | None:
    """The timings in a manifest file, if it contains these `facts`.

    None if the file is absent or damaged, differs in them, or has no timings: nothing depends on timings.
    """
    manifest = artifacts.json_object(path)
    found = manifest.get(KEY)
    if not isinstance(found, dict) or any(manifest.get(name) != value for name, value in facts.items()):
        return None
    if not isinstance(found.get("seconds"), int | float) or not isinstance(found.get("stages"), dict):
        return None
    sound = {name: of for name, of in found["stages"].items() if isinstance(of, dict) and isinstance(of.get("seconds"), int | float)}
    return {**found, "stages": sound}
