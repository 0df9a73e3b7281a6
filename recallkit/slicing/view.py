"""Slices as tables and JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.console import or_dash, percent, sparkline
from recallkit.display.durations import print_timings
from recallkit.display.tables import Table
from recallkit.storage import artifacts
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl


_MOST_ROWS = 20
"""Sources in the table: as many as a terminal shows; the Parquet file contains all of them."""


def slices_json(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the slices by source, and the text and counts that they were made of."""
    from recallkit.slicing.labels import summarise_slices

    kept = ("num_sequences", "num_rows", "seq_len", "boundary", "max_count", "counts", "tokenizer", "sequences_digest")
    facts = {**{key: manifest[key] for key in kept}, "timings": slice_timings(path)}
    return {"path": str(path), **facts, "by_source": summarise_slices(path / "tokens.parquet").to_dicts()}


def slice_timings(path: Path) -> dict[str, Any] | None:
    """How long slicing took, if it is known."""
    return read_timings(path / "manifest.json", kind="tokens")


def print_slices(path: Path, manifest: Mapping[str, Any]) -> None:
    """Tokens, repeated tokens and AR hits by source, and how far back the previous occurrences of repeated tokens are."""
    from recallkit.slicing.labels import summarise_slices

    summary = summarise_slices(path / "tokens.parquet")
    console.print_table(with_distances(slices_table(summary, manifest), _bucket_distances(path)))
    print_timings(slice_timings(path))
    console.print_line(f"Tables (Parquet): {path}", is_path=True)


def slices_table(summary: pl.DataFrame, manifest: Mapping[str, Any]) -> Table:
    """Tokens, repeated tokens and AR hits of the largest sources; `summary` is the result of `summarise_slices`."""
    rows = [
        [
            row["source"],
            f"{row['tokens']:,}",
            percent(row["repeated_share"]),
            or_dash(row["ar_hits"], ","),
            percent(row["ar_hit_share"], 2),
        ]
        for row in summary.head(_MOST_ROWS + 1).iter_rows(named=True)
    ]
    hidden = len(summary) - len(rows)
    rows += [[f"and {hidden:,} more", "", "", "", ""]] if hidden else []
    headers = ["source", "tokens", "repeated", "AR hits", "share"]
    return Table("Predicted tokens, and those that repeat a bigram of their context", headers, rows, caption=what_is_rare(manifest))


def with_distances(table: Table, distances: pl.DataFrame) -> Table:
    """The table by source with a curve of distances (query slices/bucket_distances) after each row; unchanged for a single bucket."""
    shares = {(row["source"], row["high"]): row["share"] for row in distances.iter_rows(named=True)}
    buckets = powers_of_two(distances["high"].to_list())
    if len(buckets) < 2:
        return table
    shown = {row[0] for row in table.rows}
    most = max(share for (source, _), share in shares.items() if source in shown)
    known = {source for source, _ in shares}
    curves = [sparkline([shares.get((row[0], high), 0.0) for high in buckets], 0.0, most) if row[0] in known else "" for row in table.rows]
    header = f"distance\n1 to {buckets[-1]:,}"
    caption = (
        f"{table.caption}\nDistance: tokens back to where a repeated bigram last stood, in powers of two; █ is {percent(most)} of them."
    )
    rows = [[*row, curve] for row, curve in zip(table.rows, curves, strict=True)]
    return replace(table, headers=[*table.headers, header], rows=rows, caption=caption)


def powers_of_two(highs: Sequence[int]) -> list[int]:
    """The largest values of all buckets between the first and the last of `highs`, which are powers of two, or 0."""
    last, buckets = max(highs, default=0), []
    power = min(highs, default=1)
    while power <= last:
        buckets.append(power)
        power = 2 * power or 1
    return buckets


def _bucket_distances(slices: Path) -> pl.DataFrame:
    from recallkit.storage import db

    with db.connect() as connection:
        db.view_file(connection, "tokens", slices / "tokens.parquet")
        return db.frame(connection, "slices/bucket_distances")


def manifest_of(slices: Path) -> dict[str, Any]:
    """The manifest of a slice directory's labelled tokens."""
    return artifacts.read_manifest(slices / "tokens.parquet")


def what_is_rare(manifest: Mapping[str, Any]) -> str:
    """The threshold, always with the number of training tokens that gives it its meaning."""
    if manifest["counts"] is None:
        return "No training counts: repetition only. Label AR hits with --counts."
    tokens = manifest["counts"]["num_tokens"]
    rate = manifest["max_count"] / max(1, tokens) * 1e9
    return (
        f"AR hit: bigram repeated in the context and seen at most {manifest['max_count']:,} times in "
        f"{console.abbreviate(tokens)} training tokens ({console.abbreviate(rate)} a billion)."
    )
