"""A random sample of a text: whole documents, each source in proportion.

The text is read once to draw it, and nothing of it is kept.

A hash of the seed and a document's place orders the documents, so that the same documents are drawn
again without a state.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from recallkit.text.records import Document, Position
    from recallkit.text.tokenizers import TextTokenizer

_MOST_CHARACTERS = 8
"""Characters of a token are fewer: bounds what is remembered of a source."""

_MEASURED_CHARACTERS = 50_000
"""Of each source, by which the tokens of its other documents are estimated: tokenising all of the
text takes longer than the rest."""

_FIRST_PART = 0.05
"""Of the sample that the first document of a source may take where the source's part has no room
for one."""

_NEAR = 0.05
"""A sample is within this share of its size if its documents allow it."""

_MOST_ROUNDS = 8
"""In which the parts of sources are enlarged: they approach the size in two or three."""


@dataclass(frozen=True, slots=True)
class Sample:
    """About how many tokens are drawn, and the seed that decides which."""

    tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """The places of the documents that were drawn, and what a manifest records of them."""

    places: frozenset[Position]
    facts: dict[str, Any]


@dataclass(slots=True)
class _Source:
    """A source's documents, with sizes in characters (of token ids, in ids), and the earliest in
    random order of them.

    `earliest` is a heap of (order, size, place) whose first is the last in order.
    """

    documents: int = 0
    size: int = 0
    measured: int = 0
    tokens_measured: int = 0
    remembered: int = 0
    earliest: list[tuple[int, int, Position]] = field(default_factory=list)

    def add(self, document: Document, order: int, tokenizer: TextTokenizer, most: int) -> None:
        """Counts a document; remembers it unless those before it in order are `most` characters
        already."""
        size = len(document.text) if document.ids is None else len(document.ids)
        self.documents += 1
        self.size += size
        if self.measured < _MEASURED_CHARACTERS:
            piece = document.text[:_MEASURED_CHARACTERS]
            is_text = document.ids is None
            self.measured += len(piece) if is_text else size
            self.tokens_measured += len(tokenizer.encode([piece])[0]) if is_text else size
        if size > most:
            return
        heapq.heappush(self.earliest, (-order, size, document.position))
        self.remembered += size
        while self.remembered - self.earliest[0][1] >= most:
            self.remembered -= heapq.heappop(self.earliest)[1]

    def tokens(self, size: int) -> float:
        """About how many tokens so many characters have, with the end token of a document."""
        return size * self.tokens_measured / max(1, self.measured) + 1


def draw(documents: Iterable[Document], sample: Sample, tokenizer: TextTokenizer) -> Drawn:
    """Draws documents, about `sample.tokens` tokens of them, of each source as large a part as it
    has of the text.

    In random order, documents that are longer than the room left in their source's part are
    skipped; the first of a source may take `_FIRST_PART` of the sample. Where the sample is not
    `_NEAR` its size, all parts are enlarged alike. Raises UserError where no document is short
    enough.
    """
    sources: dict[str, _Source] = {}
    for document in documents:
        place = document.position
        name = f"{sample.seed}:{place.shard}:{place.record}".encode()
        order = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        sources.setdefault(document.source, _Source()).add(
            document,
            order,
            tokenizer,
            sample.tokens * _MOST_CHARACTERS,
        )
    rounds, parts = [], float(sample.tokens)
    for _ in range(_MOST_ROUNDS):
        rounds.append(_fill(sources, sample, parts))
        tokens = rounds[-1][0]
        if not tokens or abs(tokens - sample.tokens) <= _NEAR * sample.tokens:
            break
        parts = parts * sample.tokens / tokens
    _, places = min(rounds, key=lambda drawn: abs(drawn[0] - sample.tokens))
    if not places:
        problem = f"no document is short enough for a sample of {sample.tokens:,} tokens"
        raise UserError(problem, where="--sample", remedy="draw more tokens")
    names = set(places.values())
    facts = {
        "tokens": sample.tokens,
        "seed": sample.seed,
        "documents": len(places),
        "sources": len(names),
        "of_documents": sum(source.documents for source in sources.values()),
        "of_sources": len(sources),
        "of_tokens": round(sum(source.tokens(source.size) for source in sources.values())),
        "left_out": sorted(sources.keys() - names),
    }
    return Drawn(frozenset(places), facts)


def _fill(
    sources: Mapping[str, _Source],
    sample: Sample,
    parts: float,
) -> tuple[float, dict[Position, str]]:
    """Tokens, and documents with their sources, where all sources' parts have `parts` tokens.

    The smallest source comes first, so that larger ones leave room for it.
    """
    total, left = sum(source.tokens(source.size) for source in sources.values()), parts
    places: dict[Position, str] = {}
    for name, source in sorted(sources.items(), key=lambda item: item[1].size):
        room = parts * source.tokens(source.size) / total
        room_of_first = sample.tokens * _FIRST_PART
        for _, size, place in sorted(source.earliest, reverse=True):
            tokens = source.tokens(size)
            if tokens <= min(left, max(room, room_of_first)):
                places[place] = name
                room, left, room_of_first = room - tokens, left - tokens, 0
    return parts - left, places
