"""A run's recall by step, as people see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.again import MOST_NAMED, command_line
from recallkit.display.cells import DASH, resampled
from recallkit.display.exports import Look
from recallkit.display.tables import Table
from recallkit.measure.intervals import MIN_CLUSTERS
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.tracking.charts import track_figures
from recallkit.tracking.tables import LEAST_RECALL, TrackTables, recall_appears

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Row = Mapping[str, Any]


def look(folder: Path, tables: TrackTables | None = None) -> Look:
    """The tracked run in a folder as people see it: its table is read unless it is given."""
    tables, manifest = tables or read_tables(TrackTables, folder), artifacts.read_manifest(folder / "track.parquet")
    said = answer(tables)
    return Look(
        folder,
        "track",
        tables,
        shown_track(tables),
        track_figures(tables),
        said,
        method(tables, manifest),
        command(tables),
        lines=[said],
        facts={"appears": recall_appears(tables.track.to_dicts())},
    )


def method(tables: TrackTables, manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the text, what recall is, the intervals."""
    slices, first = manifest["slices"], tables.track.row(0, named=True)
    return {
        "Text": f"{slices['num_rows']:,} predicted tokens in sequences of up to {slices['seq_len']:,}; "
        f"{first['ar_hits']:,} of {first['tokens']:,} tokens are AR hits",
        "Recall": "NLL of the first occurrences of the AR hits' bigrams in their sequences less that of the AR hits, nats per token",
        "Intervals": f"95 %, {resampled(first, 'document', 'document')}",
    }


def command(tables: TrackTables) -> str:
    """The command that makes it again; the checkpoints of many steps are `CHECKPOINT...`."""
    rows = tables.track.to_dicts()
    reference = rows[0]["reference"] or "REFERENCE"
    models = [row["model"] for row in rows if row["step"] is not None]
    return command_line("track", reference, *(models if len(models) <= MOST_NAMED else ["CHECKPOINT..."]), slices="DIR")


_INTERVAL = cells.interval("recall")


def shown_track(tables: TrackTables) -> dict[str, Table]:
    """A row a step, the reference last."""
    rows = sorted(tables.track.to_dicts(), key=lambda row: row["step"] is None)
    first = rows[0]
    nats = {"AR hits": "ar_nll", "first": "first_nll", "other": "other_nll", "recall": "recall"}
    columns = {
        "step": lambda row: str(row["model"]) if row["step"] is None else f"{row['step']:,}",
        **{header: cells.number(column, "z.2f") for header, column in nats.items()},
        "95 % interval": _INTERVAL,
    }
    if first["reference"] is not None:
        columns["gap in AR hits"] = lambda row: DASH if row["step"] is None else f"{row['ar_gap']:z.2f}"
    few = "" if first["recall_ci_low"] is not None else f" No interval: effectively fewer than {MIN_CLUSTERS} documents."
    caption = (
        f"NLLs, nats per token, of {first['ar_hits']:,} AR hits of {first['tokens']:,} tokens. First: the first occurrences of the hits' "
        "bigrams in their sequences, where nothing can be recalled; recall: first less AR hits. Intervals: "
        f"{resampled(first, 'document', 'document')}.{few}"
    )
    caption += "" if first["reference"] is None else " Last row: the reference."
    return {"track": Table.of("NLL and recall by step", columns, rows, caption)}


def answer(tables: TrackTables) -> str:
    """One sentence: whether recall appears, at which step, and how much there is at the last one."""
    rows = tables.track.to_dicts()
    steps = sorted((row for row in rows if row["step"] is not None), key=lambda row: row["step"])
    if not steps:
        return "No checkpoint is scored yet."
    last, appears = steps[-1], recall_appears(rows)
    reference = next((row for row in rows if row["step"] is None), None)
    beside = "" if reference is None else f"; {reference['model']} recalls {reference['recall']:z.2f}"
    if appears is None:
        return (
            f"No recall up to step {last['step']:,}: AR hits cost {last['recall']:z.2f} nats less than the first occurrences of their "
            f"bigrams ({_INTERVAL(last)}), not {LEAST_RECALL} or more for certain{beside}."
        )
    return (
        f"Recall appears at step {appears:,}: from there on AR hits cost at least {LEAST_RECALL} nats less than the first occurrences "
        f"of their bigrams, at step {last['step']:,} {last['recall']:z.2f} nats ({_INTERVAL(last)}){beside}."
    )
