"""Labels and NLLs of the same tokens, a batch of rows at a time, for tables that need them token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recallkit.attribution.aligned import LabelledTokens, RowReader, Scores, batch_ranges
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

_SLICE_AGAIN = "slice again with --force"


@dataclass(frozen=True, slots=True)
class Batch:
    """n tokens: the number of the cluster of each, int64 (n,), columns of their labels, and their NLLs, float32 (v, n), nats."""

    cluster: np.ndarray
    labels: Mapping[str, np.ndarray]
    nlls: np.ndarray


def read_batches(tokens: LabelledTokens, scores: Sequence[Scores], columns: Sequence[str], cluster: str, *, clean: bool) -> Iterator[Batch]:
    """All tokens in their order, with `columns` that are never null, and their NLLs under all v `scores`.

    `cluster`: one of CLUSTERS; sources are numbered as they first occur. `clean`: without tokens known to be in the training text.
    Raises UserError if a file is damaged, or an NLL is not a finite number.
    """
    names = list(dict.fromkeys([*columns, cluster, *(["in_training"] if clean else [])]))
    labels = RowReader(tokens.path, names, remedy=_SLICE_AGAIN)
    readers = [RowReader(score.path, ["nll"], remedy="delete it, and run the same `recallkit gap` again") for score in scores]
    sources: dict[str, int] = {}
    for start, stop in batch_ranges(tokens.path):
        read = labels.read(start, stop)
        own = {name: _numbered(read[name], sources) if name == "source" else _array(read[name]) for name in names}
        nlls = np.stack([_array(reader.read(start, stop)["nll"]) for reader in readers])
        for score, nll in zip(scores, nlls, strict=True):
            if not np.isfinite(nll).all():
                raise UserError("holds NLLs that are not finite numbers", where=score.path, remedy="check the model's precision")
        if clean:
            is_kept = own["in_training"] == 0
            own, nlls = {name: values[is_kept] for name, values in own.items()}, nlls[:, is_kept]
        yield Batch(own[cluster].astype(np.int64), own, nlls)


def _numbered(column: pa.ChunkedArray, sources: dict[str, int]) -> np.ndarray:
    """The number of each row's source, new ones added to `sources`."""
    import pyarrow as pa

    column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    coded = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    numbers = [sources.setdefault(name, len(sources)) for name in coded.dictionary.to_pylist()]
    found: np.ndarray = np.array(numbers, np.int64)[coded.indices.to_numpy()]
    return found


def _array(column: pa.ChunkedArray) -> np.ndarray:
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values
