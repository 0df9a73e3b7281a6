"""RWKV-4 and RWKV-5.2 models in the file format of rwkv.cpp, read into the shape of `recallkit.models.language_model`.

Little endian: a header (magic, version, vocabulary, width, layers, type), then a record for each tensor: number of
dimensions, length of the name, type; the dimensions in reverse; the name; the values (RWKV/rwkv.cpp, docs/FILE_FORMAT.md and
python/convert_pytorch_to_ggml.py). No more memory is taken than the file's values need.
"""

from __future__ import annotations

import math
import mmap
import struct
from typing import TYPE_CHECKING, NoReturn

from recallkit.errors import UserError
from recallkit.models.architecture import MAX_LAYERS, ArchitectureConfig, LayerConfig
from recallkit.models.published import renamed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

MAGIC = 0x67676D66
VERSIONS = (100, 101)
HEADER, RECORD = struct.Struct("<IIiiiI"), struct.Struct("<iii")
TYPES: dict[int, str] = {0: "<f4", 1: "<f2"}
"""The types that are read, by the file's numbers for them, as numpy names float32 and float16; the others are quantised."""
MAX_NAME = 256
NORM_EPS = 1e-5
"""Of all norms, including those of RWKV-5's heads: the file does not contain it, and rwkv.cpp uses this value for both versions."""
FASTEST_DECAY = 1e-30
"""The least factor by which a state decays at each token, since its logarithm is needed."""

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
    **{f".time_mix_{word[0]}": f".time_mix_{word}" for word in ("key", "value", "receptance", "gate")},
}
"""Parts of the names in a file, and what they are in the model."""


def is_rwkv_file(path: Path) -> bool:
    """Whether a file begins as one of this format does; False for anything unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(4) == struct.pack("<I", MAGIC)
    except OSError:
        return False


def read_vocab_size(path: Path) -> int:
    """The entries of the vocabulary, from the header. Raises UserError as `read_rwkv_file` does."""
    with path.open("rb") as file:
        return _read_header(file.read(HEADER.size), path)[0]


def read_rwkv_file(path: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """The architecture and the weights of a `LanguageModel`, in float32.

    Raises UserError where the file cannot be read or is cut short, and for other versions of RWKV and quantised weights.
    """
    try:
        with path.open("rb") as file:
            if not file.read(1):
                _refuse(path, "is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                sizes = _read_header(content[: HEADER.size], path)
                found = _read_tensors(content, path)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path) from error
    config = _configure(found, *sizes, path)
    weights = renamed(found, _NAMES)
    for name in weights:
        if name.endswith(".time_decay"):
            weights[name] = _log_decay(weights[name], name, config, path)
        elif name.endswith(".time_first") and config.layers[0].mixer == "rwkv5":
            weights[name] = weights[name].squeeze(-1)
    return config, weights


def _read_header(content: bytes, path: Path) -> tuple[int, int, int]:
    """Vocabulary, width and layers."""
    if len(content) < HEADER.size:
        _refuse(path, "is too short for a header")
    magic, version, vocab_size, d_model, num_layers, kind = HEADER.unpack(content)
    if magic != MAGIC:
        raise UserError("is no model of rwkv.cpp", where=path, remedy="convert one with its convert_pytorch_to_ggml.py")
    if version not in VERSIONS:
        _refuse(path, f"is of the format's version {version}, not one of {', '.join(map(str, VERSIONS))}")
    _check_type(kind, "the model", path)
    if min(vocab_size, d_model, num_layers) < 1:
        _refuse(path, f"has a vocabulary of {vocab_size}, a width of {d_model} and {num_layers} layers")
    return vocab_size, d_model, num_layers


def _read_tensors(content: mmap.mmap, path: Path) -> dict[str, Tensor]:
    import numpy as np
    import torch

    found: dict[str, Tensor] = {}
    start = HEADER.size
    while start < len(content):
        try:
            num_axes, name_length, kind = RECORD.unpack_from(content, start)
            if not 1 <= num_axes <= 3 or not 1 <= name_length <= MAX_NAME:
                _refuse(path, f"has no tensor at byte {start}: {num_axes} dimensions, a name of {name_length} bytes")
            *axes, encoded = struct.unpack_from(f"<{num_axes}i{name_length}s", content, start + RECORD.size)
        except struct.error:
            _refuse(path, f"is cut short in the tensor at byte {start}")
        name, shape = encoded.decode(errors="replace"), axes[::-1]
        dtype = np.dtype(_check_type(kind, name, path))
        begin = start + RECORD.size + 4 * num_axes + name_length
        start = begin + math.prod(shape) * dtype.itemsize
        if min(shape) < 1:
            _refuse(path, f"{name} is of shape {shape}")
        if name in found:
            _refuse(path, f"{name} is in it twice")
        if start > len(content):
            _refuse(path, f"is cut short in {name}, of shape {shape}")
        values = np.frombuffer(content[begin:start], dtype).astype(np.float32)
        found[name] = torch.from_numpy(values.reshape(shape))
    return found


def _check_type(kind: int, what: str, path: Path) -> str:
    if kind not in TYPES:
        raise UserError(f"{what} is of type {kind}", where=path, remedy="convert the model to FP32 or FP16: quantised weights are not read")
    return TYPES[kind]


def _configure(found: Mapping[str, Tensor], vocab_size: int, d_model: int, num_layers: int, path: Path) -> ArchitectureConfig:
    """The architecture that the tensors' names and shapes imply."""
    if "blocks.0.att.time_maa_x" in found:
        _refuse(path, "contains an RWKV-6, and only RWKV-4 and RWKV-5.2 are read")
    if "blocks.0.att.ln_x.weight" in found and "blocks.0.att.gate.weight" not in found:
        _refuse(path, "contains an RWKV-5.1, and only RWKV-4 and RWKV-5.2 are read")
    for name in ("blocks.0.att.time_decay", "blocks.0.ffn.key.weight"):
        if name not in found:
            _refuse(path, f"{name} is missing")
    layer = LayerConfig("rwkv4")
    if "blocks.0.att.gate.weight" in found:
        shape = found["blocks.0.att.time_decay"].shape
        if len(shape) != 3 or shape[0] * shape[1] != d_model:
            _refuse(path, f"blocks.0.att.time_decay is of shape {list(shape)}, where (heads, {d_model} / heads, 1) is asked for")
        layer = LayerConfig("rwkv5", {"head_size": shape[1], "eps": NORM_EPS})
    options = {"mlp": "rwkv", "norm": "layer", "norm_eps": NORM_EPS, "embedding_norm": True, "tied_head": False}
    mlp_width, layers = found["blocks.0.ffn.key.weight"].shape[0], (layer,) * min(num_layers, MAX_LAYERS + 1)
    try:
        return ArchitectureConfig(vocab_size, d_model, layers, mlp_width=mlp_width, **options)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(str(error), where=path) from error


def _log_decay(values: Tensor, name: str, config: ArchitectureConfig, path: Path) -> Tensor:
    """The parameter x of decays w = exp(-exp(x)), of which the file contains w (RWKV-5.2) or log w (RWKV-4)."""
    is_log = config.layers[0].mixer == "rwkv4"
    decay = values.double().exp() if is_log else values.double()
    if not ((decay >= 0) & (decay <= 1)).all():
        _refuse(path, f"{name} has decays that are not between 0 and 1")
    rates = -values.double() if is_log else -decay.clamp(min=FASTEST_DECAY).log().squeeze(-1)
    return rates.log().float()


def _refuse(path: Path, problem: str) -> NoReturn:
    raise UserError(problem, where=path, remedy="check that the file is whole and was written by rwkv.cpp's converter")
