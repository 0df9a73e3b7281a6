"""Joining documents with the end token: the one place that says how text becomes a stream, for counts and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from recallkit.text.records import EncodedDocuments

Boundary = Literal["pack", "document"]
"""`pack`: one stream, context runs across documents. `document`: the context is reset at each document."""


def join_documents(encoded: EncodedDocuments, end_token_id: int, boundary: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """The ids of documents with their end tokens, and where each document's part of the stream begins (int64).

    Packed, the end token follows its document; by document it stands before it, as the context of the first token.
    """
    from recallkit.text.joining_kernels import copy_joined

    ids = np.empty(len(encoded.ids) + len(encoded.offsets) - 1, encoded.ids.dtype)
    flat = encoded.ids.view()
    flat.flags.writeable = False  # as arrays that come from Arrow are: one compiled loop serves all
    copy_joined(flat, encoded.offsets, end_token_id, boundary == "document", ids)
    return ids, encoded.offsets[:-1] + np.arange(len(encoded.offsets) - 1)
