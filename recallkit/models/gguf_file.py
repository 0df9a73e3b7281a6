"""The tensors of a GGUF file, checked as ggml checks them: transformers would read them from wherever their offsets lead.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, the innermost axis first.

    Raises ValueError, LookupError or ImportError if the header cannot be read, and ValueError unless the tensors are one behind the other
    within the file, each at a multiple of the alignment: of 10 and 20 bytes, aligned to 32, the second is at byte 32 of the weights.
    """
    from gguf import GGUFReader

    reader = GGUFReader(path)
    room, place = path.stat().st_size - reader.data_offset, 0
    for tensor in reader.tensors:
        offset = int(tensor.field.parts[-1][0])  # `tensor.data_offset` is a sum of 64 bits, which may have overflowed
        if offset != place:
            raise ValueError(f"the file is damaged: tensor {tensor.name} is at byte {offset:,} of the weights, not at {place:,}")
        if place + tensor.n_bytes > room:
            raise ValueError("the file is damaged, or ends too early")
        place = math.ceil((place + int(tensor.n_bytes)) / reader.alignment) * int(reader.alignment)
    return {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}


def count_weights(shapes: dict[str, tuple[int, ...]]) -> int:
    """The numbers in tensors of these shapes."""
    return sum(map(math.prod, shapes.values()))
