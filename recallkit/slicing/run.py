"""The work of `slice`: text to sequences to labelled tokens; finished stages are reused, interrupted ones resumed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.counting.table import open_counts
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.slicing.threshold import BY_DEFAULT, RareCount, note_threshold
from recallkit.storage import artifacts, schemas
from recallkit.storage.ownership import JSON_MAGIC, PARQUET_MAGIC
from recallkit.storage.result import MANIFEST, Result
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText, TextOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from recallkit.counting.table import CountsTable
    from recallkit.slicing.threshold import Threshold
    from recallkit.storage.journal import Journal
    from recallkit.text.sequences import SequenceBlock
    from recallkit.text.tokenizers import TextTokenizer


def slice_text(
    text: TextOptions,
    out: Path,
    *,
    counts: Path | None,
    rare: RareCount = BY_DEFAULT,
    seq_len: int = config.SEQ_LEN,
    force: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Labels every predicted token of a text into the directory `out`; returns the manifest of `tokens.parquet`.

    Tokenising is the slow part and can be resumed: sequences that exist already are labelled again without it. Without
    `counts` only repetition is labelled. Unless `quiet`, a threshold that was not given as a count is reported on stderr. Raises
    UserError for everything a user can correct.
    """
    from recallkit.text import tokenizers

    if seq_len < 1:
        raise UserError("a sequence needs at least one prediction", where=f"--seq-len {seq_len}")
    table = open_counts(counts) if counts else None
    opened = OpenText(text)
    tokenizers.check_tokenizer_file(out, opened.tokenizer)
    if table is not None:
        table.check_tokenizer(opened.tokenizer.digest, opened.tokenizer.name)
        if table.meta.get("boundary") != text.boundary:
            console.note(f"{counts} was counted with --boundary {table.meta.get('boundary')}, this text is sliced with {text.boundary}")
    for name, magic in (("sequences.parquet", PARQUET_MAGIC), ("tokens.parquet", PARQUET_MAGIC), (MANIFEST, JSON_MAGIC)):
        artifacts.check_replaceable(out / name, magic)
    threshold = rare.resolve(table)
    timings = Timings()
    sequences = _make_sequences(opened, out / "sequences.parquet", seq_len, timings, force=force)
    tokenizers.keep_tokenizer(out, opened.tokenizer)
    if table is not None and table.meta.get("only") not in (None, sequences["sequences_digest"]):
        raise UserError(
            "counted with --only for other sequences: bigrams that are missing would look unseen",
            where=counts,
            remedy=f"count with --only {out}, or without --only",
        )
    if not quiet:
        note_threshold(threshold, table)
    return make_labels(out, opened.tokenizer, sequences, table, threshold, timings, force=force)


def _make_sequences(opened: OpenText, path: Path, seq_len: int, timings: Timings, *, force: bool) -> dict[str, Any]:
    from recallkit.text import sequences

    options = {**opened.identity(), "seq_len": seq_len}
    is_other = artifacts.manifest_options(path, force=force) != options  # --force makes labels again, but sequences only if options differ
    result = Result(path, "sequences", options, force=force and is_other)
    if (finished := result.finished()) is not None:
        known = {"sequences_digest": finished["sequences_digest"]}  # unless the manifest is of other sequences
        timings.keep("tokenising", path.with_name(MANIFEST), "tokenising", **known)
        return finished
    with result.journal() as journal, timings.stage("tokenising", before=journal.seconds_before) as stage:
        state = sequences.PackingState.from_json(journal.state) if journal.resumed else sequences.PackingState()
        journal.note_resumed(state.num_predictions, "tokens")
        with opened.reading(journal), progress("tokenising", total=opened.options.limit_tokens) as show:
            blocks = sequences.pack_sequences(
                opened.encoded(state.position),
                end_token_id=opened.tokenizer.end_token_id,
                seq_len=seq_len,
                boundary=opened.options.boundary,
                limit_predictions=opened.options.limit_tokens,
                state=state,
            )
            for done in _written(blocks, journal, opened.tokenizer):
                show(done, opened.estimated_tokens(done))
        if not journal.num_parts:
            raise UserError("the text is too short for a single prediction", where=", ".join(opened.options.sources))
        parts = (journal.read(number, schemas.arrow_schema("sequences")) for number in range(journal.num_parts))
        manifest = sequences.write_sequences(path, parts, {**result.stamp(), **options, "names": opened.names()})
        stage.amounts["tokens"] = manifest["num_rows"]
        journal.finish()
    return manifest


def _written(blocks: Iterator[SequenceBlock], journal: Journal, tokenizer: TextTokenizer) -> Iterator[int]:
    """Commits each block as a part of the journal, while the next one is encoded; yields the predictions committed.

    If `blocks` raises, the block before is committed first.
    """
    from recallkit.text.sequences import sequences_table

    def write(block: SequenceBlock) -> int:
        part, schema = journal.part(journal.num_parts), schemas.arrow_schema("sequences")
        artifacts.write_parquet(part, [sequences_table(block, tokenizer)], schema, {}, use_dictionary=False, compression="lz4")
        journal.commit(asdict(block.state))
        return block.state.num_predictions

    with ThreadPoolExecutor(1) as writer:
        waiting: Future[int] | None = None
        for block in blocks:
            if waiting is not None:
                yield waiting.result()
            waiting = writer.submit(write, block)
        if waiting is not None:
            yield waiting.result()


def make_labels(
    out: Path,
    tokenizer: TextTokenizer,
    sequences: dict[str, Any],
    table: CountsTable | None,
    threshold: Threshold,
    timings: Timings,
    *,
    force: bool,
) -> dict[str, Any]:
    """Labels the sequences in the directory `out`, whose manifest is `sequences`, in `tokens.parquet`; returns the manifest of that.

    Raises UserError for everything a user can correct.
    """
    from recallkit.slicing import labels
    from recallkit.slicing.copies import CopyFinder

    counts = table.describe() if table is not None else None
    options = {"sequences_digest": sequences["sequences_digest"], "counts_id": counts and counts["id"], "max_count": threshold.max_count}
    if counts is not None and "hashes" in counts:
        options["hashes"] = counts["hashes"]
    result = Result(out / "tokens.parquet", "tokens", options, force=force)
    if (finished := result.reused()) is not None:
        return finished
    kept = ("sequences_digest", "num_rows", "num_sequences", "seq_len", "boundary", "tokenizer", "sources", "names", "limit_tokens")
    rarity = {"max_count": threshold.max_count, "threshold": threshold.facts()}
    facts = {**result.stamp(), "counts": counts, **rarity, **{k: sequences[k] for k in kept}}
    num_bytes = labels.BytesBySource(tokenizer.document_text) if tokenizer.document_text is not None else None
    copies = CopyFinder(table.ngram_hashes) if table is not None and table.ngram_hashes else None

    def manifest_at_end() -> dict[str, Any]:
        found = {"num_bytes": None if num_bytes is None else num_bytes.rows()}
        return {**facts, **found, "in_training": None if copies is None else copies.summary()}

    with artifacts.replacing_together(out) as staged:
        with timings.stage("labelling") as stage, progress("labelling", total=sequences["num_rows"]) as show:
            tables = labels.label_sequences(
                out / "sequences.parquet", table, threshold.max_count, num_bytes=num_bytes, copies=copies, progress=show
            )
            schema, path = schemas.arrow_schema("tokens"), staged / result.path.name
            manifest = artifacts.write_parquet(path, tables, schema, manifest_at_end, **labels.PARQUET_OPTIONS)
            stage.amounts["tokens"] = sequences["num_rows"]
        result.write_json(manifest, timings, staged)
    return manifest
