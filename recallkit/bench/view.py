"""The table of `bench`: a row per model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.display import console
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.bench.models import Results

_TASKS = ("scoring", "prefill", "generation")


def bench_table(results: Results) -> Table:
    """Tokens per millisecond of each model in each task, or why there are none; the workload below."""
    found: dict[str, dict[str, str]] = {}
    for row in results.rows:
        found.setdefault(row.model, {})[row.benchmark] = row.problem or f"{row.rate:.3g}"
    machine = results.machine
    return Table(
        f"{machine['name']}, {machine['dtype']}, torch {machine['torch']}; random weights",
        ["model, tokens/ms", *_TASKS],
        [[model, *(rates.get(task, "") for task in _TASKS)] for model, rates in found.items()],
        caption="; ".join(dict.fromkeys(f"{row.benchmark}: {row.size_text}" for row in results.rows)),
    )


def print_bench(results: Results, files: Sequence[Path]) -> None:
    """The table, and the files."""
    console.print_table(bench_table(results))
    for path in files:
        console.print_line(f"Written: {path}", is_path=True)
