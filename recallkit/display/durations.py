"""How long something took, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import console

if TYPE_CHECKING:
    from collections.abc import Mapping

_MINUTE, _HOUR = 60, 3600


def print_timings(timings: Mapping[str, Any] | None) -> None:
    """A line on stdout, if anything is known."""
    if timings is not None and timings["stages"]:
        console.print_line(timings_line(timings))


def timings_line(timings: Mapping[str, Any]) -> str:
    """`Took 12.3 s: slicing 10.1 s (1.2M tokens/s), labelling 2.2 s (5.6M tokens/s).`"""
    stages = ", ".join(f"{name} {_stage(stage)}" for name, stage in timings["stages"].items())
    rest = "; what an interrupted run did is not in it" if timings.get("resumed") else ""
    return f"Took {duration(timings['seconds'])}: {stages}{rest}."


def _stage(stage: Mapping[str, Any]) -> str:
    end = "_per_second"
    rates = [f"{console.abbreviate(rate)} {name.removesuffix(end)}/s" for name, rate in stage.items() if name.endswith(end)]
    return duration(stage["seconds"]) + (f" ({', '.join(rates)})" if rates else "")


def duration(seconds: float) -> str:
    """0.0123 -> 0.01 s, 12.34 -> 12.3 s, 754 -> 12 min 34 s, 7500 -> 2 h 5 min."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s"
    if round(seconds) < _HOUR:
        return f"{round(seconds) // _MINUTE} min {round(seconds) % _MINUTE} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // 60:,} h {minutes % 60} min"
