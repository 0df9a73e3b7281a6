"""Sorted runs of counts on disk: written by each counter, merged in pairs while there are many, in
the end by ranges of keys.

A run is a table of counts sorted by key, each column a flat file of little-endian uint64 that is
memory-mapped to be read. Bigrams and tokens have keys and counts, hashes are keys alone. No file
name is used twice: if two processes do the same piece of work on a file system without locks, one
of them may lose its files, but they never mix.
"""

from __future__ import annotations

import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.errors import UserError
from recallkit.storage import whole_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from recallkit.counting.bigram_kernels import BigramRun
    from recallkit.counting.hash_kernels import HashRun

    Run = BigramRun | HashRun
    """Keys and counts (none of hashes), uint64 (m,), keys strictly increasing."""

HASHES = {"hashes13": 13, "hashes50": 50}
"""Kinds of runs of hashes -> ids in the n-grams: 13 as in GPT-3's search for test sets in its
training text (Brown et al. 2020, appendix C, of words there), 50 for long verbatim copies."""

ROWS_PER_RANGE = 1 << 22
"""Rows, summed over all runs, that are merged at once: 100 to 200 MB per thread."""

_SAMPLES_PER_RANGE = 64


class Kind(NamedTuple):
    """What is counted: its name in file names, its columns, and how runs of it merge in memory."""

    name: str
    make: Callable[..., Run]
    columns: tuple[str, ...]
    merge: Callable[[Any], Run]


def kind_of(name: str) -> Kind:
    """`tokens` and `bigrams` (columns keys, counts) or one of HASHES (hashes)."""
    from recallkit.counting import bigram_kernels, hash_kernels

    if name in HASHES:
        return Kind(
            name,
            hash_kernels.HashRun,
            hash_kernels.HashRun._fields,
            hash_kernels.merge_hashes,
        )
    return Kind(
        name,
        bigram_kernels.BigramRun,
        bigram_kernels.BigramRun._fields,
        bigram_kernels.merge_runs,
    )


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run on disk: one file `stem.COLUMN` per column, each of `num_rows` values."""

    stem: str
    num_rows: int


class RunFiles:
    """The runs of one kind in a folder."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind_of(kind)

    def paths(self, stem: str) -> list[Path]:
        """The files of a run, one per column."""
        return [self.folder / f"{stem}.{column}" for column in self.kind.columns]

    def is_whole(self, run: SavedRun) -> bool:
        """Whether all of a run's files are there, in full length."""
        size = 8 * run.num_rows
        paths = self.paths(run.stem)
        return all(path.is_file() and path.stat().st_size == size for path in paths)

    def load(self, run: SavedRun) -> Run:
        """A run's arrays, memory-mapped. Raises UserError if a file is missing or truncated."""
        if not self.is_whole(run):
            raise UserError(
                "counts of an unfinished run are damaged",
                where=self.folder / run.stem,
                remedy="begin again with --force",
            )
        if not run.num_rows:
            return self.kind.make(*(np.empty(0, np.uint64) for _ in self.kind.columns))
        return self.kind.make(
            *(np.memmap(path, "<u8", "r", shape=(run.num_rows,)) for path in self.paths(run.stem)),
        )

    def add(self, counted: Run) -> SavedRun:
        """Writes a run."""
        return self._write([counted])

    def link(self, run: SavedRun, others: RunFiles) -> SavedRun:
        """Links (or copies) a run of another folder into this one; the original stays."""
        for here, there in zip(self.paths(run.stem), others.paths(run.stem), strict=True):
            here.unlink(missing_ok=True)
            try:
                os.link(there, here)
            except OSError:  # a file system without hard links
                shutil.copyfile(there, here)
        return run

    def merge(self, runs: Sequence[Run], *, num_threads: int = 2) -> SavedRun:
        """Merges any number of runs into a new one: several threads merge ranges of keys, which are
        written in order."""
        return self._write(self.merged_ranges(runs, num_threads=num_threads))

    def _write(self, ranges: Iterable[Run]) -> SavedRun:
        """A run of ranges of keys, in their order.

        Files are written, not mapped: on a full disk a map ends the process.
        """
        stem, num_rows = f"{self.kind.name}-{uuid.uuid4().hex}", 0
        with ExitStack() as opened:
            files = []
            for path in self.paths(stem):
                temporary = opened.enter_context(whole_files.replacing(path))
                files.append(opened.enter_context(temporary.open("wb")))
            for rows in ranges:
                num_rows += len(rows[0])
                for file, column in zip(files, rows, strict=True):
                    file.write(np.ascontiguousarray(column, "<u8").data)
        return SavedRun(stem, num_rows)

    def merged_ranges(self, runs: Sequence[Run], *, num_threads: int = 2) -> Iterator[Run]:
        """The merged runs in key order, one range of keys at a time; the next ranges are merged
        while one is used."""
        runs = [run for run in runs if len(run[0])]

        def merge(rows: list[slice]) -> Run:
            parts = []
            for run, part in zip(runs, rows, strict=True):
                parts.append(self.kind.make(*(column[part] for column in run)))
            return self.kind.merge(parts)

        with ThreadPoolExecutor(num_threads) as pool:
            yield from _in_order(pool, merge, _cut_ranges(runs), ahead=num_threads + 1)

    def remove(self, run: SavedRun) -> None:
        """Deletes a run's files."""
        for path in self.paths(run.stem):
            path.unlink(missing_ok=True)

    def remove_others(self, runs: Iterable[SavedRun]) -> None:
        """Deletes all files of this kind except those of `runs`: what a killed process had merged
        or not committed."""
        live = {path for run in runs for path in self.paths(run.stem)}
        for path in self.folder.glob(f"*{self.kind.name}-*"):
            if path not in live:
                path.unlink(missing_ok=True)


def _cut_ranges(runs: Sequence[Run]) -> Iterator[list[slice]]:
    """For each range of keys, which rows of every run fall into it: ranges of similar size, of
    about `ROWS_PER_RANGE` rows at most.

    Cuts are estimated from evenly spaced keys of every run. Example: runs with keys [1, 4, 9] and
    [2, 4, 8], cut at 4, give the rows 0:1 of both, then 1:3 of both.
    """
    total = sum(len(run[0]) for run in runs)
    if not total:
        return
    num_ranges = -(-total // ROWS_PER_RANGE)
    step = max(1, total // (num_ranges * _SAMPLES_PER_RANGE))
    samples = np.sort(np.concatenate([run[0][step // 2 :: step] for run in runs]))
    cuts = np.unique(samples[np.arange(1, num_ranges) * len(samples) // num_ranges])
    places = [[0, *np.searchsorted(run[0], cuts).tolist(), len(run[0])] for run in runs]
    for at in range(len(cuts) + 1):
        yield [slice(place[at], place[at + 1]) for place in places]


def _in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    ahead: int,
) -> Iterator[Any]:
    """The results in the order of the items, at most `ahead` of them computed before they are
    needed."""
    items = iter(items)
    waiting = [pool.submit(work, item) for item in islice(items, ahead)]
    while waiting:
        done = waiting.pop(0).result()
        waiting += [pool.submit(work, item) for item in islice(items, 1)]
        yield done
