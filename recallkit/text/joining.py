"""Joining documents with the end token: how documents become a stream of ids, the same for counts and sequences."""

from __future__ import annotations

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
    from recallkit.jit import frozen
    from recallkit.text.joining_kernels import copy_joined

    ids = np.empty(len(encoded.ids) + len(encoded.offsets) - 1, encoded.ids.dtype)
    copy_joined(frozen(encoded.ids), encoded.offsets, end_token_id, boundary == "document", ids)
    return ids, encoded.offsets[:-1] + np.arange(len(encoded.offsets) - 1)
