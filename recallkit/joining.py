"""Joining documents with the end token: the one place that says how text becomes a stream, for counts and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from recallkit.records import EncodedDocuments

Boundary = Literal["pack", "document"]
"""`pack`: one stream, context runs across documents. `document`: the context is reset at each document."""


def join_documents(encoded: EncodedDocuments, end_token_id: int, boundary: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """The ids of documents with their end tokens, and where each document's part of the stream begins (int64).

    Packed, the end token follows its document; by document it stands before it, as the context of the first token.
    """
    lengths = np.diff(encoded.offsets)
    number = np.arange(len(lengths))
    starts = encoded.offsets[:-1] + number
    end_at = starts if boundary == "document" else encoded.offsets[1:] + number
    ids = np.empty(len(encoded.ids) + len(lengths), encoded.ids.dtype)
    is_text = np.ones(len(ids), bool)
    is_text[end_at] = False
    ids[is_text] = encoded.ids
    ids[end_at] = end_token_id
    return ids, starts
