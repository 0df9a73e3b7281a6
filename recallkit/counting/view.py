"""Counts, as a line and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.counting.table import NGRAM_HASHES
from recallkit.display import console
from recallkit.display.cells import timings_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def counts_json(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Facts of a counts table."""
    kept = ("id", "num_tokens", "num_documents", "num_bigrams", "boundary", "tokenizer", "only", "sources", "timings")
    hashes = {NGRAM_HASHES: meta[NGRAM_HASHES]} if NGRAM_HASHES in meta else {}
    return {"path": str(path), **{key: meta.get(key) for key in kept}, **hashes}


def print_counts(meta: Mapping[str, Any], path: Path) -> None:
    """One line: how much was counted, and the path of the table."""
    told = f"counts: {meta['num_tokens']:,} training tokens, {meta['num_bigrams']:,} distinct bigrams"
    console.print_result([], told, *timings_lines(meta.get("timings")), table=path)
