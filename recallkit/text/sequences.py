"""Token ids to sequences: packed as in the papers, or with the context reset at each document.

Packed (Zoology C.1): documents are joined with the end token and cut into windows of `seq_len`
predictions, that is `seq_len + 1` ids; adjacent windows share one id, so that every id but the
stream's first is predicted exactly once.
By document: the end token precedes each document, and windows are cut inside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import SEQUENCES_PER_ROW_GROUP, sequences_per_row_group
from recallkit.ragged import offsets_of, positions_within
from recallkit.storage import records
from recallkit.storage.hashing import digest_arrays, digest_json
from recallkit.storage.parquet_files import read_manifest, write_parquet
from recallkit.storage.schemas import LAYOUTS, arrow_schema
from recallkit.text.records import Boundary, Position, join_documents

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from recallkit.text.records import EncodedDocuments
    from recallkit.text.tokenizers import TextTokenizer


@dataclass(frozen=True, slots=True)
class PackingState:
    """Where packing resumes: all that is needed to continue the stream with the same sequences.

    The next sequence begins `skip_ids` ids into the stream of document number `document`, which is
    read from `position`.
    """

    position: Position = Position()
    document: int = 0
    skip_ids: int = 0
    sequence: int = 0
    num_predictions: int = 0

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> PackingState:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**saved, "position": Position(**saved["position"])})


@dataclass(frozen=True, slots=True)
class SequenceBlock:
    """The sequences of a row group.

    `ids` flat, sequence i of the block is `ids[offsets[i]:offsets[i + 1]]`.

    A span is what a sequence has of one document: sequence i has the spans `span_offsets[i]` to
    `span_offsets[i + 1]`, each of which begins `span_starts` ids into the sequence and is of
    document number `span_documents` of the stream, whose source is `span_sources`.
    """

    first: int
    ids: np.ndarray
    offsets: np.ndarray
    span_offsets: np.ndarray
    span_starts: np.ndarray
    span_documents: np.ndarray
    span_sources: Sequence[str]
    state: PackingState = PackingState()

    def __len__(self) -> int:
        """Sequences in the block."""
        return len(self.offsets) - 1


class _Packer:
    """Collects documents and yields blocks of complete sequences.

    `ids` are those that are not yet in a sequence, of consecutive documents: number `first` + i
    begins at `starts[i]`, int64, before 0 if ids of it were dropped, is of `sources[i]` and was
    read at `positions[i]`.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        end_token_id: int,
        seq_len: int,
        boundary: Boundary,
        limit: int | None,
        state: PackingState,
    ) -> None:
        self.ids, self.starts = np.empty(0, dtype), np.empty(0, np.int64)
        self.sources: list[str] = []
        self.positions: list[Position] = []
        self.end_token_id, self.seq_len, self.boundary, self.limit = (
            end_token_id,
            seq_len,
            boundary,
            limit,
        )
        self.state = state
        self.first, self.next_position, self.skip = state.document, state.position, state.skip_ids

    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.state.num_predictions >= self.limit

    def add(self, encoded: EncodedDocuments) -> None:
        """Takes more documents, with their end tokens."""
        ids, starts = join_documents(encoded, self.end_token_id, self.boundary)
        self.starts = np.concatenate([self.starts, starts + len(self.ids)])
        self.ids = np.concatenate([self.ids, ids])
        self.sources.extend(encoded.sources)
        self.positions.extend(encoded.positions)
        last = encoded.positions[-1]
        self.next_position = Position(last.shard, last.record + 1)
        if self.skip:
            self._drop(self.skip)
            self.skip = 0

    def _drop(self, count: int) -> None:
        """Forgets the first `count` ids, and documents of which none is left."""
        gone = int(self._document_of(count)) if count < len(self.ids) else len(self.starts)
        self.ids, self.starts, self.first = (
            self.ids[count:],
            self.starts[gone:] - count,
            self.first + gone,
        )
        del self.sources[:gone], self.positions[:gone]

    def _document_of(self, places: np.ndarray | int) -> np.ndarray:
        """The index in `starts` of the document that the id at each place is of."""
        return np.searchsorted(self.starts, places, side="right") - 1

    def blocks(self, *, final: bool) -> Iterator[SequenceBlock]:
        """The complete blocks; with `final` also the rest."""
        is_packed = self.boundary == "pack"
        windows = self._packed_windows(final=final) if is_packed else self._document_windows()
        windows, at_limit = self._within_limit(windows)
        taken, size = 0, sequences_per_row_group(self.seq_len, SEQUENCES_PER_ROW_GROUP)
        # Where the stream continues after the last window: packed sequences share an id.
        end = int(windows[-1][1]) - (1 if self.boundary == "pack" else 0) if len(windows) else 0
        while len(windows) - taken >= size or (taken < len(windows) and (final or at_limit)):
            chosen = windows[taken : taken + size]
            taken += len(chosen)
            yield self._block(
                chosen,
                resume_at=int(windows[taken][0]) if taken < len(windows) else end,
            )
        if taken:
            self._drop(int(windows[taken][0]) if taken < len(windows) else end)

    def _packed_windows(self, *, final: bool) -> np.ndarray:
        """(start, stop) of the windows that are complete; with `final` also of the shorter last
        one.

        Example: 10 ids and `seq_len` 4 give (0, 5) and (4, 9), and with `final` also (8, 10):
        neighbours share an id.
        """
        num_predictions = max(0, len(self.ids) - 1)
        count = -(-num_predictions // self.seq_len) if final else num_predictions // self.seq_len
        starts = np.arange(count, dtype=np.int64) * self.seq_len
        return np.stack([starts, np.minimum(starts + self.seq_len + 1, len(self.ids))], axis=1)

    def _document_windows(self) -> np.ndarray:
        """(start, stop) of the windows within each document.

        Example: documents of 6 and 3 ids and `seq_len` 4 give (0, 5), (4, 6) and (6, 9).
        """
        firsts = np.maximum(self.starts, 0)
        lengths = np.diff(firsts, append=len(self.ids))
        windows_of = np.maximum(0, -(-(lengths - 1) // self.seq_len))
        first = np.repeat(firsts, windows_of)
        # Of 5 and 3 ids with seq_len 2: windows (0, 3), (2, 5) and (5, 8), each from the last id of
        # the one before in its document.
        starts = first + positions_within(windows_of) * self.seq_len
        return np.stack(
            [starts, np.minimum(starts + self.seq_len + 1, first + np.repeat(lengths, windows_of))],
            axis=1,
        )

    def _within_limit(self, windows: np.ndarray) -> tuple[np.ndarray, bool]:
        """Cuts the windows to the predictions still allowed; also returns whether the limit falls
        among them."""
        if self.limit is None or not len(windows):
            return windows, False
        ends = self.state.num_predictions + np.cumsum(windows[:, 1] - windows[:, 0] - 1)
        if ends[-1] < self.limit:
            return windows, False
        last = int(np.searchsorted(ends, self.limit))
        windows = windows[: last + 1].copy()
        windows[last, 1] -= int(ends[last]) - self.limit
        return windows, True

    def _block(self, windows: np.ndarray, resume_at: int) -> SequenceBlock:
        starts, stops = windows.T
        lengths = stops - starts
        first_document = self._document_of(starts)
        num_spans = self._document_of(stops - 1) - first_document + 1
        documents = np.repeat(first_document, num_spans) + positions_within(num_spans)
        first, self.state = (
            self.state.sequence,
            self._state_at(resume_at, len(windows), int(lengths.sum()) - len(windows)),
        )
        return SequenceBlock(
            first=first,
            ids=np.concatenate([self.ids[start:stop] for start, stop in windows.tolist()]),
            offsets=offsets_of(lengths),
            span_offsets=offsets_of(num_spans),
            span_starts=np.maximum(self.starts[documents] - np.repeat(starts, num_spans), 0),
            span_documents=(documents + self.first).astype(np.int32),
            span_sources=[self.sources[document] for document in documents.tolist()],
            state=self.state,
        )

    def _state_at(self, index: int, num_sequences: int, num_predictions: int) -> PackingState:
        counted = {
            "sequence": self.state.sequence + num_sequences,
            "num_predictions": self.state.num_predictions + num_predictions,
        }
        if index >= len(self.ids):
            return PackingState(
                position=self.next_position,
                document=self.first + len(self.starts),
                skip_ids=0,
                **counted,
            )
        document = int(self._document_of(index))
        skip = index - int(self.starts[document])
        return PackingState(
            position=self.positions[document],
            document=self.first + document,
            skip_ids=skip,
            **counted,
        )


def pack_sequences(
    batches: Iterable[EncodedDocuments],
    *,
    end_token_id: int,
    seq_len: int,
    boundary: Boundary,
    limit_predictions: int | None = None,
    state: PackingState | None = None,
) -> Iterator[SequenceBlock]:
    """Cuts a stream of encoded documents into blocks of sequences of at most `seq_len` predictions:
    see `sequences_per_row_group`.

    `state` continues an earlier run: `batches` must then begin at `state.position`.
    `limit_predictions` ends the stream after exactly that many predictions. A sequence has at least
    two ids; the last one may be shorter.
    """
    packer: _Packer | None = None
    for encoded in batches:
        packer = packer or _Packer(
            encoded.ids.dtype,
            end_token_id,
            seq_len,
            boundary,
            limit_predictions,
            state or PackingState(),
        )
        if packer.is_full():
            return
        packer.add(encoded)
        yield from packer.blocks(final=False)
        if packer.is_full():
            return
    if packer is not None:
        yield from packer.blocks(final=True)


def source_label(source: str) -> str:
    """A source's name in tables: `ALL` means all of them, so a source of that name becomes `ALL
    (source)`."""
    return f"{source} (source)" if re.fullmatch(r"ALL( \(source\))*", source) else source


def sequences_table(block: SequenceBlock) -> pa.Table:
    """A block as rows of `sequences.parquet`, without the text (see `with_text`)."""
    import pyarrow as pa

    offsets, span_offsets = block.offsets.astype(np.int32), block.span_offsets.astype(np.int32)
    first_spans = span_offsets[:-1]
    names = pa.array([source_label(source) for source in block.span_sources], pa.string())
    spans = pa.array(span_offsets)
    columns = [
        pa.array(np.arange(block.first, block.first + len(block), dtype=np.int32)),
        names.take(pa.array(first_spans)),
        pa.array(block.span_documents[first_spans]),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(block.ids.astype(np.uint32))),
        pa.ListArray.from_arrays(spans, pa.array(block.span_starts.astype(np.int32))),
        pa.ListArray.from_arrays(spans, pa.array(block.span_documents)),
        pa.ListArray.from_arrays(spans, names),
    ]
    return pa.Table.from_arrays(columns, schema=textless_schema())


def textless_schema() -> pa.Schema:
    """The columns of `sequences.parquet` but the text, which ids give again."""
    schema = arrow_schema("sequences")
    return schema.remove(schema.get_field_index("text"))


def with_text(group: pa.Table, tokenizer: TextTokenizer) -> pa.Table:
    """A row group of `sequences.parquet`, of one without the text."""
    import pyarrow as pa

    ids, offsets = group_ids(group)
    text = pa.array(tokenizer.decode(np.split(ids, offsets[1:-1])), pa.string())
    return pa.Table.from_arrays([*group.columns, text], schema=arrow_schema("sequences"))


def write_sequences(
    path: Path,
    groups: Iterable[pa.Table],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Writes row groups of `sequences.parquet`; returns its manifest: `facts`, the number of
    sequences and of their rows, the longest one.

    Its `sequences_digest` identifies the ids and where sequences end, independent of the text they
    came from.
    """
    digests: list[str] = []
    totals = {"num_sequences": 0, "num_rows": 0, "longest": 0, "largest_id": 0}

    def counted() -> Iterator[pa.Table]:
        for group in groups:
            tokens = group["tokens"].combine_chunks()
            ids, offsets = tokens.values.to_numpy(), tokens.offsets.to_numpy()
            digests.append(digest_arrays(ids, offsets))
            totals["num_sequences"] += group.num_rows
            totals["num_rows"] += len(ids) - group.num_rows
            totals["longest"] = max(totals["longest"], int(np.diff(offsets).max()) - 1)
            totals["largest_id"] = max(totals["largest_id"], int(ids.max()))
            yield group

    def manifest() -> dict[str, Any]:
        return {**facts, **totals, "sequences_digest": digest_json(digests)}

    return write_parquet(path, counted(), arrow_schema("sequences"), manifest, use_dictionary=False)


def sequence_groups(sequences: Path) -> Generator[pa.Table]:
    """The row groups of `sequences.parquet`, one at a time, without the text.

    Raises UserError if the file is damaged.
    """
    import pyarrow.parquet as pq

    read_manifest(sequences, records.Sequences)
    with pq.ParquetFile(sequences, pre_buffer=False) as file:
        columns = [name for name in LAYOUTS["sequences"] if name != "text"]
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns)


def group_ids(group: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Flat ids (uint32) and offsets (int64) of the sequences in a row group."""
    tokens = group["tokens"].combine_chunks()
    offsets = tokens.offsets.to_numpy().astype(np.int64)
    return tokens.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]
