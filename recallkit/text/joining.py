"""Joining documents with the end token: how documents become a stream of ids, the same for counts and sequences."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from recallkit.text.records import EncodedDocuments

Boundary = Literal["pack", "document"]
"""`pack`: one stream, the context extends across documents. `document`: the context is reset at each document."""


def join_documents(encoded: EncodedDocuments, end_token_id: int, boundary: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """The ids of documents with their end tokens, and where each document's part of the stream begins (int64).

    With `pack` the end token follows its document; with `document` it precedes it, as the context of the first token. Example with
    end token 0: documents [5, 6] and [7] become [5, 6, 0, 7, 0] or [0, 5, 6, 0, 7], both with starts [0, 3].
    """
    end = np.array([end_token_id], encoded.ids.dtype)
    pieces = [end[:0]]
    for start, stop in pairwise(encoded.offsets.tolist()):
        document = encoded.ids[start:stop]
        pieces += (end, document) if boundary == "document" else (document, end)
    return np.concatenate(pieces), encoded.offsets[:-1] + np.arange(len(encoded.offsets) - 1)
