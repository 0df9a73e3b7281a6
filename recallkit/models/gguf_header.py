"""The header of a GGUF file, checked as ggml checks it: transformers would read tensors from wherever their offsets lead.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from recallkit.models.architecture import MAX_LAYERS
from recallkit.storage.given_files import check_file

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_NAME = 1 << 16
_MOST_AXES = 4
_ALIGNMENT = 32
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a header says: `fields`, without arrays, and the shape of each tensor, the innermost axis first."""

    fields: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def field(self, name: str) -> Any:
        """The field of the architecture, such as `block_count`; None if there is none."""
        return self.fields.get(f"{self.fields.get('general.architecture')}.{name}")


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of a file that can be scored.

    Raises ValueError, struct.error or ImportError if it cannot be read, if tensors are not one behind the other within the file, or if
    there are tensors of more blocks than it says.
    """
    size = check_file(path).stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("it does not begin as a GGUF file does")
        version, num_tensors, num_fields = _unpack(file, "IQQ")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported")
        if (num_tensors + num_fields) * 8 > size:
            raise ValueError("the file is damaged, or ends too early")
        fields = {}
        for _ in range(num_fields):
            name = _string(file)
            [kind] = _unpack(file, "I")
            fields[name] = _value(file, kind, size)
        tensors = [_tensor(file) for _ in range(num_tensors)]
        begin = file.tell()
    alignment = fields.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"an alignment of {alignment}")
    _check_places(tensors, size - _aligned(begin, alignment), alignment)
    header = GgufHeader(fields, {name: shape for name, shape, _, _ in tensors})
    _check_blocks(header)
    return header


def _unpack(file: BinaryIO, kinds: str) -> tuple[Any, ...]:
    form = struct.Struct(f"<{kinds}")
    return form.unpack(file.read(form.size))


def _string(file: BinaryIO) -> str:
    [length] = _unpack(file, "Q")
    if length > _LONGEST_NAME:
        raise ValueError("the file is damaged (a name without end)")
    return file.read(length).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int, size: int) -> Any:
    """The value of a field; None for an array or a long text, which are skipped."""
    if kind in _SCALARS:
        return _unpack(file, _SCALARS[kind])[0]
    if kind == _STRING:
        [length] = _unpack(file, "Q")
        if length <= _LONGEST_NAME:
            return file.read(length).decode("utf-8", "replace")
        return _skip(file, length, size)
    if kind != _ARRAY:
        raise ValueError(f"the file is damaged (a field of kind {kind})")
    inner, length = _unpack(file, "IQ")
    if inner in _SCALARS:
        return _skip(file, length * struct.calcsize(f"<{_SCALARS[inner]}"), size)
    if length * 8 > size:
        raise ValueError("the file is damaged, or ends too early")
    for _ in range(length):
        _value(file, inner, size)
    return None


def _skip(file: BinaryIO, num_bytes: int, size: int) -> None:
    if file.tell() + num_bytes > size:
        raise ValueError("the file is damaged, or ends too early")
    file.seek(num_bytes, 1)


def _tensor(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, bytes and offset."""
    from gguf.constants import GGML_QUANT_SIZES

    name = _string(file)
    [num_axes] = _unpack(file, "I")
    if num_axes > _MOST_AXES:
        raise ValueError(f"tensor {name} has {num_axes} axes")
    shape = _unpack(file, f"{num_axes}Q")
    kind, offset = _unpack(file, "IQ")
    sizes = {int(each): of for each, of in GGML_QUANT_SIZES.items()}
    if kind not in sizes:
        raise ValueError(f"tensor {name} is of unknown kind {kind}")
    block, num_bytes = sizes[kind]
    return name, shape, math.prod(shape) // block * num_bytes, offset


def _aligned(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment


def _check_places(tensors: list[tuple[str, tuple[int, ...], int, int]], room: int, alignment: int) -> None:
    """Raises ValueError unless the tensors are one behind the other, as ggml wants them, within `room` bytes."""
    place = 0
    for name, _, num_bytes, offset in tensors:
        if offset != place:
            raise ValueError(f"the file is damaged: tensor {name} is at byte {offset:,} of the weights, not at {place:,}")
        if place + num_bytes > room:
            raise ValueError("the file is damaged, or ends too early")
        place = _aligned(place + num_bytes, alignment)


def _check_blocks(header: GgufHeader) -> None:
    """Raises ValueError unless there are blocks, no more than a model has, and no tensor of another one."""
    count = header.field("block_count")
    found = {int(match[1]) for name in header.shapes if (match := _BLOCK.match(name))}
    if not isinstance(count, int) or not found or not max(found) < count <= MAX_LAYERS:
        blocks = f"tensors of blocks up to {max(found)}" if found else "no tensor of a block"
        raise ValueError(f"its block_count is {count}, and it has {blocks}")
