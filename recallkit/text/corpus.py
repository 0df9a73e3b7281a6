"""Streams the documents of a corpus: files here or elsewhere, datasets on the hub, texts of a
program, or the built-in demo text.

The user's arguments become a list of shards whose order depends only on the arguments and file
names; a stream started at any position yields exactly the documents that a complete stream yields
from there on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.text.fields import FieldError, FieldFinder
from recallkit.text.records import Document, Position, StreamReport, no_tokenizer
from recallkit.text.rows import GivenShard
from recallkit.text.sources import Reading, name_sources, shards_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from recallkit.text.readers import Shard
    from recallkit.text.records import Vocabulary
    from recallkit.text.rows import Texts

_MAX_SKIPPED_LISTED = 5
_START = Position()


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """How records are read: dotted paths of text and source (None: default names); whether bad
    records are skipped.

    `vocabulary` is the one of token ids, None if the user named no tokenizer: then ids are refused.
    """

    text_field: str | None = None
    source_field: str | None = None
    skip_bad: bool = False
    vocabulary: Vocabulary | None = None


class Corpus:
    """Shards in stream order.

    `report` describes the latest stream: reset when it begins, complete when it ends.
    """

    def __init__(self, shards: Sequence[Shard], options: CorpusOptions = CorpusOptions()) -> None:
        self.shards, self.options = list(shards), options
        self.report = StreamReport()
        self._sizes: dict[int, int | None] = {}

    def digests(self) -> list[str]:
        """The digest of each shard, in stream order. Raises UserError if one cannot be read."""
        digests = []
        with progress("identifying the text", total=len(self.shards), unit="shards") as show:
            for shard in self.shards:
                digests.append(shard.digest())
                show(len(digests))
        return digests

    def num_bytes(self, first: int, stop: float) -> int | None:
        """Bytes on disk from shard `first` up to `stop`, which may be within a shard; None where a
        size is unknown."""
        total = 0.0
        for number in range(first, math.ceil(stop)):
            if number not in self._sizes:
                self._sizes[number] = self.shards[number].size()
            if (size := self._sizes[number]) is None:
                return None
            total += size * min(1.0, stop - number)
        return round(total)

    def documents(self, start: Position = _START, stop: int | None = None) -> Iterator[Document]:
        """The documents from `start` on, up to shard `stop`; shards before and from there on are
        not opened.

        `position.record` counts a shard's records: lines of a JSON Lines file from 0 (including bad
        and blank ones), rows, documents of the demo text. A text may be empty. Raises UserError for
        a damaged or empty shard and, unless bad records are skipped, for a bad record; nothing is
        yielded after it.
        """
        self.report.num_documents = self.report.num_skipped = 0
        self.report.first_skipped.clear()
        for index in range(start.shard, len(self.shards) if stop is None else stop):
            yield from self._documents_of(index, start.record if index == start.shard else 0)

    def _documents_of(self, index: int, first: int) -> Iterator[Document]:
        shard, report = self.shards[index], self.report
        name, default_source, find = shard.name, shard.source, shard.finder.find

        def on_bad(record: int, problem: str, remedy: str) -> None:
            if not self.options.skip_bad:
                raise UserError(
                    problem,
                    where=shard.place(record),
                    remedy=f"{remedy}, or leave bad records out with --skip-bad",
                )
            report.num_skipped += 1
            if len(report.first_skipped) < _MAX_SKIPPED_LISTED:
                report.first_skipped.append(f"{shard.place(record)}: {problem}")

        for record, fields in shard.records(first, on_bad):
            try:
                text, source, document_id = find(fields)
            except FieldError as error:
                on_bad(record, str(error), error.remedy)
                continue
            ids = None
            if text is not None and not isinstance(text, str):
                ids = _document_ids(text, self.options.vocabulary, shard, record)
                # [begin, end] is an empty text, too; other rows of special tokens fill up a batch.
                is_document = len(ids) or len(text) < 2 or (len(text) == 2 and text[0] != text[1])
                text = "" if is_document else None
            if text is None:
                continue
            report.num_documents += 1
            place = Position(index, record)
            yield Document(
                text,
                source or default_source,
                document_id or f"{name}:{record}",
                place,
                ids,
                shard.share,
            )


def _document_ids(
    ids: np.ndarray,
    vocabulary: Vocabulary | None,
    shard: Shard,
    record: int,
) -> np.ndarray:
    """The ids of a document without the special tokens around it: end tokens, padding, a beginning.

    Raises UserError for ids of another vocabulary, and for padding between others.
    """
    import numpy as np

    if vocabulary is None:
        raise no_tokenizer(shard.place(record))
    if not len(ids):
        return ids
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary.size:
        number = int(((ids < 0) | (ids >= vocabulary.size)).argmax())
        entries = f"the {vocabulary.size:,} of {vocabulary.name}"
        place = f"number {number:,} of its ids (from 0)"
        problem = f"{place} is {int(ids[number]):,}, not one of {entries}"
        remedy = "name their own --tokenizer, and the type of a file of ids as FILE:TYPE"
        raise UserError(problem, where=shard.place(record), remedy=remedy)
    if vocabulary.end_is_text:
        return ids
    frame = (vocabulary.end_token_id, *vocabulary.frame_ids)
    if int(ids[0]) in frame or int(ids[-1]) in frame:
        # Of [end, 5, end, 6, end, end] the ids from place 1 to 3.
        places = np.flatnonzero(~np.isin(ids, frame))
        ids = ids[places[0] : places[-1] + 1] if len(places) else ids[:0]
    for pad in vocabulary.frame_ids:
        is_pad = ids == pad
        if (is_pad[1:] & is_pad[:-1]).any():
            remedy = "write each row with its attention_mask, or cut off its padding"
            raise UserError(
                f"padding (id {pad}) between its ids",
                where=shard.place(record),
                remedy=remedy,
            )
    return ids


def open_corpus(
    arguments: Sequence[str],
    options: CorpusOptions = CorpusOptions(),
    *,
    default_split: str = "train",
) -> Corpus:
    """The corpus named by the arguments: presets and hub ids (`NAME[:SPLIT]`, `NAME:CONFIG:SPLIT`),
    files, folders, globs, URLs.

    A preset takes precedence over a file (`./pile` is the file), a file over a hub id.
    `default_split` is read if a preset, hub id or folder with several splits names none. Nothing is
    read yet; raises UserError for sources that are missing, empty or of an unknown suffix.
    """
    if not arguments:
        raise UserError(
            "no source was given",
            remedy="name a preset, hub id, file, folder or glob; `recallkit sources` lists them",
        )
    if list(arguments).count("-") > 1:
        raise UserError("standard input is read once", where="-", remedy="name it once")
    how = Reading(FieldFinder(options.text_field, options.source_field), options.vocabulary)
    by_argument = [shards_of(argument, how, default_split) for argument in arguments]
    name_sources(by_argument)
    return Corpus([shard for shards in by_argument for shard in shards], options)


def open_texts(texts: Texts, options: CorpusOptions = CorpusOptions()) -> Corpus:
    """The corpus of texts that a program gives.

    Raises UsageError for what is not a collection of texts.
    """
    return Corpus(
        [GivenShard(texts, FieldFinder(options.text_field, options.source_field))],
        options,
    )
