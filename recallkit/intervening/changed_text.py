"""The changed text as a slice directory of its own, so that it is scored as any text is, and who is asked where in it.

text-DIGEST/sequences.parquet   sequences with changed ids
text-DIGEST/tokens.parquet      their labels, as of any text
text-DIGEST/samples.parquet     one row per sampled token: where it is in the text, and in which rows of the changed one
text-DIGEST/scores/             scores of the changed text, made by `score`
"""

from __future__ import annotations

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
from recallkit.intervening.asking import Asker
from recallkit.intervening.places import CHANGES
from recallkit.intervening.replacements import Replacements
from recallkit.intervening.sampling import FIRST_RARE, draw_samples
from recallkit.intervening.windows import changed_sequences
from recallkit.ragged import offsets_of
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
    from recallkit.intervening.asking import AskedToken
    from recallkit.intervening.windows import ChangedSequence
    from recallkit.measure.labelled import LabelledTokens
    from recallkit.options import InterventionOptions
    from recallkit.slicing.definitions import Slice
    from recallkit.text.tokenizers import TextTokenizer

DEFAULT_SLICES = ("ar_hit", "repeated_frequent", "first_rare")


def asked_slices(options: InterventionOptions) -> tuple[Slice, ...]:
    """The slices that are asked about: those given, or the default."""
    return parse_slices(names(options.slice), without=()) or tuple(SLICES[name] for name in DEFAULT_SLICES)


_POOL = 2
"""First occurrences drawn for each token that they could be the partner of."""

_VERSION = 1
"""Of the places, replacements and designs that the same options choose."""


@dataclass(frozen=True, slots=True)
class ChangedText:
    """A directory of changed text: `samples` (see `storage.schemas`), and the facts of its manifest."""

    folder: Path
    samples: pl.DataFrame
    manifest: Mapping[str, Any]


def make_changed_text(
    tokens: LabelledTokens, slices: Sequence[Slice], options: InterventionOptions, counts: Path | None, timings: Timings
) -> ChangedText:
    """Samples tokens of `slices`, changes their contexts and writes the changed text beside the slices; a finished one is reused.

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
        "version": _VERSION,
    }
    folder = tokens.path.parent / "intervene" / f"text-{artifacts.digest_json(identity)[:12]}"
    result = Result(folder / "samples.parquet", "samples", identity, force=options.force)
    with Journal(result.path, identity, patient=True):  # of two runs that ask the same, one waits for the other
        if (manifest := result.finished()) is None:
            with timings.stage("changing"):
                manifest = _write(result, tokens, slices, options, _open_counts(tokens, counts))
    return ChangedText(folder, schemas.read_frame(folder / "samples.parquet", "samples"), manifest)


def _open_counts(tokens: LabelledTokens, given: Path | None) -> CountsTable:
    """The counts with which the text was labelled."""
    known = tokens.manifest["counts"]
    table = open_counts(given or Path(known["path"]))
    if table.meta["id"] != known["id"]:
        raise UserError("other counts than those of the labels", where=table.path, remedy="name those with --counts, or slice again")
    return table


def _write(
    result: Result, tokens: LabelledTokens, slices: Sequence[Slice], options: InterventionOptions, counts: CountsTable
) -> dict[str, Any]:
    source, folder = tokens.path.parent, result.path.parent
    described = tokens.manifest["tokenizer"]
    tokenizer = tokenizers.load_slices_tokenizer(source, described)
    sizes = [options.num_samples * (_POOL if slice_.name == FIRST_RARE else 1) for slice_ in slices]
    samples = draw_samples(tokens, slices, sizes, options.seed)
    kept = _read_sequences(source / "sequences.parquet", np.unique(np.concatenate([sample.sequence for sample in samples])))
    replacements = Replacements(counts.unigram_counts, described["end_token_id"])
    asker = Asker({number: own.ids for number, own in kept.items()}, described["end_token_id"], replacements, options.seed)
    asked = [asker.repeated(n, sample) for n, sample in enumerate(samples) if slices[n].name != FIRST_RARE]
    asked += [asker.partners(n, asked[0], samples[n]) for n in range(len(slices)) if slices[n].name == FIRST_RARE and asked]
    every = [token for of_slice in asked for token in of_slice]
    if all(token.excluded for token in every):
        raise UserError("none of the sampled tokens can be asked", where=source, remedy="slice more text, or name other slices")
    changed = changed_sequences(every, {number: own.ids for number, own in kept.items()}, options.design, options.seed)
    rows = np.full((len(every), len(CHANGES)), -1, np.int64)
    original = artifacts.read_manifest(source / "sequences.parquet")
    facts = {name: original[name] for name in ("seq_len", "boundary", "tokenizer", "sources", "names", "limit_tokens")}
    stamp = {**result.stamp(), "kind": "sequences"}
    blocks = _blocks(changed, kept, tokenizer, rows, sequences_per_row_group(original["seq_len"]))
    made = sequences.Sequences.made(folder / "sequences.parquet", blocks, {**stamp, **facts})
    manifest = make_labels(folder, tokenizer, made, counts, Threshold(tokens.max_count), Timings(), force=True)
    found = {
        "tokens_of_slices": {slice_.name: sample.num_tokens for slice_, sample in zip(slices, samples, strict=True)},
        "excluded": dict(Counter(token.excluded for token in every if token.excluded)),
        "num_far": replacements.num_far,
        "changed_tokens": manifest["num_rows"],
        "changed_digest": manifest["sequences_digest"],
    }
    table = _samples_table(every, [slice_.name for slice_ in slices], rows)
    return artifacts.write_parquet(result.path, [table], table.schema, {**result.stamp(), **found})


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Ids (t,), and where the part of each document in it begins, with the document's number and source."""

    ids: np.ndarray
    span_starts: np.ndarray
    span_documents: np.ndarray
    span_sources: Sequence[str]


