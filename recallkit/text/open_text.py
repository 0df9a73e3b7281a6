"""A text to be read: which one, and how it becomes a stream of token ids."""

from __future__ import annotations

import contextlib
import copy
import textwrap
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from recallkit.display import console
from recallkit.display.cells import counted
from recallkit.display.progress import progress
from recallkit.errors import UserError, printable, redacted
from recallkit.storage import hashing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from recallkit.options import TextOptions
    from recallkit.storage.journal import Journal
    from recallkit.text.encoding import Encoder
    from recallkit.text.readers import Shard
    from recallkit.text.records import Document, EncodedDocuments, Position
    from recallkit.text.sample import Drawn, Sample
    from recallkit.text.tokenizers import TextTokenizer

_SMALL_TEXT = 1 << 19
"""Bytes on disk, or characters at once, which `tokenizers` encodes before gigatoken is imported and
checked: half a second."""


_MOST_LISTED = 1000
"""Shards that a manifest lists."""

_MOST_NOTED, _MOST_IDS = 10_000, 1 << 24
"""Documents, and ids of them, that are read for a note."""
_NOTED_IDS, _NOTED_CHARACTERS = 64, 100


class OpenText:
    """A corpus and a tokenizer, opened: the source of every stream."""

    fast: ClassVar[bool] = True
    """Whether gigatoken encodes larger texts where it gives the same ids."""

    def __init__(
        self,
        options: TextOptions,
        *,
        shards: Sequence[Shard] | None = None,
        sample: Sample | None = None,
    ) -> None:
        """`shards`: what another process found the sources to be; looked up if not given.

        `sample`: only such documents are read.
        """
        from recallkit.text.corpus import Corpus, CorpusOptions, open_corpus, open_texts
        from recallkit.text.tokenizers import load_tokenizer

        self.options, self.sample = options, sample
        self._encoder: Encoder | None = None
        self._reached = (0, 0.0)
        # Other processes are silent: what is opened there was opened here before.
        opening = progress(
            "opening the text",
            total=max(1, len(options.source_names)),
            unit="sources",
        )
        with opening if shards is None else contextlib.nullcontext():
            self.tokenizer: TextTokenizer = load_tokenizer(
                options.tokenizer_name,
                end_token=options.end_token,
            )
            vocabulary = None if options.tokenizer is None else self.tokenizer.vocabulary
            fields = CorpusOptions(
                options.text_field,
                options.source_field,
                options.skip_bad,
                vocabulary,
            )
            if shards is not None:
                self.corpus = Corpus(shards, fields)
            elif options.texts is not None:
                self.corpus = open_texts(options.texts, fields)
            else:
                self.corpus = open_corpus(
                    options.source_names,
                    fields,
                    default_split=options.default_split,
                )

    def note_end(self) -> None:
        """Says which token ends documents, and why, where the user named a tokenizer; else whose
        the built-in one is."""
        names = self.options.source_names
        if self.options.tokenizer is None and not all(name.startswith("demo:") for name in names):
            own = f"the built-in one of {self.tokenizer.vocab_size:,} entries, made for the zoo"
            console.note(
                f"no --tokenizer is named: tokens are those of {own}; other models need their own",
            )
        if self.options.tokenizer is not None:
            tokenizer = self.tokenizer
            end = f"{tokenizer.end_token!r} ({tokenizer.end_token_id})"
            otherwise = "" if self.options.end_token else "; `count` and `slice` take --end-token"
            console.note(f"documents end with {end}, {tokenizer.end_reason}{otherwise}")

    def of_shards(self, shards: Sequence[Shard]) -> OpenText:
        """The same text with other shards, such as pieces of its own."""
        from recallkit.text.corpus import Corpus

        other = copy.copy(self)
        other.__dict__.pop("digests", None)
        other.corpus = Corpus(shards, self.corpus.options)
        return other

    @cached_property
    def digests(self) -> list[str]:
        """The digest of every shard, as of the first access.

        Raises UserError for a shard that cannot be read.
        """
        return self.corpus.digests()

    def identity(self) -> dict[str, Any]:
        """Everything that determines the stream of ids: of the tokenizer not how it is called."""
        tokenizer = self.tokenizer.describe()
        del tokenizer["name"]
        identity = {"sources": self._sources(), "tokenizer": tokenizer}
        for name in ("boundary", "limit_tokens", "text_field", "source_field", "skip_bad"):
            identity[name] = getattr(self.options, name)
        if self.sample is not None:
            identity["sample"] = asdict(self.sample)
        return identity

    def _sources(self) -> list[list[str]]:
        """Digest and source of every shard; of many one digest of them all, since manifests are
        read by every command."""
        pairs = zip(self.digests, self.corpus.shards, strict=True)
        sources = [[digest, shard.source] for digest, shard in pairs]
        if len(sources) <= _MOST_LISTED:
            return sources
        return [[hashing.digest_json(sources), f"{len(sources):,} shards"]]

    @cached_property
    def drawn(self) -> Drawn | None:
        """The sample of its documents; None if all are read. Reads the whole text, once."""
        from recallkit.text.sample import draw

        if self.sample is None:
            return None
        with progress("drawing a sample", unit="documents") as show:

            def documents() -> Iterator[Document]:
                for number, document in enumerate(self.corpus.documents(), 1):
                    show(number)
                    yield document

            return draw(documents(), self.sample, self.tokenizer)

    def note_ids(self) -> None:
        """Notes type, number of documents and beginning of token ids: a misreading is seen at once.

        Of several sources of one kind it is the first.
        """
        if self.options.tokenizer is None:  # then ids are refused
            return
        for shard in {type(shard): shard for shard in reversed(self.corpus.shards)}.values():
            ids, number, is_all = self._first_ids(shard)
            if ids is not None:
                [text] = self.tokenizer.decode([ids[:_NOTED_IDS]])
                text = textwrap.shorten(printable(text), _NOTED_CHARACTERS, placeholder=" ...")
                documents = f"{'' if is_all else 'at least '}{counted(number, 'document')}"
                kind = f"token ids ({ids.dtype.name}), {documents}"
                console.note(f"{shard.name}: {kind}, the first: {text}")

    def _first_ids(self, shard: Shard) -> tuple[np.ndarray | None, int, bool]:
        """The first document of ids that is not empty, the number of documents, and whether that is
        of all: many are not read, and what cannot be read is reported when it is."""
        from recallkit.text.corpus import Corpus

        ids, num_ids, number = None, 0, 0
        with contextlib.suppress(UserError):
            documents = Corpus([shard], self.corpus.options).documents()
            for number, document in enumerate(documents, 1):
                if document.ids is None or number == _MOST_NOTED or num_ids > _MOST_IDS:
                    return ids, number, False
                num_ids += len(document.ids)
                ids = ids if ids is not None and len(ids) else document.ids
            return ids, number, True
        return ids, number, False

    def facts(self) -> dict[str, Any]:
        """What a manifest records besides what determines the ids: names of the tokenizer and the
        shards, or the arguments that name many, URLs without secrets."""
        names = [shard.name for shard in self.corpus.shards]
        listed = self.options.source_names if len(names) > _MOST_LISTED else names
        return {"tokenizer": self.tokenizer.describe(), "names": [*map(redacted, listed)]}

    def encoded(self, start: Position, stop: int | None = None) -> Iterator[EncodedDocuments]:
        """The stream of encoded documents from a position on, up to shard `stop`."""
        from recallkit.text.encoding import encode_documents

        self._reached = (start.shard, 0.0)
        documents = self.corpus.documents(start, stop)
        if (drawn := self.drawn) is not None:
            documents = (document for document in documents if document.position in drawn.places)
        for encoded in encode_documents(documents, self.tokenizer, choose=self._choose_encoder):
            self._reached = (encoded.positions[-1].shard, encoded.share)
            yield encoded

    def bytes_read(self, first: int = 0) -> int | None:
        """Bytes on disk of the shards from `first` on, up to where the latest stream has come; None
        where a size is unknown."""
        shard, share = self._reached
        return self.corpus.num_bytes(first, shard + share)

    @property
    def most_tokens(self) -> int | None:
        """About how many tokens are read of it at most; None for all of them."""
        return self.options.most_tokens if self.sample is None else self.sample.tokens

    def estimated_tokens(self, num_tokens: int) -> int | None:
        """How many tokens the text has about, if it had `num_tokens` so far; None for a size that
        is not known, and with a limit."""
        if self.most_tokens is not None:
            return None
        return extrapolated(
            num_tokens,
            self.bytes_read(),
            self.corpus.num_bytes(0, len(self.corpus.shards)),
        )

    def _choose_encoder(self, texts: Sequence[str]) -> Encoder:
        """The encoder for this text, chosen once, on the first documents that are read."""
        if self._encoder is None:
            tokenizer, size = self.tokenizer, self.corpus.num_bytes(0, len(self.corpus.shards))
            is_large = size is None or max(size, sum(map(len, texts))) > _SMALL_TEXT
            self._encoder = tokenizer.encode
            if self.fast and is_large:
                self._encoder = tokenizer.checked_encoder(texts, console.note)
        return self._encoder

    @contextlib.contextmanager
    def unchanged(
        self,
        journal: Journal,
        shards: range | None = None,
        digests: Sequence[str] | None = None,
    ) -> Iterator[None]:
        """A block that reads shards (all by default) to their end and commits what it makes of them
        to `journal`.

        Raises UserError if a shard then differs from what it was when `digests` (of all shards;
        default `self.digests`) were taken, and the journal forgets what was made of it; also when a
        bad record ends the block, which may be bad only because of the change.
        """
        known = self.digests if digests is None else digests

        def check() -> None:
            for number in range(len(known)) if shards is None else shards:
                if self.corpus.shards[number].digest() != known[number]:
                    journal.num_parts = 0
                    again = "start again (with --force if the change is final)"
                    remedy = f"keep other programs from writing to it, and {again}"
                    where = self.corpus.shards[number].name
                    raise UserError("changed while it was read", where=where, remedy=remedy)

        try:
            yield
        except UserError:
            check()
            raise
        check()

    @contextlib.contextmanager
    def reading(self, journal: Journal) -> Iterator[None]:
        """`unchanged` for the whole text; afterwards reports records that were skipped."""
        with self.unchanged(journal):
            yield
        report = self.corpus.report
        note_skipped(report.num_skipped, report.first_skipped)


def extrapolated(num_tokens: int, num_bytes: int | None, all_bytes: int | None) -> int | None:
    """The tokens of `all_bytes`, if `num_bytes` of them have `num_tokens`; None where that is
    unknown."""
    return round(num_tokens * max(1.0, all_bytes / num_bytes)) if num_bytes and all_bytes else None


def note_skipped(num_skipped: int, first_skipped: Sequence[str]) -> None:
    """Tells the user about skipped records, if there were any."""
    if num_skipped:
        console.note(f"skipped {counted(num_skipped, 'bad record')}, the first: {first_skipped[0]}")
