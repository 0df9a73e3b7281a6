"""Sequences to scores: NLL, argmax and rank of every predicted token under one model, resumable
part by part.

A part is 32 sequences; within a part they are batched by length. Which ids share a batch depends on
the options alone, and a batch that is too large for a device is always split at the same place, so
that a resumed run, an uninterrupted one and one on many devices write the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from recallkit.config import SEQUENCES_PER_ROW_GROUP, sequences_per_row_group
from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.ragged import offsets_of, positions_within
from recallkit.scoring.windows import check_context
from recallkit.storage import db, parquet_files, records, schemas
from recallkit.storage.journal import read_part, removing_damage
from recallkit.text.sequences import group_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from recallkit.models.protocol import CarryingModel, ScoringModel
    from recallkit.scoring.windows import ContextWindow

PARQUET_OPTIONS: dict[str, Any] = {
    "use_dictionary": ["sequence", "position", "context"],
    "use_byte_stream_split": ["nll", "nll_reference", "kl"],
}


class SequenceReader:
    """Reads any part of `sequences.parquet`, a few sequences each, all of them of the file that was
    there when this was made.

    Not thread-safe. Raises UserError if `digest` is given and the file contains other sequences.
    """

    def __init__(self, path: Path, sequences_per_part: int, digest: str | None = None) -> None:
        import pyarrow.parquet as pq

        if digest not in (
            None,
            parquet_files.read_manifest(path, records.Sequences)["sequences_digest"],
        ):
            remedy = "score the new file again"
            raise UserError("replaced while it was scored", where=path, remedy=remedy)
        self._size = sequences_per_part
        self._file = pq.ParquetFile(path, pre_buffer=False)
        metadata = self._file.metadata
        self._starts = np.cumsum(
            [0, *(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))]
        )

    def num_parts(self) -> int:
        """The number of parts."""
        return -(-int(self._starts[-1]) // self._size)

    def read(self, part: int) -> tuple[int, np.ndarray, np.ndarray]:
        """The number of the part's first sequence, its flat ids (uint32) and their offsets. Raises
        UserError for damage."""
        first = part * self._size
        group = int(np.searchsorted(self._starts, first, side="right")) - 1
        ids, offsets = group_ids(self._file.read_row_group(group, columns=["tokens"]))
        start = first - int(self._starts[group])
        chosen = offsets[start : start + self._size + 1]
        return first, ids[chosen[0] : chosen[-1]], chosen - chosen[0]


@dataclass(frozen=True, slots=True)
class SequenceScores(TokenScores):
    """`TokenScores` of a few sequences with, of each token, the ids that it was predicted from,
    `context` int32, and `exact` bool."""

    context: np.ndarray
    exact: np.ndarray


class BatchLimit:
    """The size of a batch in ids with padding, and the sizes that were found too large for the
    device.

    A batch that does not fit is split into halves, and so is every later one that is as large and
    as long: how batches are split depends on the device alone, not on what was scored before.
    """

    def __init__(self, batch_tokens: int, notify: Callable[[str], None] = lambda _: None) -> None:
        self.batch_tokens = batch_tokens
        self.notify = notify
        self._too_large: list[tuple[int, int]] = []

    def fits(self, num_sequences: int, length: int) -> bool:
        """Whether no batch of this size or a smaller one was found too large."""
        return not any(
            num_sequences * length >= size and length >= longest
            for size, longest in self._too_large
        )

    def exclude(self, num_sequences: int, length: int, name: str) -> None:
        """Records a batch that was too large, and tells the user."""
        self._too_large.append((num_sequences * length, length))
        self.notify(
            f"{name}: out of memory with {num_sequences:,} x {length:,} tokens, retrying with "
            "half of them"
        )


class BatchedScores:
    """Sequences (sequence i is `ids[offsets[i]:offsets[i + 1]]`) that are scored batch by batch.

    `scores` are those of the first `num_done` batches. Raises UserError if a sequence exceeds the
    model's context.
    """

    def __init__(
        self,
        model: ScoringModel,
        ids: np.ndarray,
        offsets: np.ndarray,
        limit: BatchLimit,
        window: ContextWindow,
    ) -> None:
        self._model, self._ids, self._limit, self._window = model, ids, limit, window
        self._windows = _windows(model, offsets, window)
        lengths = self._windows.stops - self._windows.starts - 1
        self._batches = list(_batches(lengths, limit.batch_tokens, window))
        self._ends = np.cumsum([lengths[chosen].sum() for chosen in self._batches])
        total = len(ids) - len(offsets) + 1
        argmax, rank, context = np.zeros((3, total), np.int32)
        beside = {
            name: np.zeros(total, dtype) for name, dtype in getattr(model, "beside", {}).items()
        }
        self.scores = SequenceScores(
            np.zeros(total, np.float32), argmax, rank, context, np.ones(total, bool), beside=beside
        )
        self.num_done = 0

    @property
    def share_done(self) -> float:
        """The share of what the model reads that it has read."""
        return float(self._ends[self.num_done - 1] / self._ends[-1]) if self.num_done else 0.0

    def run(self) -> Iterator[None]:
        """Scores what is not done, pausing after each batch. Raises UserError if a single sequence
        exceeds the device's memory."""
        for chosen in self._batches[self.num_done :]:
            _score_batch(
                self._model,
                self._ids,
                self._windows,
                chosen,
                self._limit,
                self._window,
                self.scores,
            )
            self.num_done += 1
            yield


