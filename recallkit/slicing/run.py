"""The work of `slice`: text to sequences to labelled tokens; finished stages are reused, interrupted ones resumed."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.counting.table import open_counts
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.parallel.ahead import ahead
from recallkit.slicing.threshold import BY_DEFAULT, RareCount, note_threshold
from recallkit.storage import artifacts, schemas
from recallkit.storage.artifacts import MANIFEST
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText
from recallkit.text.tokenizers import SLICES_TOKENIZER, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from recallkit.counting.table import CountsTable
    from recallkit.options import TextOptions
    from recallkit.slicing.threshold import Threshold
    from recallkit.storage.journal import Journal
    from recallkit.text.sequences import Sequences
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
    if seq_len < 1:
        raise UserError("a sequence needs at least one prediction", where=f"--seq-len {seq_len}")
    table = open_counts(counts) if counts else None
    opened = OpenText(text)
    if table is not None:
        table.check_tokenizer(opened.tokenizer.digest, opened.tokenizer.name)
        if table.meta.get("boundary") != text.boundary:
            console.note(f"{counts} was counted with --boundary {table.meta.get('boundary')}, this text is sliced with {text.boundary}")
    for result in (Result(out / "sequences.parquet", "sequences", {}), _labels_result(out, {})):
        result.check_replaceable()
    threshold = rare.resolve(table)
    timings = Timings()
    only = None if table is None else table.meta.get("only")
    with _open_sequences(opened, out / "sequences.parquet", seq_len, timings, force=force) as sequences:
        if only is not None or ((out / "tokens.parquet").exists() and not force):  # whether they are of these depends on the digest
            _complete(sequences, opened, timings)
        if only is not None and only != sequences.complete()["sequences_digest"]:
            raise UserError(
                "counted with --only for other sequences: bigrams that are missing would look unseen",
                where=counts,
                remedy=f"count with --only {out}, or without --only",
            )
        if not quiet:
            note_threshold(threshold, table)
        return make_labels(out, opened.tokenizer, sequences, table, threshold, timings, force=force, about=opened.estimated_tokens)


@contextlib.contextmanager
def _open_sequences(opened: OpenText, path: Path, seq_len: int, timings: Timings, *, force: bool) -> Iterator[Sequences]:
    """The sequences of the text: those that an earlier run finished, or those that are made of it while they are read."""
    from recallkit.text.sequences import Sequences

    options = {**opened.identity(), "seq_len": seq_len}
    is_other = artifacts.manifest_options(path, force=force) != options  # --force makes labels again, but sequences only if options differ
    result = Result(path, "sequences", options, force=force and is_other)
    if (finished := result.finished()) is not None:
        known = {"sequences_digest": finished["sequences_digest"]}  # unless the manifest is of other sequences
        timings.keep("slicing", path.with_name(MANIFEST), "slicing", **known)
        yield Sequences.read(path)
        return
    with result.journal() as journal:
        facts = {**result.stamp(), **options, "names": opened.names()}
        sequences = Sequences.made(path, ahead(_sequence_groups(opened, journal, seq_len)), facts)
        sequences.num_tokens, sequences.seconds_before = opened.options.most_tokens, journal.seconds_before
        with contextlib.closing(sequences):
            yield sequences
            sequences.complete()
        journal.finish()


def _complete(sequences: Sequences, opened: OpenText, timings: Timings) -> None:
    """Makes sequences that are not complete before they are labelled."""
    if sequences.manifest is None:
        with timings.stage("slicing", before=sequences.seconds_before) as stage, progress("slicing", total=sequences.num_tokens) as show:
            stage.amounts["tokens"] = sequences.complete(lambda done: show(done, opened.estimated_tokens(done)))["num_rows"]


def _sequence_groups(opened: OpenText, journal: Journal, seq_len: int) -> Iterator[pa.Table]:
    """The sequences' row groups, each committed as a part of the journal before it is yielded; first those that an earlier run committed.

    The next sequences are encoded and packed meanwhile. If that raises, the group before is committed first.
    """
    from recallkit.text.sequences import PackingState, pack_sequences, sequences_table, textless_schema, with_text

    state = PackingState.from_json(journal.state) if journal.resumed else PackingState()
    journal.note_resumed(state.num_predictions, "tokens")
    schema = textless_schema()
    for number in range(journal.num_parts):
        yield with_text(journal.read(number, schema), opened.tokenizer)
    with opened.reading(journal):
        blocks = pack_sequences(
            opened.encoded(state.position),
            end_token_id=opened.tokenizer.end_token_id,
            seq_len=seq_len,
            boundary=opened.options.boundary,
            limit_predictions=opened.options.most_tokens,
            state=state,
        )
        for block in ahead(blocks):
            table = sequences_table(block)
            part = journal.part(journal.num_parts)
            artifacts.write_parquet(part, [table], schema, {}, use_dictionary=False, compression="none")
            journal.commit(asdict(block.state))
            yield with_text(table, opened.tokenizer)
    if not journal.num_parts:
        raise UserError("the text is too short for a single prediction", where=", ".join(opened.options.source_names))


def make_labels(
    out: Path,
    tokenizer: TextTokenizer,
    sequences: Sequences,
    table: CountsTable | None,
    threshold: Threshold,
    timings: Timings,
    *,
    force: bool,
    about: Callable[[int], int | None] = lambda _: None,
) -> dict[str, Any]:
    """Labels the sequences of the directory `out` in `tokens.parquet`, while they are made if they are not complete; returns the manifest.

    `about`: how many tokens all of them have, about, if so many are made. Raises UserError for everything a user can correct.
    """
    from recallkit.slicing import labels
    from recallkit.slicing.copies import CopyFinder

    counts = table.describe() if table is not None else None
    rarity = {"max_count": threshold.max_count, "threshold": threshold.facts()}

    def result() -> Result:
        options = {"sequences_digest": sequences.complete()["sequences_digest"], "counts_id": counts and counts["id"]}
        options["max_count"] = threshold.max_count
        if counts is not None and "hashes" in counts:
            options["hashes"] = counts["hashes"]
        return _labels_result(out, options, force=force)

    if sequences.manifest is not None and (finished := result().reused()) is not None:
        return finished
    num_bytes = labels.BytesBySource(tokenizer.document_text) if tokenizer.document_text is not None else None
    copies = CopyFinder(table.ngram_hashes) if table is not None and table.ngram_hashes else None

    def manifest_at_end() -> dict[str, Any]:
        kept = ("sequences_digest", "num_rows", "num_sequences", "seq_len", "boundary", "tokenizer", "sources", "names", "limit_tokens")
        of_sequences = {name: sequences.complete()[name] for name in kept}
        found = {"num_bytes": None if num_bytes is None else num_bytes.rows(), "in_training": None if copies is None else copies.summary()}
        return {**result().stamp(), "counts": counts, **rarity, **of_sequences, **found}

    doing = "slicing" if sequences.manifest is None else "labelling"
    manifest: dict[str, Any] = {}
    with _labels_result(out, {}).writing(manifest, timings) as new:
        with timings.stage(doing, before=sequences.seconds_before) as stage, progress(doing, total=sequences.num_tokens) as show:
            tables = labels.label_sequences(
                sequences.groups, table, threshold.max_count, num_bytes=num_bytes, copies=copies, progress=lambda n: show(n, about(n))
            )
            schema, path = schemas.arrow_schema("tokens"), new / "tokens.parquet"
            with contextlib.closing(tables):
                manifest |= artifacts.write_parquet(path, tables, schema, manifest_at_end, **labels.PARQUET_OPTIONS)
            stage.amounts["tokens"] = manifest["num_rows"]
        write_tokenizer(new, tokenizer)
    return manifest


def _labels_result(out: Path, options: dict[str, Any], *, force: bool = False) -> Result:
    """The labels in a directory, with the tokenizer, as a result."""
    return Result(out / "tokens.parquet", "tokens", options, force=force, beside=[out / SLICES_TOKENIZER])
