"""Counts and slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit import artifacts, console
from recallkit.console import percent
from recallkit.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_MOST_ROWS = 20
"""Sources in the table: what a terminal shows; the Parquet file has all of them."""


def counts_json(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Facts of a counts table."""
    kept = ("id", "num_tokens", "num_documents", "num_bigrams", "boundary", "tokenizer", "only", "sources")
    return {"path": str(path), **{key: meta.get(key) for key in kept}}


def print_counts(meta: Mapping[str, Any], path: Path) -> None:
    """One line: how much was counted, and where it lies."""
    console.stdout().print(
        f"counts: {meta['num_tokens']:,} training tokens, {meta['num_bigrams']:,} distinct bigrams\n        {path}",
        markup=False,
        soft_wrap=True,
    )


def slices_json(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the slices by source, with what they were made of."""
    from recallkit.stages.slices import summarise_slices

    kept = ("num_sequences", "num_rows", "seq_len", "boundary", "max_count", "counts", "tokenizer", "sequences_digest")
    return {"path": str(path), **{key: manifest[key] for key in kept}, "by_source": summarise_slices(path / "tokens.parquet").to_dicts()}


def print_slices(path: Path, manifest: Mapping[str, Any]) -> None:
    """Tokens, repeated tokens and AR hits by source."""
    from recallkit.stages.slices import summarise_slices

    summary = summarise_slices(path / "tokens.parquet")
    rows = [
        [
            row["source"],
            f"{row['tokens']:,}",
            percent(row["repeated_share"]),
            "–" if row["ar_hits"] is None else f"{row['ar_hits']:,}",
            percent(row["ar_hit_share"], 2),
        ]
        for row in summary.head(_MOST_ROWS + 1).iter_rows(named=True)
    ]
    hidden = len(summary) - len(rows)
    rows += [[f"and {hidden:,} more", "", "", "", ""]] if hidden else []
    console.print_table(
        Table(f"Slices: {path}", ["source", "tokens", "repeated", "AR hits", "share"], rows, caption=what_is_rare(manifest))
    )


def manifest_of(slices: Path) -> dict[str, Any]:
    """The manifest of a slice directory's labelled tokens."""
    return artifacts.read_manifest(slices / "tokens.parquet")


def what_is_rare(manifest: Mapping[str, Any]) -> str:
    """The threshold, never without the number of training tokens that gives it its meaning."""
    if manifest["counts"] is None:
        return "No training counts: repetition only. Label AR hits with --counts."
    tokens = manifest["counts"]["num_tokens"]
    rate = manifest["max_count"] / max(1, tokens) * 1e9
    return (
        f"AR hit: bigram repeated in the context and seen at most {manifest['max_count']:,} times in "
        f"{console.abbreviate(tokens)} training tokens ({console.abbreviate(rate)} a billion)."
    )