def score_sequences(
    model: ScoringModel,
    ids: np.ndarray,
    offsets: np.ndarray,
    limit: BatchLimit,
    window: ContextWindow,
) -> SequenceScores:
    """The scores of sequences, in their order, as `BatchedScores` makes them, and with its
    errors."""
    batched = BatchedScores(model, ids, offsets, limit, window)
    for _ in batched.run():
        pass
    return batched.scores


@dataclass(frozen=True, slots=True)
class _Windows:
    """Spans of ids that are each read from an empty context: window w is `ids[starts[w]:stops[w]]`,
    its first id is context only.

    Its first `skips[w]` predictions are left to an earlier window; its prediction k is number
    `places[w] + k` of the result.
    """

    starts: np.ndarray
    stops: np.ndarray
    skips: np.ndarray
    places: np.ndarray


def _windows(model: ScoringModel, offsets: np.ndarray, window: ContextWindow) -> _Windows:
    """The whole sequences, or windows of them, of which even the last is full, so that every
    prediction has a long context.

    Example: a sequence of 11 ids (10 predictions), context 4, stride 3: windows of ids [0, 5), [3,
    8) and [6, 11); the first gives predictions 1 to 4, the others skip 1 and give 5 to 7 and 8 to
    10. One of 10 ids: the last window is [5, 10), or, in steps, [6, 10)."""
    starts, stops = offsets[:-1], offsets[1:]
    places = starts - np.arange(len(starts))
    if window.carry and not hasattr(model, "score_carrying"):
        raise UserError(
            "it has no recurrent state to carry", where=model.name, remedy="leave out --carry-state"
        )
    lengths = stops - starts - 1
    longest = int(lengths.max(initial=0))
    context = None
    if not window.carry:
        context = check_context(model.name, model.max_length, window, longest, model.prefix)
    if context is None or window.stride is None:
        return _Windows(starts, stops, np.zeros(len(starts), np.int64), places)
    stride = window.stride
    extra = np.maximum(0, -(-(lengths - context) // stride))  # windows after a sequence's first
    sequence = np.repeat(np.arange(len(starts)), extra + 1)
    nth = positions_within(extra + 1)  # of the windows of its sequence
    length = lengths[sequence]
    # In predictions of the sequence: where a window ends, where it begins, what earlier ones gave.
    ends = np.minimum(length, context + nth * stride)
    begins = nth * stride if window.in_steps else np.maximum(0, ends - context)
    before = np.where(nth == 0, 0, np.minimum(length, context + (nth - 1) * stride))
    first = starts[sequence]
    return _Windows(
        first + begins,
        first + ends + 1,
        before - begins,
        places[sequence] + begins,
    )


def _batches(lengths: np.ndarray, batch_tokens: int, window: ContextWindow) -> Iterator[np.ndarray]:
    """Batches of windows in descending order of length: as many as fit into `batch_tokens` when
    padded to the longest."""
    at_once = np.minimum(lengths, window.carried_ids) if window.carry else lengths
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // int(at_once[order[start]]))
        yield order[start : start + size]
        start += size


def _score_batch(
    model: ScoringModel,
    ids: np.ndarray,
    windows: _Windows,
    chosen: np.ndarray,
    limit: BatchLimit,
    window: ContextWindow,
    out: SequenceScores,
) -> None:
    """Scores the `chosen` windows into `out`, at once or, if they do not fit into memory, in
    halves."""
    starts, stops = windows.starts[chosen], windows.stops[chosen]
    lengths = stops - starts
    longest = int(lengths.max() - 1)
    if len(chosen) == 1 or limit.fits(len(chosen), longest):
        batch_offsets = offsets_of(lengths)
        batch = np.concatenate([ids[start:stop] for start, stop in zip(starts, stops, strict=True)])
        try:
            if window.carry:
                scores = cast("CarryingModel", model).score_carrying(
                    batch, batch_offsets, window.carried_ids
                )
            else:
                scores = model.score(batch, batch_offsets)
        except MemoryError:
            if len(chosen) == 1:
                remedy = (
                    "read it in windows with --context and --stride, or slice with a smaller "
                    "--seq-len"
                )
                raise UserError(
                    f"out of memory with one sequence of {longest:,} ids",
                    where=model.name,
                    remedy=remedy,
                ) from None
            limit.exclude(len(chosen), longest, model.name)
        else:
            _place(scores, windows, chosen, out)
            return
    for half in np.array_split(chosen, 2):
        _score_batch(model, ids, windows, half, limit, window, out)


def _place(scores: TokenScores, windows: _Windows, chosen: np.ndarray, out: SequenceScores) -> None:
    """Writes the model's scores of the `chosen` windows to their places in `out`."""
    counts = windows.stops[chosen] - windows.starts[chosen] - 1
    nth = positions_within(counts)
    wanted = nth >= np.repeat(windows.skips[chosen], counts)
    places = (np.repeat(windows.places[chosen], counts) + nth)[wanted]
    for name, values in scores.of_model.items():
        out.of_model[name][places] = values[wanted]
    out.context[places] = nth[wanted] + 1


def check_finite(
    name: str, values: np.ndarray, first: int, offsets: np.ndarray, what: str = "NLL"
) -> None:
    """Raises UserError for values that are not finite, with the sequence (numbered from `first`)
    and the position."""
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        predicted_at = offsets - np.arange(len(offsets))
        sequence = int(np.searchsorted(predicted_at, bad[0], side="right")) - 1
        position = int(bad[0] - predicted_at[sequence]) + 1
        problem = (
            f"its {what} at sequence {first + sequence:,}, position {position:,} is not finite "
            f"({len(bad):,} of {len(values):,} values)"
        )
        raise UserError(problem, where=name, remedy="check the weights, or use a wider dtype")


def write_part(
    path: Path, first: int, offsets: np.ndarray, scores: SequenceScores, facts: dict[str, Any]
) -> None:
    """Writes the scores of the sequences from number `first` on as a part, with `facts` in its
    manifest."""
    import pyarrow as pa

    counts, schema = (
        np.diff(offsets) - 1,
        schemas.arrow_schema("paired scores" if scores.beside else "scores"),
    )
    sequence = np.repeat(np.arange(first, first + len(counts), dtype=np.int32), counts)
    position = (positions_within(counts) + 1).astype(np.int32)
    columns = (
        sequence,
        position,
        scores.nll,
        scores.argmax,
        scores.rank,
        scores.context,
        scores.exact,
        *scores.beside.values(),
    )
    table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)
    parquet_files.write_parquet(path, [table], schema, facts, **PARQUET_OPTIONS)


def summarise_scores(slices: Path, path: Path) -> dict[str, float | None]:
    """Of a score file of `slices`: nll_nats (mean per token), ppl, accuracy (share of tokens that
    are the first choice)."""
    with db.connect(views={"scores": path, "tokens": slices / "tokens.parquet"}) as connection:
        # without polars, whose import takes 0.1 s
        summary = connection.execute(db.query("scores/summarise_scores"))
        [row] = summary.fetchall()
        return {name: value for (name, *_), value in zip(summary.description, row, strict=True)}


Which = Literal["scores", "reference", "divergence"]
"""What of parts a file has: the scores of a model, or, of parts of a pair, those of its reference,
or how far the two differ."""

REFERENCE = "_reference"
"""How the names of columns and facts end that are of a pair's reference."""


def join_parts(
    parts: Sequence[Path],
    sequences_per_part: int,
    seq_len: int,
    path: Path,
    manifest: dict[str, Any],
    which: Which = "scores",
) -> dict[str, Any]:
    """Joins parts into one file with the row groups of `tokens.parquet`; returns its manifest.

    The manifest gets the sums of the facts of all parts. Raises UserError for a damaged part, which
    is removed, and if the number of rows is not `num_rows`.
    """
    import pyarrow as pa

    schema = schemas.arrow_schema("divergence" if which == "divergence" else "scores")

    step = sequences_per_row_group(seq_len, SEQUENCES_PER_ROW_GROUP) // sequences_per_part
    num_rows = sum(part_rows(part) for part in parts)
    if num_rows != manifest["num_rows"]:
        problem = f"its parts have {num_rows:,} rows for {manifest['num_rows']:,} tokens"
        raise UserError(problem, where=path, remedy=f"delete {parts[0].parent} and score again")
    totals: dict[str, int] = {}

    def groups() -> Iterator[pa.Table]:
        for start in range(0, len(parts), step):
            tables = []
            for part in parts[start : start + step]:
                tables.append(_of_part(read_part(part), which).cast(schema))
                for name, value in parquet_files.read_manifest(part).items():
                    if name != "schema_version":
                        totals[name] = totals.get(name, 0) + value
            yield pa.concat_tables(tables).combine_chunks()

    return parquet_files.write_parquet(
        path, groups(), schema, lambda: {**manifest, **_of_side(totals, which)}, **PARQUET_OPTIONS
    )


def _of_part(part: pa.Table, which: Which) -> pa.Table:
    """The columns of a part that a file has."""
    import pyarrow.compute as pc

    if which == "divergence":
        agrees = pc.equal(part["argmax"], part["argmax_reference"])
        return part.select(["sequence", "position", "kl"]).append_column("agrees", agrees)
    names = [
        f"{name}{REFERENCE}" if which == "reference" and name in ("nll", "argmax", "rank") else name
        for name in schemas.LAYOUTS["scores"]
    ]
    return part.select(names).rename_columns(list(schemas.LAYOUTS["scores"]))


def _of_side(facts: Mapping[str, int], which: Which) -> dict[str, int]:
    """The facts of parts that a file has in its manifest."""
    theirs = {
        name.removesuffix(REFERENCE): value
        for name, value in facts.items()
        if name.endswith(REFERENCE)
    }
    mine = {name: value for name, value in facts.items() if not name.endswith(REFERENCE)}
    return {"scores": mine, "reference": theirs, "divergence": {}}[which]


def part_rows(part: Path) -> int:
    """Predicted tokens in a part, by its footer. If it is damaged, removes it and raises
    UserError."""
    import pyarrow.parquet as pq

    with removing_damage(part):
        return int(pq.read_metadata(part).num_rows)
