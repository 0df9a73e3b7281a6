"""Arrays and strings as Arrow's are those that `pa.array` makes."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallkit import arrow

_TYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


@given(values=st.lists(st.integers(0, 127), max_size=70), dtype=st.sampled_from(_TYPES), step=st.sampled_from([1, 2, -1]))
def test_numbers_and_booleans(values: list[int], dtype: str, step: int) -> None:
    array = (np.array(values, np.int64) % (2 if dtype == "bool" else 128)).astype(dtype)[::step]
    assert arrow.array(array).equals(pa.array(array))
    arrow.array(array).validate(full=True)


@given(values=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=9))
def test_strings_and_bytes(values: list[str]) -> None:
    assert arrow.strings(values).equals(pa.array(values, pa.string()))
    arrow.strings(values).validate(full=True)
    encoded = [value.encode() for value in values]
    assert arrow.binaries(encoded).equals(pa.array(encoded, pa.large_binary()))


def test_strings_beyond_the_offsets_of_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_MOST_BYTES", 3)
    assert arrow.strings(["ab", "cde"]).to_pylist() == ["ab", "cde"]


def test_pandas_is_not_imported() -> None:
    code = "import numpy as np; from recallkit import arrow; arrow.array(np.zeros(2)); arrow.strings(['a']); arrow.binaries([b'a'])"
    code += "; import sys; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
