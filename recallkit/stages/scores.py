"""Sequences to scores: NLL, argmax and rank of every predicted token under one model, resumable range by range.

Sequences are taken 64 at a time, a part each; inside a part they are batched by length. Which sequences share a batch
follows from the options alone, so that a run that was killed and one that was not write the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit import artifacts
from recallkit.config import SEQUENCES_PER_ROW_GROUP
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from recallkit.journal import Journal
    from recallkit.models.api import ScoringModel, TokenScores

SEQUENCES_PER_PART = 64
"""Scored between two commits: a kill costs at most this much work."""

PARQUET_OPTIONS: dict[str, Any] = {
    "use_dictionary": ["sequence", "position"],
    "use_byte_stream_split": ["nll"],
}


def scores_schema() -> pa.Schema:
    """Arrow schema of a score file: one row a predicted token, in the order of `tokens.parquet`.

    `nll` in nats; `rank` 0 is best, the number of vocabulary entries with a larger logit.
    """
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("sequence", pa.int32(), nullable=False),
            pa.field("position", pa.int32(), nullable=False),
            pa.field("nll", pa.float32(), nullable=False),
            pa.field("argmax", pa.int32(), nullable=False),
            pa.field("rank", pa.int32(), nullable=False),
        ]
    )


def score_sequences(
    model: ScoringModel,
    parts: Iterator[tuple[int, np.ndarray, np.ndarray]],
    journal: Journal,
    *,
    batch_tokens: int,
    progress: Callable[[int], None] = lambda _: None,
    notify: Callable[[str], None] = lambda _: None,
) -> None:
    """Scores the parts that the journal does not hold yet: (first sequence, flat ids, offsets) each.

    `batch_tokens` bounds the ids of a batch, padding included. `progress` is told the tokens of every part, those done
    by an earlier run too. Out of memory halves the batch, says so to `notify` and goes on. Raises UserError for
    NLLs that are not finite.
    """
    batch_tokens = journal.state.get("batch_tokens", batch_tokens)
    for number, (first, ids, offsets) in enumerate(parts):
        if number >= journal.num_parts:
            scores, batch_tokens = _score_within_memory(model, first, ids, offsets, batch_tokens, notify)
            table = _scores_table(first, offsets, scores)
            artifacts.write_parquet(journal.part(number), [table], scores_schema(), {}, **PARQUET_OPTIONS)
            journal.commit({"batch_tokens": batch_tokens})
        progress(len(ids) - len(offsets) + 1)


def write_scores(journal: Journal, path: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Joins the journal's parts into one score file with the row groups of `tokens.parquet`; returns its manifest."""
    return artifacts.write_parquet(path, _row_groups(journal), scores_schema(), manifest, **PARQUET_OPTIONS)


def _row_groups(journal: Journal) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts_per_group = SEQUENCES_PER_ROW_GROUP // SEQUENCES_PER_PART
    for start in range(0, journal.num_parts, parts_per_group):
        numbers = range(start, min(start + parts_per_group, journal.num_parts))
        yield pa.concat_tables([pq.read_table(journal.part(n), schema=scores_schema()) for n in numbers]).combine_chunks()


def _score_within_memory(
    model: ScoringModel, first: int, ids: np.ndarray, offsets: np.ndarray, batch_tokens: int, notify: Callable[[str], None]
) -> tuple[TokenScores, int]:
    """Scores of a part, and the batch size that memory allowed."""
    while True:
        try:
            return _score_part(model, first, ids, offsets, batch_tokens), batch_tokens
        except MemoryError:
            if batch_tokens < int(np.diff(offsets).max()):
                raise UserError(
                    "out of memory with one sequence at a time", where=model.name, remedy="slice with a smaller --seq-len"
                ) from None
            batch_tokens //= 2
            notify(f"{model.name}: out of memory, going on with batches of {batch_tokens:,} tokens")


def _score_part(model: ScoringModel, first: int, ids: np.ndarray, offsets: np.ndarray, batch_tokens: int) -> TokenScores:
    """Scores of a part in the order of its sequences."""
    lengths = np.diff(offsets)
    predicted_at = offsets - np.arange(len(offsets))
    total = int(predicted_at[-1])
    nll, argmax, rank = np.empty(total, np.float32), np.empty(total, np.int32), np.empty(total, np.int32)
    for chosen in _batches(lengths, batch_tokens):
        batch_ids = np.concatenate([ids[offsets[i] : offsets[i + 1]] for i in chosen])
        batch_offsets = np.concatenate([[0], np.cumsum(lengths[chosen])])
        scores = model.score(batch_ids, batch_offsets)
        out = np.concatenate([np.arange(predicted_at[i], predicted_at[i + 1]) for i in chosen])
        nll[out], argmax[out], rank[out] = scores.nll, scores.argmax, scores.rank
    _check_finite(model, nll, first, predicted_at)
    return type(scores)(nll, argmax, rank)


def _batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Sequences of a part by falling length, as many at a time as `batch_tokens` holds when padded to the longest."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // int(lengths[order[start]] - 1))
        yield order[start : start + size]
        start += size


def check_length(model: ScoringModel, num_inputs: int) -> None:
    """Raises UserError where a sequence of `num_inputs` ids is more than the model's context holds."""
    if model.max_length is not None and num_inputs > model.max_length:
        raise UserError(
            f"its context holds {model.max_length:,} ids, the sequences have {num_inputs:,}",
            where=model.name,
            remedy=f"slice with --seq-len {model.max_length} or less",
        )


def _check_finite(model: ScoringModel, nll: np.ndarray, first: int, predicted_at: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(nll))
    if len(bad):
        sequence = int(np.searchsorted(predicted_at, bad[0], side="right")) - 1
        position = int(bad[0] - predicted_at[sequence]) + 1
        raise UserError(
            f"its NLL at sequence {first + sequence}, position {position} is {nll[bad[0]]} ({len(bad)} such values in this part)",
            where=model.name,
            remedy="check the weights, or use a wider --dtype",
        )


def _scores_table(first: int, offsets: np.ndarray, scores: TokenScores) -> pa.Table:
    import pyarrow as pa

    counts = np.diff(offsets) - 1
    starts = np.cumsum(counts) - counts
    sequence = np.repeat(np.arange(first, first + len(counts), dtype=np.int32), counts)
    position = (np.arange(len(sequence)) - np.repeat(starts, counts) + 1).astype(np.int32)
    columns = [pa.array(c) for c in (sequence, position, scores.nll, scores.argmax, scores.rank)]
    return pa.Table.from_arrays(columns, schema=scores_schema())
