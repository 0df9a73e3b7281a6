"""The changed text as a slice directory, so that it is scored like any text, and where each sampled token is in it.

text-DIGEST/sequences.parquet   sequences with changed ids
text-DIGEST/tokens.parquet      their labels, as of any text
text-DIGEST/samples.parquet     one row per sampled token: where it is in the text, and in which rows of the changed one
text-DIGEST/scores/             scores of the changed text, made by `score`

The tokens of a slice are sampled, stratified by distance to the latest earlier occurrence and by training count. A stratum of N tokens gets
samples in proportion to the square root of N, so that small ones can be reported, too; each sample then weighs N over the number sampled
there, and weighted means are those of the slice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from recallkit.config import sequences_per_row_group
from recallkit.counting.table import open_counts
from recallkit.declarations import names
from recallkit.errors import UserError
from recallkit.intervening.asking import Asker, changed_sequences
from recallkit.intervening.changes import CHANGES, Replacements, positions
from recallkit.measure.classes import log2_bucket
from recallkit.measure.labelled import batches
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
    if table.is_of_repeated:
        problem = "counts of repeated bigrams alone, and replacements are drawn from those of all tokens"
        raise UserError(problem, where=tokens.path, remedy="slice with a table that `recallkit count` made")
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
        raise UserError(
            "none of the sampled tokens can be changed",
            where=source,
            remedy="slice more text, or name other slices with `recallkit intervene --slice`",
        )
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


FIRST_RARE = "first_rare"
"""The slice whose tokens have no earlier occurrence: they borrow the places of another slice's tokens."""

COLUMNS = ("sequence", "position", "document", "distance", "occurrences", "match_length", "train_count")
"""Labels of sampled tokens."""

_BUCKETS = 64


class Sample(NamedTuple):
    """Tokens of one slice, in the order of the text, and the number of tokens of the whole slice.

    `tokens`: COLUMNS (`distance` 0 where the bigram does not occur earlier), `row` in `tokens.parquet`, from 0, and `weight`: how many
    tokens of the slice each represents.
    """

    tokens: pl.DataFrame
    num_tokens: int


def that_repeat(slice_: Slice) -> Slice:
    """The tokens of a slice that can be sampled: those that repeat a bigram; of FIRST_RARE all."""
    if slice_.name == FIRST_RARE:
        return slice_
    columns = tuple(dict.fromkeys([*slice_.columns, "repeated"]))
    return replace(slice_, columns=columns, predicate=lambda most: slice_.predicate(most) & pl.col("repeated"))


def draw_samples(tokens: LabelledTokens, slices: Sequence[Slice], sizes: Sequence[int], seed: int) -> list[Sample]:
    """At most so many tokens of each slice, drawn from `seed`.

    One pass over the labels, in memory that grows with `sizes` alone. Raises UserError if the labels are damaged.
    """
    pools, rng, first = [Pool(size) for size in sizes], np.random.default_rng(seed), 0
    for batch in batches(tokens, columns=COLUMNS, slices=slices):
        rows = pl.DataFrame(batch.select([*COLUMNS, "slices"]))
        number = pl.int_range(first, first + pl.len())
        rows = rows.with_columns(pl.col("distance").fill_null(0), row=number, key=pl.Series(rng.random(len(rows))))
        for bit, pool in enumerate(pools):
            pool.add(rows.filter(pl.col("slices") & (1 << bit) != 0).drop("slices"))
        first += len(rows)
    return [pool.sample() for pool in pools]


class Pool:
    """Candidates of one slice: of each stratum those with the smallest keys, as many as could be sampled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[pl.DataFrame] = []
        self._num_tokens = np.zeros(_BUCKETS * _BUCKETS, np.int64)

    def add(self, rows: pl.DataFrame) -> None:
        """Adds tokens of the slice, with a random `key`."""
        stratum = log2_bucket(rows["distance"].to_numpy()) * _BUCKETS + log2_bucket(rows["train_count"].to_numpy())
        self._num_tokens += np.bincount(stratum, minlength=len(self._num_tokens))
        every = pl.concat([*self._kept, rows.with_columns(stratum=stratum)])
        self._kept = [every.sort("key").group_by("stratum", maintain_order=True).head(self._size)]

    def sample(self) -> Sample:
        """The sample of everything added."""
        [kept] = self._kept
        for width in (1, _BUCKETS, _BUCKETS * _BUCKETS):  # by distance and count, by distance, all together
            totals = np.bincount(np.arange(len(self._num_tokens)) // width, self._num_tokens).astype(np.int64)
            if np.count_nonzero(totals) <= self._size:  # every stratum can have one
                break
        kept = kept.with_columns(pl.col("stratum") // width)
        stratum, number = np.unique(kept["stratum"].to_numpy(), return_counts=True)
        wanted = allocate(totals[stratum], np.minimum(totals[stratum], number), self._size)
        strata = pl.DataFrame({"stratum": stratum, "wanted": wanted, "weight": totals[stratum] / wanted})
        taken = kept.join(strata, on="stratum").filter(pl.col("key").rank("ordinal").over("stratum") <= pl.col("wanted"))
        return Sample(taken.sort("row").drop("key", "stratum", "wanted"), int(totals.sum()))


def allocate(totals: np.ndarray, most: np.ndarray, size: int) -> np.ndarray:
    """How many of `size` samples each stratum of `totals` tokens gets, int64 (s,): at least one, at most `most`, else by the square root.

    All of a stratum whose share would be more than it has; what is left over goes to the others in the same way. `size` >= s.
    """
    wanted: np.ndarray = np.minimum(most, 1)
    while (left := size - int(wanted.sum())) > 0 and (room := most > wanted).any():
        share = np.where(room, np.sqrt(totals), 0.0)
        exact = left * share / share.sum()
        more = np.minimum(np.floor(exact).astype(np.int64), most - wanted)
        if not more.any():  # less than one each: to those with the largest remainders
            more[np.argsort(-exact, kind="stable")[:left]] = 1
            more = np.minimum(more, most - wanted)
        wanted += more
    return wanted
