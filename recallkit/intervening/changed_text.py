"""The changed text as a slice directory, so that it is scored like any text, and where each sampled token is in it.

text-DIGEST/sequences.parquet   sequences with changed ids
text-DIGEST/tokens.parquet      their labels, as of any text
text-DIGEST/samples.parquet     one row per sampled token: where it is in the text, and in which rows of the changed one
text-DIGEST/scores/             scores of the changed text, made by `score`
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import sequences_per_row_group
from recallkit.counting.table import open_counts
from recallkit.declarations import names
from recallkit.errors import UserError
from recallkit.intervening.asking import Asker, changed_sequences
from recallkit.intervening.changes import CHANGES, Replacements, positions
from recallkit.intervening.sampling import FIRST_RARE, draw_samples, that_repeat
from recallkit.slicing.definitions import SLICES, parse_slices
from recallkit.slicing.run import make_labels
from recallkit.slicing.threshold import Threshold
from recallkit.storage import artifacts, schemas
from recallkit.storage.journal import Journal
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings
from recallkit.text import sequences, tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from recallkit.counting.table import CountsTable
    from recallkit.intervening.asking import AskedToken, ChangedSequence
    from recallkit.measure.labelled import LabelledTokens
    from recallkit.options import InterventionOptions
    from recallkit.slicing.definitions import Slice
    from recallkit.text.tokenizers import TextTokenizer

DEFAULT_SLICES = ("ar_hit", "repeated_frequent", "first_rare")

_POOL = 2
"""First occurrences drawn for each token that they could be the partner of."""


def asked_slices(options: InterventionOptions) -> tuple[Slice, ...]:
    """The slices that are sampled, each limited to tokens that can be changed: those given, or the default."""
    given = parse_slices(names(options.slice), without=()) or tuple(SLICES[name] for name in DEFAULT_SLICES)
    return tuple(that_repeat(slice_) for slice_ in given)


@dataclass(frozen=True, slots=True)
class ChangedText:
    """A directory of changed text: `samples` (see `storage.schemas`), and the facts of its manifest."""

    folder: Path
    samples: pl.DataFrame
    manifest: Mapping[str, Any]


def make_changed_text(
    tokens: LabelledTokens,
    slices: Sequence[Slice],
    options: InterventionOptions,
    counts: Path | None,
    timings: Timings,
    changes: Sequence[str] = tuple(CHANGES),
) -> ChangedText:
    """Samples tokens of `slices`, makes `changes` of their contexts, writes the changed text beside the slices; a finished one is reused.

    Raises UserError if the counts are not those of the labels, or no token can be asked.
    """
    identity = {
        "sequences_digest": tokens.manifest["sequences_digest"],
        "counts_id": tokens.manifest["counts"]["id"],
        "max_count": tokens.max_count,
        "slices": [slice_.given for slice_ in slices],
        "samples": options.num_samples,
        "design": options.design,
        "seed": options.seed,
        "changes": list(changes),
    }
    folder = tokens.path.parent / "intervene" / f"text-{artifacts.digest_json(identity)[:12]}"
    result = Result(folder / "samples.parquet", "samples", identity, force=options.force)
    with Journal(result.path, identity, patient=True):  # of two runs that ask the same, one waits for the other
        if (manifest := result.finished()) is None:
            with timings.stage("changing"):
                manifest = _write(result, tokens, slices, options, _open_counts(tokens, counts), changes)
    return ChangedText(folder, schemas.read_frame(folder / "samples.parquet"), manifest)


def _open_counts(tokens: LabelledTokens, given: Path | None) -> CountsTable:
    """The counts with which the text was labelled."""
    known = tokens.manifest["counts"]
    table = open_counts(given or Path(known["path"]))
    if table.meta["id"] != known["id"]:
        raise UserError("other counts than those of the labels", where=table.path, remedy="name those with --counts, or slice again")
    return table


def _write(
    result: Result,
    tokens: LabelledTokens,
    slices: Sequence[Slice],
    options: InterventionOptions,
    counts: CountsTable,
    changes: Sequence[str],
) -> dict[str, Any]:
    source, folder = tokens.path.parent, result.path.parent
    tokenizer, end_id = tokenizers.load_slices_tokenizer(source, tokens.manifest["tokenizer"]), tokens.manifest["tokenizer"]["end_token_id"]
    sizes = [options.num_samples * (_POOL if slice_.name == FIRST_RARE else 1) for slice_ in slices]
    drawn = draw_samples(tokens, slices, sizes, options.seed)
    samples = {slice_.name: sample.tokens for slice_, sample in zip(slices, drawn, strict=True)}
    text = _read_sequences(source / "sequences.parquet", {number for of in samples.values() for number in of["sequence"].to_list()})
    ids = {number: row["tokens"] for number, row in text.items()}
    replacements = Replacements(counts.unigram_counts, end_id)
    asker = Asker(ids, end_id, replacements, options.seed, changes)
    of_slices = [asker.repeated(name, sample) for name, sample in samples.items() if name != FIRST_RARE]
    if of_slices and FIRST_RARE in samples:
        of_slices.append(asker.partners(FIRST_RARE, of_slices[0], samples[FIRST_RARE]))
    asked = [token for of_slice in of_slices for token in of_slice]
    if all(token.excluded for token in asked):
        raise UserError("none of the sampled tokens can be changed", where=source, remedy="slice more text, or name other slices")
    original = artifacts.read_manifest(source / "sequences.parquet")
    facts = {name: original[name] for name in ("seq_len", "boundary", "tokenizer", "sources", "names", "limit_tokens")}
    changed = changed_sequences(asked, ids, options.design, options.seed)
    groups = _row_groups(changed, text, tokenizer, sequences_per_row_group(original["seq_len"]))
    sequences.write_sequences(folder / "sequences.parquet", groups, {**result.stamp(), "kind": "sequences", **facts})
    manifest = make_labels(folder, tokenizer, counts, Threshold(tokens.max_count), Timings(), force=True)
    found = {
        "tokens_of_slices": {slice_.name: sample.num_tokens for slice_, sample in zip(slices, drawn, strict=True)},
        "excluded": dict(Counter(token.excluded for token in asked if token.excluded)),
        "num_far": replacements.num_far,
        "changed_tokens": manifest["num_rows"],
        "changed_digest": manifest["sequences_digest"],
    }
    table = _samples_table(asked)
    return artifacts.write_parquet(result.path, [table], table.schema, {**result.stamp(), **found})


def _read_sequences(path: Path, wanted: set[int]) -> dict[int, dict[str, Any]]:
    """The rows of the `wanted` sequences, by number; their `tokens` are arrays (t,)."""
    found = {}
    for group in sequences.sequence_groups(path):
        ids, offsets = sequences.group_ids(group)
        for row, tokens in zip(group.drop_columns("tokens").to_pylist(), np.split(ids, offsets[1:-1]), strict=True):
            if row["sequence"] in wanted:
                found[row["sequence"]] = {**row, "tokens": tokens}
    return found


def _row_groups(
    changed: Iterator[ChangedSequence], text: Mapping[int, dict[str, Any]], tokenizer: TextTokenizer, size: int
) -> Iterator[pa.Table]:
    """The changed sequences as row groups of `size` of them; notes of each token in which row of their labels it is read."""
    import pyarrow as pa

    first, num_rows = 0, 0
    while block := list(islice(changed, size)):
        rows = []
        for number, one in enumerate(block, first):
            for reading in one.readings:
                reading.token.read_in[reading.change] = num_rows + reading.token.position - 1  # position 1 is the first row
            num_rows += len(one.ids) - 1
            row = text[one.sequence]
            num_spans = bisect_left(row["span_starts"], len(one.ids))  # the parts of documents that begin before it ends
            spans = {name: row[name][:num_spans] for name in ("span_starts", "span_documents", "span_sources")}
            rows.append({**row, **spans, "sequence": number, "tokens": one.ids})
        yield sequences.with_text(pa.Table.from_pylist(rows, sequences.textless_schema()), tokenizer)
        first += len(block)


def _samples_table(asked: Sequence[AskedToken]) -> pa.Table:
    import pyarrow as pa

    rows = []
    for token in asked:
        num_changed = 0 if token.places is None else len(positions(token.places.spans))
        read_in = {f"{change}_row": token.read_in.get(change, -1) for change in CHANGES}
        rows.append({**token.row, **read_in, "num_changed": num_changed, "excluded": token.excluded})
    return pa.Table.from_pylist(rows, schemas.arrow_schema("samples"))
