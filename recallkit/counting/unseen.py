"""How many of a text's bigrams the rest of the text does not have: what text of its kind that was
not counted finds unseen.

A bounded sample of documents is drawn while the text is counted: those of the smallest hashes, of
each a block of bigrams. When all is counted, the bigrams whose count is that within their own
document would not be in the table had this document not been counted. A hash depends on a
document's ids alone, so the sample is the same however the text was divided, and documents that are
copies are never unseen.

Bigrams of the same id twice are left out: tokenizers without tokens for indentation or rules make
runs of one id, which are in text of every kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.counting.table import search_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from recallkit.counting.bigram_kernels import BigramRun

SAMPLED_BIGRAMS = 1 << 16
"""Bigrams of the sample, up to the last block."""
_BLOCK = 512
"""Bigrams of a document in the sample, at most."""
_LEAST_DOCUMENTS = 20
_HASHED_IDS = 16
_BASE, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)
_HALF, _LOW = np.uint64(32), np.uint64(2**32 - 1)


class SampledDocument(NamedTuple):
    """The distinct bigrams of a block of a document, and how many there are of each in the block,
    and in the whole document."""

    hash: int
    keys: Sequence[int]
    in_block: Sequence[int]
    in_document: Sequence[int]


def smallest(documents: Iterable[SampledDocument]) -> tuple[SampledDocument, ...]:
    """Those of the smallest hashes, until they have SAMPLED_BIGRAMS."""
    return tuple(_first(sorted(documents)))


def _first(documents: Iterable[SampledDocument]) -> Iterator[SampledDocument]:
    """Those that have bigrams, until they have SAMPLED_BIGRAMS."""
    room = SAMPLED_BIGRAMS
    for document in documents:
        if document.keys:
            yield document
            room -= sum(document.in_block)
        if room <= 0:
            return


def with_documents(
    sample: tuple[SampledDocument, ...],
    ids: np.ndarray,
    starts: np.ndarray,
) -> tuple[SampledDocument, ...]:
    """The sample of the documents before and of these: `ids` is (n,) unsigned, each begins at one
    of `starts`, (d,) int64."""
    lengths = np.diff(starts, append=len(ids))
    starts, lengths = starts[lengths > 1], lengths[lengths > 1]
    hashes = lengths.astype(np.uint64)
    for place in range(_HASHED_IDS):
        hashes = hashes * _BASE + ids[starts + lengths * place // _HASHED_IDS]
        hashes ^= hashes >> _SHIFT
    hashes *= _BASE
    is_full = sum(sum(document.in_block) for document in sample) >= SAMPLED_BIGRAMS
    order = np.argsort(hashes, kind="stable")
    if is_full:
        order = order[: np.searchsorted(hashes[order], sample[-1].hash, "right")]

    def documents() -> Iterator[SampledDocument]:
        for at in order.tolist():
            document = ids[starts[at] : starts[at] + lengths[at]]
            keys = (document[:-1].astype(np.uint64) << _HALF) | document[1:]
            yield sample_document(int(hashes[at]), keys)

    return smallest([*sample, *_first(documents())]) if len(order) else sample


def sample_document(hashed: int, keys: np.ndarray) -> SampledDocument:
    """A document of the sample: `keys` uint64 (n,), first << 32 | second, are its bigrams in their
    order; `hashed` chooses the block."""
    keys = keys[keys >> _HALF != keys & _LOW]
    size = min(len(keys), _BLOCK)
    first = hashed % (len(keys) - size + 1)
    distinct, in_block = np.unique(keys[first : first + size], return_counts=True)
    ordered = np.sort(keys)
    in_document = np.searchsorted(ordered, distinct, "right") - np.searchsorted(ordered, distinct)
    return SampledDocument(hashed, distinct.tolist(), in_block.tolist(), in_document.tolist())


def _joined(parts: Iterable[Sequence[int]]) -> np.ndarray:
    return np.concatenate([np.array(part, np.uint64) for part in parts])


def unseen_elsewhere(
    documents: Iterable[SampledDocument],
    counted: BigramRun,
) -> dict[str, Any] | None:
    """The share of the bigrams of sampled documents that no other document has; None of fewer than
    20 documents.

    `counted`: of the whole text. `share` is of `bigrams`, those in the sample, which are of
    `documents`.
    """
    sample = smallest(documents)
    if len(sample) < _LEAST_DOCUMENTS:
        return None
    _, *columns = zip(*sample, strict=True)
    keys, in_block, in_document = (_joined(column) for column in columns)
    total = search_counts(counted.keys, counted.counts, keys >> _HALF, keys & _LOW)
    num_bigrams = int(in_block.sum())
    return {
        "share": int(in_block[total == in_document].sum()) / num_bigrams,
        "bigrams": num_bigrams,
        "documents": len(sample),
    }
