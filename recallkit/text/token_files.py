"""Files of token ids, mapped into memory and divided into documents: at end tokens, or by an index.

Ids are of the tokenizer that is given; its end token divides them, as in the stream made of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from recallkit.errors import UserError
from recallkit.storage import hashing
from recallkit.text.fields import IDS_FIELD
from recallkit.text.readers import FileShard
from recallkit.text.records import no_tokenizer
from recallkit.text.token_formats import layout_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.text.readers import OnBad
    from recallkit.text.records import Vocabulary
    from recallkit.text.token_formats import Layout, MegatronIndex

LONGEST_DOCUMENT = 1 << 26
"""Ids of the longest document that is read, at most 512 MB: in a longer one the end token is
another."""

PIECE_BYTES = 1 << 26
"""What one process counts at a time of a large file."""

_BLOCK_IDS = 1 << 22
_BLOCK_DOCUMENTS = 1 << 16
_PADDING = 1024
"""So many equal ids at the end of a file are not text."""


@dataclass(eq=False)
class TokenFileShard(FileShard):
    """A flat file of ids. A record is a document.

    Its number is the place of its first id in the file; with an index, the document's own. `dtype`
    is the type that the user gave: `uint16`, `uint32` ...; without it, it is what the file is.
    """

    vocabulary: Vocabulary | None = None
    dtype: str | None = None

    def place(self, record: int) -> str:
        """File and document: by its first id's place, with an index by its number, both from 0."""
        by = "document" if self._layout().documents is not None else "document from id"
        return f"{self.name}, {by} {record:,}"

    def digest(self) -> str:
        """The digest of the file, its index and how it is read.

        Raises UserError if that is unknown.
        """
        layout = self._layout()
        index = [] if layout.documents is None else [hashing.digest_sample(layout.documents.path)]
        return hashing.digest_json([FileShard.digest(self), layout.dtype, layout.start, *index])

    def size(self) -> int:
        """The length of the file, or of its part.

        Raises UserError if its type is not to be found out.
        """
        layout = self._layout()
        start, stop = self._part(layout.length)
        return np.dtype(layout.dtype).itemsize * (stop - start)

    def pieces(self, most: int) -> Sequence[Self]:
        """Parts of some 64 MB, divided between documents."""
        return self._divided(min(most, self.size() // PIECE_BYTES))

    def _part(self, number: int) -> tuple[int, int]:
        """Where this part of so many ids or documents begins, and the next one."""
        part, parts = self.piece or (0, 1)
        return number * part // parts, number * (part + 1) // parts

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Documents from record `first` on, each with all its ids; between end tokens none is
        empty.

        A piece (i, n) has the documents that begin in the i-th of n equal parts, of an index those
        in the i-th part of its documents.
        """
        layout = self._layout()
        ids = self._mapped(layout)
        if layout.documents is not None:
            documents = self._indexed(ids, layout.documents, first)
        else:
            self._check_padding(ids)
            documents = self._between_ends(ids, first)
        number = None
        for number, document in documents:
            yield number, {IDS_FIELD: document}
        if number is None and first == 0 and self.piece is None:
            raise self._empty()

    def _between_ends(self, ids: np.ndarray, first: int) -> Iterator[tuple[int, np.ndarray]]:
        """Documents of a stream, each with the place of its first id; end tokens in a run have
        none."""
        end, (begin, stop) = self._known().end_token_id, self._part(len(ids))
        start = self._document_at(ids, max(first, begin), end)
        last = self._document_at(ids, stop, end)
        for at in range(start, last, _BLOCK_IDS):
            block = ids[at : min(at + _BLOCK_IDS, last)]
            self.share = (at + len(block) - begin) / (stop - begin)
            for place in (np.flatnonzero(block == end) + at).tolist():
                if place > start:
                    yield start, ids[start:place]
                start = place + 1
            self._check_length(start, at + len(block) - start)
        if start == 0 and last == len(ids):
            self._check_beginnings(ids)
        if start < last:
            yield start, ids[start:last]

    def _document_at(self, ids: np.ndarray, first: int, end: int) -> int:
        """Where the first document begins that begins at `first` or later."""
        if first == 0:
            return 0
        for at in range(first - 1, len(ids), _BLOCK_IDS):
            ends = np.flatnonzero(ids[at : at + _BLOCK_IDS] == end)
            if len(ends):
                return at + int(ends[0]) + 1
        return len(ids)

    def _indexed(
        self,
        ids: np.ndarray,
        index: MegatronIndex,
        first: int,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Documents of an index, each with its number; a piece has its share of the numbers."""
        begin, stop = self._part(len(index.firsts) - 1)
        for at in range(max(first, begin), stop, _BLOCK_DOCUMENTS):
            places = index.starts(at, min(stop, at + _BLOCK_DOCUMENTS))
            for number, (start, end) in enumerate(pairwise(places), at):
                self._check_length(number, end - start)
                self.share = (number + 1 - begin) / (stop - begin)
                yield number, ids[start:end]

    def _check_length(self, record: int, length: int) -> None:
        """Raises UserError for a document that is too long."""
        if length > LONGEST_DOCUMENT:
            end = self._known().end_token_id
            problem = f"no end token (id {end}) among {LONGEST_DOCUMENT:,} ids"
            remedy = "name the one that ends documents with --end-token"
            raise UserError(problem, where=self.place(record), remedy=remedy)

    def _check_beginnings(self, ids: np.ndarray) -> None:
        """Raises UserError where no document ends, but several may begin.

        Example: [1, 5, 6, 1, 7] with the begin token 1.
        """
        known = self._known()
        is_frame = np.isin(ids, known.frame_ids)
        inside = ids[is_frame.argmin() : len(ids) - is_frame[::-1].argmin()]
        for begin in known.frame_ids:
            number = int((ids == begin).sum())
            if number > 1 and (inside == begin).any():
                problem = f"no end token (id {known.end_token_id}), but {number:,} times id {begin}"
                remedy = "name it with --end-token, if documents begin with it"
                raise UserError(problem, where=self.name, remedy=remedy)

    def _check_padding(self, ids: np.ndarray) -> None:
        """Raises UserError for a file that was filled up with an id other than the end token."""
        tail, known = ids[-_PADDING:], self._known()
        is_run = len(tail) == _PADDING and bool((tail == tail[0]).all())
        if is_run and tail[0] != known.end_token_id and not known.end_is_text:
            problem = f"its last {_PADDING:,} ids are all {tail[0]}, as where it was filled up"
            remedy = "cut them off, or name the token with --end-token, if it ends documents"
            raise UserError(problem, where=self.name, remedy=remedy)

    def _known(self) -> Vocabulary:
        if self.vocabulary is None:
            raise no_tokenizer(self.name)
        return self.vocabulary

    def _layout(self) -> Layout:
        known, path = self._known(), self.path
        if not isinstance(path, Path):
            problem = "token files are mapped into memory"
            raise UserError(problem, where=self.name, remedy="copy it here")
        return self._read(lambda _: layout_of(path, self.name, self.dtype, known))

    def _mapped(self, layout: Layout) -> np.ndarray:
        """All ids, mapped."""
        if not layout.length:
            raise self._empty()
        dtype, start, length, _ = layout
        return self._read(lambda path: np.memmap(str(path), dtype, "r", start, length))
