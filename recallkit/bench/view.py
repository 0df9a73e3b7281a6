"""Tables of benchmark results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.display import console
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.bench.results import Results


def bench_tables(results: Results) -> dict[str, Table]:
    """The tables by name: `operations`, one row per measurement, with the ceilings of the machine below; `models`, one row each."""
    from recallkit.bench import results as shown

    machine = results.machine
    ceilings = f"copies {shown.si(machine['copy_b_s'], 'B/s')}, matrix products {shown.si(machine['matrix_flop_s'], 'FLOP/s')}"
    title = f"{machine['name']}, {machine['dtype']}, torch {machine['torch']}"
    operations, models = shown.operation_lines(results.rows), shown.model_lines(results.rows)
    caption = (
        "Medians. Rate: of the least work. Share: of what a large copy\n"
        f"or matrix product reaches ({ceilings}).\n"
        "x ours: above 1, recallkit is faster."
    )
    made = {
        "operations": Table(title, shown.COLUMNS, operations, caption=caption),
        "models": Table(f"{title}; random weights", shown.MODEL_COLUMNS, models, caption=shown.model_sizes(results.rows)),
    }
    return {name: table for name, table in made.items() if table.rows}


def print_bench(results: Results, files: Sequence[Path]) -> None:
    """The tables, and how targets were met."""
    for table in bench_tables(results).values():
        console.print_table(table)
    for line in (*results.verdicts, *(f"Written: {path}" for path in files)):
        console.print_line(line, is_path=True)
