"""RWKV-4 and RWKV-5.2 models in the file format of rwkv.cpp, read into the shape of
`recallkit.models.language_model`.

Little endian: a header (magic, version, vocabulary, width, layers, type), then a record for each
tensor: number of dimensions, length of the name, type; the dimensions in reverse; the name; the
values (RWKV/rwkv.cpp, docs/FILE_FORMAT.md and python/convert_pytorch_to_ggml.py). No more memory is
taken than the file's values need.
"""

from __future__ import annotations

import contextlib
import math
import struct
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.architecture import MAX_LAYERS, ArchitectureConfig, LayerConfig
from recallkit.models.published import renamed
from recallkit.quiet_transformers import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

MAGIC = 0x67676D66
VERSIONS = (100, 101)
HEADER, RECORD = struct.Struct("<IIiiiI"), struct.Struct("<III")
TYPES: dict[int, str] = {0: "<f4", 1: "<f2"}
"""The types that are read, by the file's numbers for them, as numpy names float32 and float16; the
others are quantised."""
NORM_EPS = 1e-5
"""Of all norms, including those of RWKV-5's heads: the file does not contain it, and rwkv.cpp uses
this value for both versions."""
FASTEST_DECAY = 1e-30
"""The least factor by which a state decays at each token, since its logarithm is needed."""

_MIXED = ("key", "value", "receptance", "gate")
_NAMES = {
    "emb.": "embedding.",
    "blocks.0.ln0.": "embedding_norm.",
    "ln_out.": "norm.",
    ".ln1.": ".mixer_norm.",
    ".ln2.": ".mlp_norm.",
    ".att.ln_x.": ".mixer.norm.",
    ".att.output.": ".mixer.out_proj.",
    ".att.": ".mixer.",
    ".ffn.": ".mlp.",
    ".time_faaaa": ".time_first",
    **{f".time_mix_{word[0]}": f".time_mix_{word}" for word in _MIXED},
}
"""Parts of the names in a file, and what they are in the model."""


def is_rwkv_file(path: Path) -> bool:
    """Whether a file begins as one of this format does; False for anything unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(4) == struct.pack("<I", MAGIC)
    except OSError:
        return False


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """What is raised for a damaged file as a UserError."""
    try:
        yield
    except (OSError, ValueError, LookupError, ArithmeticError, struct.error) as error:
        remedy = "check that the file is complete and was written by rwkv.cpp's converter"
        raise UserError(
            f"cannot be read ({first_line(error)})",
            where=path,
            remedy=remedy,
        ) from error


def read_vocab_size(path: Path) -> int:
    """The entries of the vocabulary, from the header. Raises UserError as `read_rwkv_file` does."""
    with _errors(path), path.open("rb") as file:
        return _read_header(file.read(HEADER.size), path)[0]


def read_rwkv_file(path: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """The architecture and the weights of a `LanguageModel`, in float32.

    Raises UserError where the file cannot be read or is cut short, and for other versions of RWKV
    and quantised weights.
    """
    import numpy as np

    with _errors(path):
        content = np.memmap(path, np.uint8, "r").data
        sizes = _read_header(bytes(content[: HEADER.size]), path)
        tensors = _read_tensors(content, path)
        config = _configure(tensors, *sizes, path)
        ours = renamed(tensors, _NAMES)
        return config, {name: _in_our_terms(name, x, config) for name, x in ours.items()}


def _read_header(content: bytes, path: Path) -> tuple[int, int, int]:
    """Vocabulary, width and layers. Raises struct.error where it is too short."""
    magic, version, vocab_size, d_model, num_layers, kind = HEADER.unpack(content)
    if magic != MAGIC or version not in VERSIONS:
        remedy = "convert one with its convert_pytorch_to_ggml.py"
        versions = " or ".join(map(str, VERSIONS))
        raise UserError(
            f"is not a model of rwkv.cpp in version {versions} of its format",
            where=path,
            remedy=remedy,
        )
    _check_type(kind, "the model", path)
    return vocab_size, d_model, num_layers


def _read_tensors(content: memoryview, path: Path) -> dict[str, Tensor]:
    """The tensors behind the header. Raises struct.error or ValueError where one reaches beyond the
    end."""
    import numpy as np
    import torch

    tensors: dict[str, Tensor] = {}
    start = HEADER.size
    while start < len(content):
        num_axes, name_length, kind = RECORD.unpack_from(content, start)
        *axes, encoded = struct.unpack_from(
            f"<{num_axes}I{name_length}s",
            content,
            start + RECORD.size,
        )
        name, shape = encoded.decode(errors="replace"), axes[::-1]
        dtype = np.dtype(_check_type(kind, name, path))
        begin = start + RECORD.size + 4 * num_axes + name_length
        values = np.frombuffer(content, dtype, math.prod(shape), begin)
        tensors[name] = torch.from_numpy(values.astype(np.float32).reshape(shape))
        start = begin + values.nbytes
    return tensors


def _check_type(kind: int, what: str, path: Path) -> str:
    if kind not in TYPES:
        raise UserError(
            f"{what} is of type {kind}",
            where=path,
            remedy="convert the model to FP32 or FP16: quantised weights are not read",
        )
    return TYPES[kind]


def _configure(
    tensors: Mapping[str, Tensor],
    vocab_size: int,
    d_model: int,
    num_layers: int,
    path: Path,
) -> ArchitectureConfig:
    """The architecture that the tensors' names and shapes imply. Raises LookupError or ValueError
    where they imply none."""
    is_5 = "blocks.0.att.ln_x.weight" in tensors
    is_6 = "blocks.0.att.time_maa_x" in tensors
    if is_6 or (is_5 and "blocks.0.att.gate.weight" not in tensors):
        other = "an RWKV-6" if is_6 else "an RWKV-5.1"
        raise UserError(f"contains {other}", where=path, remedy="only RWKV-4 and RWKV-5.2 are read")
    if "blocks.0.ffn.key.weight" not in tensors:
        raise ValueError("blocks.0.ffn.key.weight is missing")
    layer = LayerConfig("rwkv4")
    if "blocks.0.att.gate.weight" in tensors:
        layer = LayerConfig(
            "rwkv5",
            {"head_size": tensors["blocks.0.att.time_decay"].shape[1], "eps": NORM_EPS},
        )
    options: Any = {
        "mlp": "rwkv",
        "norm": "layer",
        "norm_eps": NORM_EPS,
        "embedding_norm": True,
        "tied_head": False,
    }
    mlp_width, layers = (
        tensors["blocks.0.ffn.key.weight"].shape[0],
        (layer,) * min(num_layers, MAX_LAYERS + 1),
    )
    return ArchitectureConfig(vocab_size, d_model, layers, mlp_width=mlp_width, **options)


def _in_our_terms(name: str, value: Tensor, config: ArchitectureConfig) -> Tensor:
    """A weight as the model has it: decays w = exp(-exp(x)) by their x, where the file contains w
    (RWKV-5.2) or log w (RWKV-4)."""
    is_log = config.layers[0].mixer == "rwkv4"
    if name.endswith(".time_first") and not is_log:
        return value.squeeze(-1)
    if not name.endswith(".time_decay"):
        return value
    decay = value.double().exp() if is_log else value.double()
    if not ((decay >= 0) & (decay <= 1)).all():
        raise ValueError(f"{name} has decays that are not between 0 and 1")
    rates = -value.double() if is_log else -decay.clamp(min=FASTEST_DECAY).log().squeeze(-1)
    return rates.log().float()
