"""The work of `slice`: text to sequences to labelled tokens; finished stages are reused,
interrupted ones resumed."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.counting.infini_gram import InfiniGram
from recallkit.counting.table import open_counts
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.parallel import ahead
from recallkit.slicing.labels import repeated_bigrams
from recallkit.slicing.threshold import BY_DEFAULT, RareCount
from recallkit.storage import parquet_files, records, schemas
from recallkit.storage.artifacts import MANIFEST
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText
from recallkit.text.tokenizers import TOKENIZER_FILE, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recallkit.counting.table import CountsTable
    from recallkit.options import TextOptions
    from recallkit.slicing.threshold import Threshold
    from recallkit.storage.journal import Journal
    from recallkit.text.sample import Sample
    from recallkit.text.tokenizers import TextTokenizer


def slice_text(
    text: TextOptions,
    out: Path,
    *,
    counts: Path | str | None,
    rare: RareCount = BY_DEFAULT,
    seq_len: int = config.SEQ_LEN,
    sample: Sample | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Labels every predicted token of a text into the directory `out`; returns the manifest of
    `tokens.parquet`.

    Tokenising is the slow part and can be resumed: sequences that exist already are labelled again
    without it. Without `counts` only repetition is labelled, and they can be added later; an index,
    infini-gram:INDEX, is asked for repeated bigrams. Raises UserError for everything a user can
    correct.
    """
    if seq_len < 1:
        raise UserError("a sequence needs at least one prediction", where=f"--seq-len {seq_len}")
    table = open_counts(counts) if isinstance(counts, Path) else None
    opened = OpenText(text, sample=sample)
    index = InfiniGram(counts, opened.tokenizer) if isinstance(counts, str) else None
    if table is not None:
        table.check_tokenizer(opened.tokenizer.describe())
        if table.meta.get("boundary") != text.boundary:
            counted = f"{counts} was counted with --boundary {table.meta.get('boundary')}"
            console.note(f"{counted}, this text is sliced with {text.boundary}")
    for result in (Result(out / "sequences.parquet", "sequences", {}), _labels_result(out, {})):
        result.check_replaceable()
    threshold = rare.resolve(table or index)
    opened.note_end()
    timings = Timings()
    path = out / "sequences.parquet"
    digest = _make_sequences(opened, path, seq_len, timings, force=force)["sequences_digest"]
    if index is not None:
        table = open_counts(index.table(repeated_bigrams(path), digest))
    only = None if table is None else table.meta.get("only")
    if only not in (None, digest):
        problem = "counted with --only for other sequences, so missing bigrams would look unseen"
        remedy = f"count with --only {out} or without --only"
        raise UserError(problem, where=counts, remedy=remedy)
    return make_labels(out, opened.tokenizer, table, threshold, timings, force=force)


def check_sequences(
    text: TextOptions,
    out: Path,
    *,
    seq_len: int,
    sample: Sample | None = None,
) -> dict[str, Any] | None:
    """The manifest of the sequences of the directory `out`, None where they are to be made.

    Raises UserError where they are of another text, or made in another way.
    """
    options = _sequences_options(OpenText(text, sample=sample), seq_len)
    return Result(out / "sequences.parquet", "sequences", options).finished()


def _sequences_options(opened: OpenText, seq_len: int) -> dict[str, Any]:
    """What decides the sequences of a text."""
    return {**opened.identity(), "seq_len": seq_len}


def _make_sequences(
    opened: OpenText,
    path: Path,
    seq_len: int,
    timings: Timings,
    *,
    force: bool,
) -> dict[str, Any]:
    """The manifest of the sequences of the text, which an earlier run finished or which are made
    now."""
    from recallkit.text.sequences import group_ids, write_sequences

    options = _sequences_options(opened, seq_len)
    # --force makes labels again, but sequences only if options differ.
    is_other = parquet_files.manifest_options(path, force=force) != options
    result = Result(path, "sequences", options, force=force and is_other)
    if (finished := result.finished()) is not None:
        timings.keep("slicing", path.with_name(MANIFEST), "slicing")
        return finished
    opened.note_ids()
    facts = {**result.stamp(), **options, **opened.facts()}
    with result.journal() as journal:
        if opened.drawn is not None:
            facts["drawn"] = opened.drawn.facts
        groups = ahead(_sequence_groups(opened, journal, seq_len))
        showing = progress("slicing", total=opened.most_tokens)
        with (
            timings.stage("slicing", resumed=journal.resumed) as stage,
            showing as show,
            contextlib.closing(groups),
        ):

            def shown() -> Iterator[pa.Table]:
                done = 0
                for group in groups:
                    done += len(group_ids(group)[0]) - group.num_rows
                    show(done, opened.estimated_tokens(done))
                    yield group

            manifest = write_sequences(path, shown(), facts)
            stage.amounts["tokens"] = manifest["num_rows"]
        journal.finish()
    return manifest


