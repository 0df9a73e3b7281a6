"""Counts training text in one process or many: plans ranges of shards, counts the missing ones, and
merges them.

The table is the same for any number of shards, shard ranges and workers: each range is counted
separately, and bigrams that cross from one to the next are found from their ends.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.counting import bigrams, make_table
from recallkit.counting.bigrams import CountedShardRange, CountedStream
from recallkit.counting.sorted_runs import RunFiles
from recallkit.counting.table import counts_result, open_counts
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.options import CountingOptions, TextOptions
from recallkit.parallel import work
from recallkit.storage import artifacts, hashing, parquet_files, unfinished
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText, extrapolated, note_skipped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np

    from recallkit.counting.worker import CountingJob, ShardRange
    from recallkit.storage.journal import Parts, PartsJournal
    from recallkit.text.readers import Shard
    from recallkit.text.records import Boundary


_LEAST_CHUNK = 1 << 24
"""Tokens: smaller chunks are counted less quickly."""


def count(
    text: TextOptions,
    out: Path,
    *,
    only: Path | None = None,
    force: bool = False,
    options: CountingOptions = CountingOptions(),
) -> dict[str, Any]:
    """Counts training bigrams into `out` (DuckDB); returns the table's meta.

    `only` names a slice directory: bigrams that are not in its sequences are left out, to save
    memory and disk. Raises UserError for everything a user can correct.
    """
    opened = OpenText(text)
    sequences = only / "sequences.parquet" if only else None
    identity = {**opened.identity(), "only": None}
    if sequences is not None:
        identity["only"] = parquet_files.read_manifest(sequences)["sequences_digest"]
    if options.hashes != config.NUM_HASHES:
        identity["hashes"] = options.hashes
    inputs = {os.path.realpath(shard.name) for shard in opened.corpus.shards}
    if out.exists() and os.path.realpath(out) in inputs:
        remedy = "give another name with -o"
        raise UserError("the output is one of the inputs", where=out, remedy=remedy)
    result = counts_result(out, identity, force=force)
    if (meta := result.reused()) is not None:
        return meta
    opened.note_end()
    opened.note_ids()
    needed = bigrams.needed_bigrams(sequences) if sequences else None
    options = replace(options, hashes=0) if only else options
    with result.parts(hashes=options.hashes) as journal:
        timings = Timings()
        counted = count_text(opened, journal, options, timings, only=needed)
        if not counted.num_tokens:
            raise UserError("no text to count", where=", ".join(text.source_names))
        meta = make_table.write_counts(
            out,
            counted,
            {**result.stamp(), **identity, **opened.facts()},
            timings,
        )
        journal.finish()
    return meta


def export_counts(counts: Path, parquet: Path, *, force: bool) -> None:
    """Writes the bigrams of a counts table to Parquet; an existing file with others is replaced
    only with `force`."""
    artifacts.check_replaceable(parquet)
    table = open_counts(counts)
    if parquet.exists() and not force:
        if parquet_files.read_manifest(parquet).get("counts_id") == table.meta["id"]:
            with contextlib.suppress(OSError), unfinished.new_folder(parquet, [parquet.name]):
                return  # and what a killed run left is gone
            return
        raise UserError(
            "contains other counts",
            where=parquet,
            remedy="give another --export, or replace it with --force",
        )
    make_table.export_counts(table, parquet)


def import_counts(
    file: Path,
    out: Path,
    *,
    tokenizer: str | None,
    num_tokens: int | None,
    boundary: Boundary,
    force: bool,
    end_token: str | None = None,
) -> dict[str, Any]:
    """Makes a counts database from counts made by another program; returns its meta.

    `file` is a table (Parquet or CSV: first, second, count). Raises UserError for everything a user
    can correct.
    """
    from recallkit.text.tokenizers import load_tokenizer

    described = load_tokenizer(tokenizer, end_token=end_token).describe() if tokenizer else None
    options = {
        "imported": hashing.digest_file(file) if file.is_file() else None,
        "tokenizer": described,
        "boundary": boundary,
        "given_num_tokens": num_tokens,
    }
    result = counts_result(out, options, force=force)
    if (meta := result.finished()) is not None:
        return meta
    counted = make_table.read_foreign_counts(file)
    if num_tokens is not None:
        counted = replace(counted, num_tokens=num_tokens)
    facts = {**result.stamp(), "tokenizer": described, "boundary": boundary, "only": None}
    with result.journal(patient=True):
        return make_table.write_counts(out, counted, facts)


def count_text(
    opened: OpenText,
    journal: PartsJournal,
    options: CountingOptions,
    timings: Timings,
    *,
    only: np.ndarray | None = None,
) -> CountedStream:
    """Counts what is not counted yet and merges it; runs remain in the journal's folder, where the
    counted arrays are mapped.

    With `only`, sorted bigram keys, only these bigrams are kept. Raises UserError for everything a
    user can correct.
    """
    from recallkit.parallel.processes import num_cores

    job = _job(opened, journal.parts, options, only)
    plan = journal.parts.settle("stretches", lambda: _plan(job.shards))
    shard_ranges = [range(*ends) for ends in plan]
    remove_orphans(journal.parts, job.counting.kinds())
    if options.workers > len(shard_ranges):
        reason = "files are not split, and small ones are counted together"
        console.note(f"{len(shard_ranges)} of {options.workers} workers have work: {reason}")
    counted = _count_shard_ranges(job, shard_ranges, journal, options, timings)
    note_skipped(
        sum(s.num_skipped for s in counted),
        [line for s in counted for line in s.first_skipped],
    )
    with timings.stage("merging"):
        return bigrams.join_shard_ranges(
            counted,
            journal.folder,
            job.counting,
            num_threads=num_cores(),
        )


def _job(
    opened: OpenText,
    parts: Parts,
    options: CountingOptions,
    only: np.ndarray | None,
) -> CountingJob:
    from recallkit.counting.worker import CountingJob

    tokenizer = opened.tokenizer
    pieces = _pieces(opened, parts)
    shards: list[Shard] = []
    digests: list[str] = []
    for digest, of_shard in zip(opened.digests, pieces, strict=True):
        shards += of_shard
        digests += [digest] * len(of_shard)
    counting = bigrams.Counting(
        tokenizer.end_token_id,
        tokenizer.vocab_size,
        opened.options.boundary,
        only,
        options.hashes,
    )
    return CountingJob(
        opened.options,
        shards,
        digests,
        tokenizer.digest,
        replace(parts, folder=parts.folder.resolve()),
        counting,
        max(_LEAST_CHUNK, bigrams.CHUNK_TOKENS // options.workers),
        opened.of_shards(shards),
    )


def _pieces(opened: OpenText, parts: Parts) -> list[Sequence[Shard]]:
    """Every shard divided as finely as possible: as it was when the work began, in case the hub has
    changed since."""
    shards = opened.corpus.shards
    pieces: list[Sequence[Shard]] = []
    most = bigrams.MAX_SHARD_RANGES
    numbers = parts.settle("pieces", lambda: [len(shard.pieces(most)) for shard in shards])
    for shard, number in zip(shards, numbers, strict=True):
        pieces.append(shard.pieces(number))
        if len(pieces[-1]) != number:
            remedy = "begin again with --force, or name a fixed revision, or use local files"
            problem = "has other files than when counting began"
            raise UserError(problem, where=shard.name, remedy=remedy)
    return pieces


def _plan(shards: Sequence[Shard]) -> list[list[int]]:
    ranges = bigrams.plan_shard_ranges([shard.size() for shard in shards])
    return [[shard_range.start, shard_range.stop] for shard_range in ranges]


def remove_orphans(parts: Parts, kinds: Sequence[str]) -> None:
    """Removes runs in the folder of the parts that belong to no part: left by processes killed at
    the end of a range."""
    loaded = (CountedShardRange.load(parts.path(number)) for number in parts.done())
    done = [shard_range for shard_range in loaded if shard_range is not None]
    for kind in (*kinds, "tokens"):
        RunFiles(parts.folder, kind).remove_others([shard_range.runs[kind] for shard_range in done])


def _count_shard_ranges(
    job: CountingJob,
    shard_ranges: Sequence[range],
    journal: PartsJournal,
    options: CountingOptions,
    timings: Timings,
) -> list[CountedShardRange]:
    """Counts every range; with a limit on tokens, the ranges up to the limit, the last of which
    ends there."""
    limit = job.text.most_tokens
    before = done = sum(_tokens_there(job.parts, number) for number in range(len(shard_ranges)))
    read, all_bytes = (0, None) if limit is not None else _bytes_read(job, shard_ranges)
    journal.note_resumed(before, "tokens")
    job = job if options.engine == "local" and options.workers == 1 else job.for_others()
    telling = progress("counting", total=limit)
    with timings.stage("counting", resumed=bool(before)) as stage, telling as show:
        missing, counted = _divide(job.parts, shard_ranges, limit, options.workers)
        while missing:
            for word in work(
                job,
                missing,
                engine=options.engine,
                workers=options.workers,
                address=options.address,
            ):
                done, read = done + word.num_tokens, read + word.num_bytes
                show(done, extrapolated(done, read, all_bytes))
            missing, counted = _divide(job.parts, shard_ranges, limit, options.workers)
        stage.amounts["tokens"] = done - before
    return counted


def _bytes_read(job: CountingJob, shard_ranges: Sequence[range]) -> tuple[int, int | None]:
    """Bytes on disk of the ranges that are counted already, and of all; 0 and None where a size is
    unknown."""
    sizes = [shard.size() for shard in job.shards]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return 0, None
    read = 0
    for number, shards in enumerate(shard_ranges):
        if CountedShardRange.load(job.parts.path(number)) is not None:
            read += sum(known[shards.start : shards.stop])
    return read, sum(known)


def _divide(
    parts: Parts,
    shard_ranges: Sequence[range],
    limit: int | None,
    workers: int,
) -> tuple[list[ShardRange], list[CountedShardRange]]:
    """The ranges to count next, and those already counted, up to the limit.

    To count: all that are missing; with a limit, as many as there are workers, which may count too
    much.

    How much of a range is within the limit is known only when all earlier ranges are counted. Until
    then the largest possible amount is counted, and the range is counted again if that was too
    much.
    """
    from recallkit.counting.worker import ShardRange

    missing: list[ShardRange] = []
    counted: list[CountedShardRange] = []
    left = limit
    for number, shards in enumerate(shard_ranges):
        if left == 0 or (limit is not None and len(missing) == workers):
            break
        done = CountedShardRange.load(parts.path(number))
        if done is None or (not missing and not done.fits(left)):
            missing.append(ShardRange(number, shards.start, shards.stop, left))
        else:
            counted.append(done)
            left = None if left is None else max(0, left - done.num_tokens)
    return missing, counted


def _tokens_there(parts: Parts, number: int) -> int:
    """Tokens of a range that an earlier run counted, according to its part or its journal."""
    done = CountedShardRange.load(parts.path(number))
    if done is not None:
        return done.num_tokens
    return int(parts.begun_state(number).get("stream", {"num_tokens": 0})["num_tokens"])
