"""Text that is to be read: which, and how it becomes a stream of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.joining import Boundary
    from recallkit.records import EncodedDocuments, Position
    from recallkit.stages.corpus import Corpus
    from recallkit.stages.tokens import TextTokenizer


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Which text, and how it becomes a stream of token ids."""

    sources: Sequence[str]
    default_split: str
    tokenizer: str | None = None
    end_token: str | None = None
    boundary: Boundary = "pack"
    limit_tokens: int | None = None
    text_field: str | None = None
    source_field: str | None = None
    skip_bad: bool = False
    fast: bool = True


class OpenText:
    """A corpus and a tokenizer, opened: the beginning of every stream."""

    def __init__(self, options: TextOptions) -> None:
        from recallkit.stages.corpus import CorpusOptions, open_corpus
        from recallkit.stages.tokens import load_tokenizer

        self.options = options
        self.tokenizer: TextTokenizer = load_tokenizer(options.tokenizer, end_token=options.end_token)
        fields = CorpusOptions(options.text_field, options.source_field, options.skip_bad)
        self.corpus: Corpus = open_corpus(options.sources, fields, default_split=options.default_split)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the stream of ids."""
        kept = ("boundary", "limit_tokens", "text_field", "source_field", "skip_bad")
        return {
            "sources": [[shard.digest(), shard.source] for shard in self.corpus.shards],
            "tokenizer": self.tokenizer.describe(),
            **{name: getattr(self.options, name) for name in kept},
        }

    def names(self) -> list[str]:
        """The shards as the user named them: for the manifest, not for telling texts apart."""
        return [summary.name for summary in self.corpus.summaries()]

    def encoded(self, start: Position) -> Iterator[EncodedDocuments]:
        """The stream of encoded documents from a position on."""
        from recallkit.stages.tokens import encode_documents

        return encode_documents(self.corpus.documents(start), self.tokenizer, fast=self.options.fast, notify=console.note)

    def report_skipped(self) -> None:
        """Tells the user of records that were skipped."""
        report = self.corpus.report
        if report.num_skipped:
            console.note(f"skipped {report.num_skipped:,} bad records, the first: {report.first_skipped[0]}")