def _sequence_groups(opened: OpenText, journal: Journal, seq_len: int) -> Iterator[pa.Table]:
    """The sequences' row groups, each committed as a part of the journal before it is yielded;
    first those that an earlier run committed.

    The next sequences are encoded and packed meanwhile. If that raises, the group before is
    committed first.
    """
    from recallkit.text.sequences import (
        PackingState,
        pack_sequences,
        sequences_table,
        textless_schema,
        with_text,
    )

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
            parquet_files.write_parquet(
                part,
                [table],
                schema,
                {},
                use_dictionary=False,
                compression="none",
            )
            journal.commit(asdict(block.state))
            yield with_text(table, opened.tokenizer)
    if not journal.num_parts:
        where = ", ".join(opened.options.source_names)
        raise UserError("the text is too short for a single prediction", where=where)


_OF_SEQUENCES = (
    *("sequences_digest", "num_rows", "num_sequences", "seq_len", "boundary", "tokenizer"),
    *("sources", "names", "limit_tokens", "drawn"),
)
"""Fields of the manifest of sequences that the manifest of labels has, too."""


def make_labels(
    out: Path,
    tokenizer: TextTokenizer,
    table: CountsTable | None,
    threshold: Threshold,
    timings: Timings,
    *,
    force: bool,
) -> dict[str, Any]:
    """Labels the sequences of the directory `out` in `tokens.parquet`; returns the manifest.

    Raises UserError for everything a user can correct.
    """
    from recallkit.slicing import labels
    from recallkit.text.sequences import sequence_groups

    sequences = out / "sequences.parquet"
    of_sequences = parquet_files.read_manifest(sequences, records.Sequences)
    counts = table.describe() if table is not None else None
    options = {
        "sequences_digest": of_sequences["sequences_digest"],
        "counts_id": counts and counts["id"],
        "max_count": threshold.max_count,
    }
    if counts is not None and "hashes" in counts:
        options["hashes"] = counts["hashes"]
    earlier = parquet_files.manifest_options(out / "tokens.parquet", force=force) or {}
    adds_counts = counts is not None and earlier.get("counts_id", "") is None
    result = _labels_result(out, options, force=force or adds_counts)
    if (finished := result.reused()) is not None:
        return finished
    sums = labels.DocumentSums(tokenizer.document_text)
    copies = None
    if table is not None and table.ngram_hashes:
        from recallkit.slicing.copies import CopyFinder

        copies = CopyFinder(table.ngram_hashes)

    def manifest_at_end() -> dict[str, Any]:
        has_counts = table is not None and not table.is_of_repeated
        return {
            **result.stamp(),
            "counts": counts,
            "max_count": threshold.max_count,
            "threshold": threshold.facts(),
            **records.some(of_sequences, _OF_SEQUENCES),
            "num_bytes": sums.bytes_by_source(),
            "unseen": sums.unseen() if has_counts else None,
            "in_training": None if copies is None else copies.summary(),
        }

    manifest: dict[str, Any] = {}
    with result.writing(manifest, timings) as new:
        with (
            timings.stage("labelling") as stage,
            progress("labelling", total=of_sequences["num_rows"]) as show,
        ):
            groups = sequence_groups(sequences)
            tables = labels.label_sequences(
                groups,
                table,
                threshold.max_count,
                sums=sums,
                copies=copies,
                progress=show,
            )
            schema, path = schemas.arrow_schema("tokens"), new / "tokens.parquet"
            with contextlib.closing(tables):
                manifest |= parquet_files.write_parquet(
                    path,
                    tables,
                    schema,
                    manifest_at_end,
                    **labels.PARQUET_OPTIONS,
                )
            stage.amounts["tokens"] = manifest["num_rows"]
        write_tokenizer(new, tokenizer)
    return manifest


def _labels_result(out: Path, options: dict[str, Any], *, force: bool = False) -> Result:
    """The labels in a directory, with the tokenizer, as a result."""
    return Result(
        out / "tokens.parquet",
        "tokens",
        options,
        force=force,
        beside=[out / TOKENIZER_FILE],
    )
