"""Damage: strategies that change good files, byte by byte and field by field, into what disks,
tools and people make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

Damage = Callable[[Path], None]
"""Changes a file in place."""


# -------------------------------------------------------------------------------------------- bytes


@st.composite
def byte_damage(draw: st.DrawFn) -> Damage:
    """Bits flipped, bytes cut off, inserted, zeroed, or all replaced; places are shares of the
    file's length."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "zero", "replace", "swap"]))
    place, length = draw(st.floats(0, 1)), draw(st.sampled_from([1, 2, 8, 64, 4096]))
    bit, junk = draw(st.integers(0, 7)), draw(st.binary(min_size=1, max_size=16))

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        at = min(int(place * len(content)), max(0, len(content) - 1))
        if kind == "flip" and content:
            content[at] ^= 1 << bit
        elif kind == "cut":
            del content[at:]
        elif kind == "insert":
            content[at:at] = junk
        elif kind == "zero":
            content[at : at + length] = bytes(len(content[at : at + length]))
        elif kind == "swap":
            half = content[at : at + length]
            content[at : at + length] = half[::-1]
        else:
            content[:] = junk
        path.write_bytes(content)

    return damage


# ------------------------------------------------------------------------------------------- tables

COLUMN_TYPES: list[pa.DataType] = [
    pa.int8(),
    pa.uint16(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.decimal128(20, 3),
    pa.timestamp("us"),
    pa.null(),
    pa.list_(pa.int32()),
    pa.struct([("a", pa.int32())]),
    pa.dictionary(pa.int32(), pa.string()),
]


def of_type(kind: pa.DataType, length: int) -> pa.Array:
    """A column of this type: ascending values where it has them."""
    numbers = pa.array(np.arange(length) % 100)
    if pa.types.is_null(kind):
        return pa.nulls(length)
    if pa.types.is_list(kind):
        return pa.array([[1, 2]] * length, kind)
    if pa.types.is_struct(kind):
        return pa.array([{"a": 1}] * length, kind)
    if pa.types.is_dictionary(kind):
        return numbers.cast(pa.string()).dictionary_encode()
    if pa.types.is_binary(kind):
        return pa.array([b"\xff\xfe"] * length, kind)
    if pa.types.is_boolean(kind):
        return pa.array(np.arange(length) % 2 == 0)
    return (
        numbers.cast(pa.decimal128(30, 0)).cast(kind)
        if pa.types.is_decimal(kind)
        else numbers.cast(kind)
    )
