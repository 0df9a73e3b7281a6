"""The changed text as a slice directory, so that it is scored like any text, and where each sampled
token is in it.

text-DIGEST/sequences.parquet   sequences with changed ids
text-DIGEST/tokens.parquet      their labels, as of any text
text-DIGEST/samples.parquet     one row per sampled token: where it is in the text, and in
                                which rows of the changed one
text-DIGEST/scores/             scores of the changed text, made by `score`
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.config import sequences_per_row_group
from recallkit.counting.table import open_counts
from recallkit.errors import UserError
from recallkit.intervening.changes import BY_ASSOCIATION, CHANGES, Replacements
from recallkit.intervening.readings import Sampler, changed_sequences
from recallkit.intervening.sampling import FIRST_RARE, draw_samples, sampled_slices
from recallkit.slicing.run import make_labels
from recallkit.slicing.threshold import Threshold
from recallkit.storage import hashing, parquet_files, records, schemas
from recallkit.storage.journal import Journal
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings
from recallkit.text import sequences, tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from recallkit.counting.table import CountsTable
    from recallkit.intervening.readings import ChangedSequence, SampledToken
    from recallkit.measure.labelled import LabelledTokens
    from recallkit.options import InterventionOptions
    from recallkit.text.tokenizers import TextTokenizer


def make_changed_text(
    tokens: LabelledTokens,
    options: InterventionOptions,
    counts: Path | None,
    timings: Timings,
) -> Path:
    """Samples tokens, changes their contexts, writes the changed text to a folder beside the
    slices; a finished one is reused.

    Raises UserError if the counts are not those of the labels, or no token can be changed.
    """
    identity = {
        "sequences_digest": tokens.manifest["sequences_digest"],
        "counts_id": tokens.counts["id"],
        "max_count": tokens.max_count,
        "slices": [slice_.option for slice_ in sampled_slices(options)],
        "samples": options.num_samples,
        "design": options.design,
        "seed": options.seed,
        "changes": [*(BY_ASSOCIATION if options.changes == "moved" else CHANGES)],
    }
    folder = tokens.path.parent / "intervene" / f"text-{hashing.digest_json(identity)[:12]}"
    result = Result(folder / "samples.parquet", "samples", identity, force=options.force)
    # Of two runs of the same question, one waits for the other.
    with Journal(result.path, identity, patient=True):
        if result.finished() is None:
            with timings.stage("changing"):
                _write(result, tokens, options, _open_counts(tokens, counts))
    return folder


def _open_counts(tokens: LabelledTokens, path: Path | None) -> CountsTable:
    """The counts with which the text was labelled."""
    table = open_counts(path or Path(tokens.counts["path"]))
    if table.is_of_repeated:
        problem = "counts of repeated bigrams only, but replacements are drawn from all tokens"
        remedy = "slice with a table that `recallkit count` made"
        raise UserError(problem, where=tokens.path, remedy=remedy)
    if table.meta["id"] != tokens.counts["id"]:
        problem = "other counts than those of the labels"
        remedy = "name those with --counts, or slice again"
        raise UserError(problem, where=table.path, remedy=remedy)
    return table


def _write(
    result: Result,
    tokens: LabelledTokens,
    options: InterventionOptions,
    counts: CountsTable,
) -> None:
    """Writes the changed text with its labels, then the table of samples."""
    import pyarrow as pa

    source, folder = tokens.path.parent, result.path.parent
    original = parquet_files.read_manifest(source / "sequences.parquet", records.Sequences)
    tokenizer = tokenizers.load_slices_tokenizer(source, tokens.manifest["tokenizer"])
    samples = _draw(tokens, options)
    text = _read_sequences(source / "sequences.parquet", pl.concat(samples.values())["sequence"])
    ids = {number: row["tokens"] for number, row in text.items()}
    end_id = tokens.manifest["tokenizer"]["end_token_id"]
    replacements = Replacements(counts.unigram_counts, end_id)
    sampler = Sampler(ids, end_id, replacements, options.seed, result.options["changes"])
    sampled = _sampled(sampler, samples)
    if all(token.places is None for token in sampled):
        remedy = "slice more text, or name other slices with `recallkit intervene --slice`"
        raise UserError("none of the sampled tokens can be changed", where=source, remedy=remedy)
    alike = ("seq_len", "boundary", "tokenizer", "sources", "names", "limit_tokens")
    facts = {name: value for name, value in original.items() if name in alike}
    changed = changed_sequences(sampled, ids, options.design, options.seed)
    groups = _row_groups(changed, text, tokenizer, sequences_per_row_group(original["seq_len"]))
    stamp = {**result.stamp(), "kind": "sequences"}
    sequences.write_sequences(folder / "sequences.parquet", groups, stamp | facts)
    threshold = Threshold(tokens.max_count)
    labels = make_labels(folder, tokenizer, counts, threshold, Timings(), force=True)
    excluded = Counter(token.row["excluded"] for token in sampled if token.places is None)
    manifest = {"excluded": excluded, "changed_tokens": labels["num_rows"], **result.stamp()}
    table = pa.Table.from_pylist([token.row for token in sampled], schemas.arrow_schema("samples"))
    parquet_files.write_parquet(result.path, [table], table.schema, manifest)


def _draw(tokens: LabelledTokens, options: InterventionOptions) -> dict[str, pl.DataFrame]:
    """The samples of each slice; of first occurrences twice as many, of which each token finds a
    partner."""
    slices, number = sampled_slices(options), options.num_samples
    sizes = [2 * number if slice_.name == FIRST_RARE else number for slice_ in slices]
    samples = draw_samples(tokens, slices, sizes, options.seed)
    return dict(zip([slice_.name for slice_ in slices], samples, strict=True))


def _sampled(sampler: Sampler, samples: Mapping[str, pl.DataFrame]) -> list[SampledToken]:
    """The samples of every slice with their changes; first occurrences are partners of the first of
    the others."""
    repeated = {name: tokens for name, tokens in samples.items() if name != FIRST_RARE}
    by_slice = [sampler.repeated(*pair) for pair in repeated.items()]
    if by_slice and FIRST_RARE in samples:
        by_slice.append(sampler.partners(FIRST_RARE, by_slice[0], samples[FIRST_RARE]))
    return [token for tokens in by_slice for token in tokens]


def _read_sequences(path: Path, numbers: pl.Series) -> dict[int, dict[str, Any]]:
    """The rows of these sequences, by number; their `tokens` are arrays (t,)."""
    is_needed = pl.col("sequence").is_in(numbers.unique().implode())
    rows = pl.scan_parquet(path, glob=False).filter(is_needed).collect().iter_rows(named=True)
    return {row["sequence"]: {**row, "tokens": np.array(row["tokens"], np.uint32)} for row in rows}


def _row_groups(
    changed: Iterator[ChangedSequence],
    text: Mapping[int, dict[str, Any]],
    tokenizer: TextTokenizer,
    size: int,
) -> Iterator[pa.Table]:
    """The changed sequences as row groups of `size` of them; notes of each token in which row of
    their labels it is read."""
    import pyarrow as pa

    first, num_rows = 0, 0
    while block := list(islice(changed, size)):
        rows = []
        for number, sequence in enumerate(block, first):
            for reading in sequence.readings:
                # Position 1 is the first row of a sequence.
                reading.token.row[f"{reading.change}_row"] = num_rows + reading.token.position - 1
            num_rows += len(sequence.ids) - 1
            row = {**text[sequence.sequence], "sequence": number, "tokens": sequence.ids}
            # The parts of documents that begin before it ends.
            num_spans = bisect_left(row["span_starts"], len(sequence.ids))
            for name in ("span_starts", "span_documents", "span_sources"):
                row[name] = row[name][:num_spans]
            rows.append(row)
        table = pa.Table.from_pylist(rows, sequences.textless_schema())
        yield sequences.with_text(table, tokenizer)
        first += len(block)