def _read_sequences(path: Path, wanted: np.ndarray) -> dict[int, _Sequence]:
    """The `wanted` sequences, by number."""
    found = {}
    for group in sequences.sequence_groups(path):
        numbers = group["sequence"].to_numpy()
        for place in np.flatnonzero(np.isin(numbers, wanted)).tolist():
            row = {name: group[name][place].values for name in ("tokens", "span_starts", "span_documents", "span_sources")}
            ids, starts, documents = (row[name].to_numpy() for name in ("tokens", "span_starts", "span_documents"))
            found[int(numbers[place])] = _Sequence(ids, starts, documents, row["span_sources"].to_pylist())
    return found


def _blocks(
    changed: Iterator[ChangedSequence], kept: Mapping[int, _Sequence], tokenizer: TextTokenizer, rows: np.ndarray, size: int
) -> Iterator[pa.Table]:
    """The changed sequences as row groups of `size` of them.

    Writes to `rows` (n, 4) in which row of their labels each token is read under each change.
    """
    first, num_rows = 0, 0
    while block := list(islice(changed, size)):
        own = [kept[one.sequence] for one in block]
        num_spans = [int(np.searchsorted(read.span_starts, len(one.ids))) for one, read in zip(block, own, strict=True)]
        for one in block:
            for reading in one.readings:
                rows[reading.number, CHANGES.index(reading.change)] = num_rows + reading.target - 1
            num_rows += len(one.ids) - 1
        made = sequences.SequenceBlock(
            first,
            ids=np.concatenate([one.ids for one in block]),
            offsets=offsets_of([len(one.ids) for one in block]),
            span_offsets=offsets_of(num_spans),
            span_starts=np.concatenate([read.span_starts[:n] for read, n in zip(own, num_spans, strict=True)]),
            span_documents=np.concatenate([read.span_documents[:n] for read, n in zip(own, num_spans, strict=True)]),
            span_sources=[name for read, n in zip(own, num_spans, strict=True) for name in read.span_sources[:n]],
        )
        yield sequences.with_text(sequences.sequences_table(made), tokenizer)
        first += len(block)


def _samples_table(asked: Sequence[AskedToken], names: Sequence[str], rows: np.ndarray) -> pa.Table:
    import pyarrow as pa

    own = ("row", "sequence", "position", "document", "distance", "occurrences", "match_length", "train_count", "weight", "excluded")
    columns: dict[str, Any] = {name: [getattr(token, name) for token in asked] for name in own}
    columns["slice"] = [names[token.slice] for token in asked]
    columns["num_changed"] = [0 if token.places is None else len(token.places.of("span")) for token in asked]
    columns |= {f"{change}_row": rows[:, place] for place, change in enumerate(CHANGES)}
    schema = schemas.arrow_schema("samples")
    return pa.Table.from_pydict({name: columns[name] for name in schema.names}, schema=schema)
