"""What is passed from one stage to the next: documents, their ids, and how these are joined to one
stream for counts and sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

Boundary = Literal["pack", "document"]
"""`pack`: one stream, the context extends across documents.

`document`: the context is reset at each document.
"""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a stream of documents: record `record` (from 0) of shard `shard` (from 0, in
    stream order)."""

    shard: int = 0
    record: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its source (the Pile set, the RedPajama subset ...) and its position in the
    stream.

    In place of `text` it may have `ids`, the tokens of a text, integers of any width, without the
    end token. `position` counts records of the shard, including bad ones that are skipped, so that
    a stream can be resumed there. `share` of the shard, by bytes, was read when this document was.
    """

    text: str
    source: str
    id: str
    position: Position
    ids: np.ndarray | None = None
    share: float = 0.0


class Vocabulary(NamedTuple):
    """What a reader of ids knows of their tokenizer.

    Its name, its entries, the end token, and whether text is encoded with that, too; `frame_ids`
    are those of special tokens that fill up rows, and that a model reads before a text.
    """

    name: str
    size: int
    end_token_id: int
    end_is_text: bool
    frame_ids: tuple[int, ...] = ()


def no_tokenizer(where: str) -> UserError:
    """The error of ids whose tokenizer is not known."""
    problem = "token ids, and no tokenizer is named"
    return UserError(problem, where=where, remedy="name theirs with --tokenizer")


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """A few megabytes of documents as token ids, in stream order, without end tokens.

    `ids` is flat, uint16 or uint32; document i is `ids[offsets[i]:offsets[i + 1]]`, offsets int64
    (num_documents + 1). `share` is that of the last document.
    """

    ids: np.ndarray
    offsets: np.ndarray
    sources: Sequence[str]
    positions: Sequence[Position]
    share: float = 0.0


@dataclass(slots=True)
class StreamReport:
    """Statistics of a stream: filled while it is read, complete when it ends."""

    num_documents: int = 0
    num_skipped: int = 0
    first_skipped: list[str] = field(default_factory=list)


def join_documents(
    encoded: EncodedDocuments,
    end_token_id: int,
    boundary: Boundary,
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of documents with their end tokens, and where each document's part of the stream
    begins (int64).

    With `pack` the end token follows its document; with `document` it precedes it, as the context
    of the first token. Example with end token 0: documents [5, 6] and [7] become [5, 6, 0, 7, 0] or
    [0, 5, 6, 0, 7], both with starts [0, 3].
    """
    import numpy as np

    end = np.array([end_token_id], encoded.ids.dtype)
    pieces = [end[:0]]
    for start, stop in pairwise(encoded.offsets.tolist()):
        document = encoded.ids[start:stop]
        pieces += (end, document) if boundary == "document" else (document, end)
    return np.concatenate(pieces), encoded.offsets[:-1] + np.arange(len(encoded.offsets) - 1)
