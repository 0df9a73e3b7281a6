"""The frozen pack of a slice directory: its ids as arrays, for programs that record NLLs of them.

docs/nlls.md describes it. `ids.npy` (sequences, seq_len + 1) int32, shorter sequences filled up
with 0; `lengths.npy` (sequences,) int32, the ids of each; `manifest.json`, what the two are of.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from recallkit.config import SCHEMA_VERSION
from recallkit.display.progress import progress
from recallkit.models.recorded import VERSION
from recallkit.storage import artifacts, parquet_files, records
from recallkit.storage.artifacts import MANIFEST
from recallkit.text.sequences import group_ids, sequence_groups

if TYPE_CHECKING:
    from pathlib import Path

_FACTS = ("sequences_digest", "num_sequences", "num_rows", "seq_len", "boundary", "tokenizer")


def pack_path(slices: Path) -> Path:
    """The list of a slice directory's pack."""
    return slices / "pack" / MANIFEST


def write_pack(slices: Path) -> Path:
    """Writes the pack of a slice directory, unless it is there undamaged; returns its folder.

    Raises UserError where the sequences are missing or damaged, and for other files in its place.
    """
    listing = pack_path(slices)
    sequences = parquet_files.read_manifest(slices / "sequences.parquet", records.Sequences)
    facts = {"kind": "pack", "schema_version": SCHEMA_VERSION, "version": VERSION}
    facts |= records.some(sequences, _FACTS)
    names = ("ids.npy", "lengths.npy")
    artifacts.check_addable(listing, names, force=True)
    files = [listing.with_name(name) for name in names]
    with contextlib.suppress(artifacts.DamagedError):
        is_there = all(file.is_file() and artifacts.check_member(file) for file in files)
        # Short documents are the same sequences with any seq_len, whose pack has other rows.
        if is_there and facts.items() <= artifacts.json_object(listing).items():
            return listing.parent
    shape = (sequences["num_sequences"], sequences["seq_len"] + 1)
    showing = progress("packing", total=shape[0], unit="sequences")
    with artifacts.writing_members(listing, names) as new, showing as show:
        artifacts.write_json(new / listing.name, facts)
        ids = np.lib.format.open_memmap(new / "ids.npy", mode="w+", dtype=np.int32, shape=shape)
        lengths, first = np.zeros(shape[0], np.int32), 0
        for group in sequence_groups(slices / "sequences.parquet"):
            flat, offsets = group_ids(group)
            number = len(offsets) - 1
            lengths[first : first + number] = np.diff(offsets)
            rows = ids[first : first + number]
            rows[np.arange(shape[1]) < lengths[first : first + number, None]] = flat
            first += number
            show(first)
        ids.flush()
        np.save(new / "lengths.npy", lengths)
    return listing.parent
