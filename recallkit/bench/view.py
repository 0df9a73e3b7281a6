"""Tables of benchmark results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.display import console
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.bench.results import Results


def print_bench(results: Results, files: Sequence[Path]) -> None:
    """One row per measurement, with the ceilings of the machine below."""
    from recallkit.bench import results as shown

    machine = results.machine
    ceilings = f"copies {shown.si(machine['copy_b_s'], 'B/s')}, matrix products {shown.si(machine['matrix_flop_s'], 'FLOP/s')}"
    title = f"{machine['name']}, {machine['dtype']}, torch {machine['torch']}"
    operations, models = shown.operation_lines(results.rows), shown.model_lines(results.rows)
    if operations:
        caption = (
            "Medians. Rate: of the least work. Share: of what a large copy\n"
            f"or matrix product reaches ({ceilings}).\n"
            "x ours: above 1, recallkit is faster."
        )
        console.print_table(Table(title, shown.COLUMNS, operations, caption=caption))
    if models:
        console.print_table(Table(f"{title}; random weights", shown.MODEL_COLUMNS, models, caption=shown.model_sizes(results.rows)))
    for line in (*results.verdicts, *(f"Written: {path}" for path in files)):
        console.print_line(line, is_path=True)
