"""Imports an index of tokengrams or infini-gram as a counts database: `count --import`.

The table is the one that `count` makes of the same documents, because an index contains the ids of its text: they are read as
a stream of documents and counted like any other, resumably. Neither package is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recallkit.counting.table import counts_result
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.storage.journal import Journal
from recallkit.storage.timings import Timings
from recallkit.text.records import Position

if TYPE_CHECKING:
    from pathlib import Path

    from recallkit.counting.bigrams import CountedStream
    from recallkit.counting.indexes import TokenIndex
    from recallkit.storage.journal import PartsJournal
    from recallkit.text.joining import Boundary
    from recallkit.text.tokenizers import TextTokenizer

LEAST_AGREEMENT = 0.95
"""If fewer bigrams survive decoding and encoding again, the tokenizer is probably another one: 0.78 do of GPT-2's ids read as
GPT-NeoX's, 0.91 of reversed ids, all of a tokenizer's own. A tokenizer that drops spaces or case may stay below it, too."""


@dataclass(frozen=True, slots=True)
class _Import:
    """An index being imported."""

    place: Path
    index: TokenIndex
    text: TextTokenizer
    boundary: Boundary


def import_index(
    place: Path, out: Path, *, tokenizer: str | None, end_token: str | None, boundary: Boundary, force: bool
) -> dict[str, Any]:
    """Counts the ids of the index at `place` into `out`; returns the table's meta. Raises UserError for everything a user can correct."""
    from recallkit.counting import indexes, make_table
    from recallkit.text.tokenizers import load_tokenizer

    if tokenizer is None:
        raise UserError("the ids of an index need their tokenizer", where=place, remedy="name it with --tokenizer")
    text = load_tokenizer(tokenizer, end_token=end_token)
    this = _Import(place, indexes.open_index(place, text.vocab_size), text, boundary)
    _find_direction(this)
    options = {
        "imported": indexes.identity(this.index),
        "reversed": this.index.is_reversed,
        "tokenizer": text.describe(),
        "boundary": boundary,
        "given_num_tokens": None,
    }
    result = counts_result(out, options, force=force)
    if (finished := result.reused()) is not None:
        return finished
    with result.parts() as journal:
        timings = Timings()
        with timings.stage("counting", resumed=journal.parts.begun()) as stage:
            counted = _count(this, journal)
            stage.amounts["tokens"] = counted.num_tokens
        kept = {"tokenizer": options["tokenizer"], "boundary": boundary, "only": None, "index": _described(this.index)}
        meta = make_table.write_counts(out, counted, {**result.stamp(), **kept}, timings)
        journal.finish()
    return meta


def _count(this: _Import, parts: PartsJournal) -> CountedStream:
    """The counts of the whole index, as a single range of shards, from the journal's last commit on."""
    from recallkit.counting import bigrams

    stream = this.index.stream(this.boundary, this.text.end_token_id)
    counters = bigrams.Counters(bigrams.Counting(stream.end_token_id, this.text.vocab_size, this.boundary))
    with Journal(parts.parts.path(0), {}, force=True) as journal, progress("counting", total=this.index.num_ids) as show:
        state = bigrams.counting_state(journal)
        if state is not None:
            parts.note_resumed(state.num_tokens, "tokens")
        batches = stream.batches(Position() if state is None else state.position)
        shard_range = bigrams.ended(bigrams.count_shard_range(batches, journal, counters, limit_tokens=stream.limit_tokens), show)
        counted = bigrams.join_shard_ranges([shard_range], parts.folder, counters.counting)
    if not counted.num_tokens:
        raise UserError("an index without text", where=this.place, remedy="give another one")
    return counted if stream.limit_tokens is None else replace(counted, num_documents=_count_documents(this, counted))


def _count_documents(this: _Import, counted: CountedStream) -> int:
    """The documents of ids that were counted as they are, by their end tokens; a note if there are none."""
    num_ends = int(counted.token_counts[counted.tokens == this.text.end_token_id].sum())
    if not num_ends:
        console.note(f"{this.place}: no {this.text.end_token} among its ids, so bigrams cross from each document into the next")
    return num_ends


def _find_direction(this: _Import) -> None:
    """Finds out whether documents are reversed, whose text does not encode to the same ids; warns if the tokenizer looks wrong."""
    from recallkit.counting import indexes

    index, shares = this.index, {}
    for is_reversed in (True, False) if index.package == indexes.InfiniGramIndex.package else (False,):
        index.is_reversed = is_reversed
        sample = [ids for ids in index.sample() if len(ids) > 1 and ids.max() < this.text.vocab_size]
        shares[is_reversed] = indexes.agreement(sample, this.text.decode, this.text.encode) if sample else 1.0
    index.is_reversed = shares.get(True, 0.0) > shares[False]
    if index.is_reversed:
        console.note(f"{this.place}: its documents are reversed (infini-gram's version 5), and are counted forwards")
    share = shares[index.is_reversed]
    if share < LEAST_AGREEMENT:
        problem = f"only {console.percent(share, 0)} of the sampled bigrams survive decoding and encoding again"
        console.note(f"{this.place}: is {this.text.name} its tokenizer? {problem}")


def _described(index: TokenIndex) -> dict[str, Any]:
    """What the table records about the index."""
    return {"package": index.package.replace("_", "-"), "token_bytes": index.token_bytes, "reversed": index.is_reversed}
