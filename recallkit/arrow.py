"""NumPy's arrays and strings as Arrow's, without a copy and without pandas.

`pa.array` and `pa.table` of a list or an array import pandas at their first call, which takes longer than all else that a small
command imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recallkit.ragged import offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

_MOST_BYTES = 2**31 - 1
"""Of the strings of an array, whose offsets are int32."""


def array(values: np.ndarray) -> pa.Array:
    """Numbers or booleans (n,) as an array without nulls, which shares the memory of numbers."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(values.dtype)
    plain = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(plain)])


def strings(values: Sequence[str]) -> pa.Array | pa.ChunkedArray:
    """Strings as an array, of several chunks if they have 2 GiB or more."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    offsets = offsets_of(list(map(len, encoded)))
    if offsets[-1] > _MOST_BYTES:
        return pa.array(values, pa.string())
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(encoded))])


def binaries(values: Sequence[bytes]) -> pa.Array:
    """Byte strings as an array, whose offsets are int64."""
    import pyarrow as pa

    offsets = offsets_of(list(map(len, values)))
    return pa.Array.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])
