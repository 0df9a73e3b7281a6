"""RWKV-4 and RWKV-5.2 models in the file format of rwkv.cpp, read into the shape of `recallkit.models.language_model`.

Little endian: a header (magic, version, vocabulary, width, layers, type), then a record for each tensor: number of
dimensions, length of the name, type; the dimensions in reverse; the name; the values (RWKV/rwkv.cpp, docs/FILE_FORMAT.md and
python/convert_pytorch_to_ggml.py). The index is read and checked first: no more memory is taken than the file is long.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

MAGIC = 0x67676D66
VERSIONS = (100, 101)
HEADER, RECORD = struct.Struct("<IIiiiI"), struct.Struct("<iii")
TYPES: dict[int, str] = {0: "<f", 1: "<e"}
"""The types that are read, by the file's numbers for them, as `struct` and numpy name float32 and float16; the others are quantised."""
MAX_NAME = 256
NORM_EPS = 1e-5
"""Of all norms, including those of RWKV-5's heads: the file does not contain it, and rwkv.cpp uses this value for both versions."""
SLOWEST_DECAY, FASTEST_DECAY = 1.0, 1e-30
"""Bounds of the factor by which a state decays at each token; smaller decays become the second, for their logarithm is needed."""

_WHOLE = {"emb.weight": "embedding.weight", "ln_out.weight": "norm.weight", "ln_out.bias": "norm.bias", "head.weight": "head.weight"}
_WHOLE |= {f"blocks.0.ln0.{part}": f"embedding_norm.{part}" for part in ("weight", "bias")}
_IN_BLOCK = {f"ln{i}.{part}": f"{norm}.{part}" for i, norm in ((1, "mixer_norm"), (2, "mlp_norm")) for part in ("weight", "bias")}
_IN_BLOCK |= {f"ffn.{word}.weight": f"mlp.{word}.weight" for word in ("key", "value", "receptance")}
_IN_BLOCK |= {"ffn.time_mix_k": "mlp.time_mix_key", "ffn.time_mix_r": "mlp.time_mix_receptance"}
_IN_BLOCK |= {f"att.{word}.weight": f"mixer.{word}.weight" for word in ("key", "value", "receptance")}
_IN_BLOCK |= {f"att.time_mix_{word[0]}": f"mixer.time_mix_{word}" for word in ("key", "value", "receptance")}
_IN_BLOCK |= {"att.output.weight": "mixer.out_proj.weight", "att.time_decay": "mixer.time_decay"}
_ONLY_4 = {"att.time_first": "mixer.time_first"}
_ONLY_5 = {"att.time_faaaa": "mixer.time_first", "att.gate.weight": "mixer.gate.weight", "att.time_mix_g": "mixer.time_mix_gate"}
_ONLY_5 |= {f"att.ln_x.{part}": f"mixer.norm.{part}" for part in ("weight", "bias")}


@dataclass(frozen=True, slots=True)
class _Record:
    """Where a tensor's values are in the file."""

    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * struct.calcsize(self.dtype)


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
        return _read_header(file, path)[0]


def read_rwkv_file(path: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    """The architecture and the weights of a `LanguageModel`, in float32.

    Raises UserError where the file cannot be read or is cut short, where a tensor is missing, left over or of another shape
    than the rest asks for (it is named), and for other versions of RWKV and quantised weights.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path) from error


def _read(file: BinaryIO, path: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    size = file.seek(0, 2)
    file.seek(0)
    vocab_size, d_model, num_layers = _read_header(file, path)
    records = _read_index(file, size, path)
    config = _configure(records, vocab_size, d_model, num_layers, path)
    names = _names(config)
    if missing := sorted(names.keys() - records.keys()):
        _refuse(path, f"{missing[0]} is missing")
    if unknown := sorted(records.keys() - names.keys()):
        _refuse(path, f"{unknown[0]} belongs to no RWKV-4 or RWKV-5.2 of {num_layers} layers")
    for name, shape in _shapes(config).items():
        if records[name].shape != shape:
            _refuse(path, f"{name} is of shape {list(records[name].shape)}, where {list(shape)} fits the other tensors")
    weights = {}
    for name, ours in names.items():
        values = _read_values(file, records[name])
        weights[ours] = _log_decay(values, name, config, path) if name.endswith("time_decay") else values
        if name.endswith("time_faaaa"):
            weights[ours] = values.squeeze(-1)
    return config, weights


def _read_header(file: BinaryIO, path: Path) -> tuple[int, int, int]:
    """Vocabulary, width and layers."""
    content = file.read(HEADER.size)
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


def _read_index(file: BinaryIO, size: int, path: Path) -> dict[str, _Record]:
    records: dict[str, _Record] = {}
    while (start := file.tell()) < size:
        head = file.read(RECORD.size)
        if len(head) < RECORD.size:
            _refuse(path, f"is cut short in the tensor at byte {start}")
        num_dimensions, name_length, kind = RECORD.unpack(head)
        if not 1 <= num_dimensions <= 3 or not 1 <= name_length <= MAX_NAME:
            _refuse(path, f"has no tensor at byte {start}: {num_dimensions} dimensions, a name of {name_length} bytes")
        rest = file.read(4 * num_dimensions + name_length)
        if len(rest) < 4 * num_dimensions + name_length:
            _refuse(path, f"is cut short in the tensor at byte {start}")
        shape = struct.unpack_from(f"<{num_dimensions}i", rest)[::-1]
        name = rest[4 * num_dimensions :].decode(errors="replace")
        dtype = _check_type(kind, name, path)
        if min(shape) < 1:
            _refuse(path, f"{name} is of shape {list(shape)}")
        if name in records:
            _refuse(path, f"{name} is in it twice")
        records[name] = _Record(shape, dtype, file.tell())
        if records[name].num_bytes > size - file.tell():
            _refuse(path, f"is cut short in {name}, of shape {list(shape)}")
        file.seek(records[name].num_bytes, 1)
    return records


def _check_type(kind: int, what: str, path: Path) -> str:
    if kind not in TYPES:
        raise UserError(f"{what} is of type {kind}", where=path, remedy="convert the model to FP32 or FP16: quantised weights are not read")
    return TYPES[kind]


def _configure(records: Mapping[str, _Record], vocab_size: int, d_model: int, num_layers: int, path: Path) -> ArchitectureConfig:
    """The architecture that the tensors' names and shapes imply."""
    if "blocks.0.att.time_maa_x" in records:
        _refuse(path, "contains an RWKV-6, and only RWKV-4 and RWKV-5.2 are read")
    if "blocks.0.att.ln_x.weight" in records and "blocks.0.att.gate.weight" not in records:
        _refuse(path, "contains an RWKV-5.1, and only RWKV-4 and RWKV-5.2 are read")
    for name in ("blocks.0.att.time_decay", "blocks.0.ffn.key.weight"):
        if name not in records:
            _refuse(path, f"{name} is missing")
    if num_layers > len(records):
        _refuse(path, f"has {len(records)} tensors for {num_layers} layers")
    layer = LayerConfig("rwkv4")
    if "blocks.0.att.gate.weight" in records:
        shape = records["blocks.0.att.time_decay"].shape
        if len(shape) != 3 or shape[0] * shape[1] != d_model:
            _refuse(path, f"blocks.0.att.time_decay is of shape {list(shape)}, where (heads, {d_model} / heads, 1) is asked for")
        layer = LayerConfig("rwkv5", {"head_size": shape[1], "eps": NORM_EPS})
    try:
        return ArchitectureConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            layers=(layer,) * num_layers,
            mlp="rwkv",
            mlp_width=records["blocks.0.ffn.key.weight"].shape[0],
            norm="layer",
            norm_eps=NORM_EPS,
            embedding_norm=True,
            tied_head=False,
        )
    except ValueError as error:
        raise UserError(str(error), where=path) from error


def _names(config: ArchitectureConfig) -> dict[str, str]:
    """Name in the file -> name in the model."""
    in_block = _IN_BLOCK | (_ONLY_4 if config.layers[0].mixer == "rwkv4" else _ONLY_5)
    blocks = {f"blocks.{i}.{theirs}": f"blocks.{i}.{ours}" for i in range(len(config.layers)) for theirs, ours in in_block.items()}
    return _WHOLE | blocks


def _shapes(config: ArchitectureConfig) -> dict[str, tuple[int, ...]]:
    """Name in the file -> shape there."""
    d, width, vocab_size = config.d_model, config.width, config.vocab_size
    special: dict[str, tuple[int, ...]] = {"emb.weight": (vocab_size, d), "head.weight": (vocab_size, d)}
    special |= {"ffn.key.weight": (width, d), "ffn.value.weight": (d, width)}
    if config.layers[0].mixer == "rwkv5":
        head_size = config.layers[0].options["head_size"]
        special |= dict.fromkeys(("att.time_decay", "att.time_faaaa"), (d // head_size, head_size, 1))
    shapes = {}
    for name in _names(config):
        local = name.split(".", 2)[2] if name.startswith("blocks.") else name
        is_matrix = local.startswith(("att.", "ffn.")) and local.endswith(".weight") and "ln_x" not in local
        shapes[name] = special.get(local, (d, d) if is_matrix else (d,))
    return shapes


def _read_values(file: BinaryIO, record: _Record) -> Tensor:
    import numpy as np
    import torch

    file.seek(record.offset)
    values = np.frombuffer(file.read(record.num_bytes), record.dtype)
    return torch.from_numpy(values.astype(np.float32).reshape(record.shape))


def _log_decay(values: Tensor, name: str, config: ArchitectureConfig, path: Path) -> Tensor:
    """The parameter x of decays w = exp(-exp(x)), of which the file contains w (RWKV-5.2) or log w (RWKV-4)."""
    is_log = config.layers[0].mixer == "rwkv4"
    decay = values.double().exp() if is_log else values.double()
    if not ((decay >= 0) & (decay <= SLOWEST_DECAY)).all():
        _refuse(path, f"{name} has decays that are not between 0 and 1")
    rates = -values.double() if is_log else -decay.clamp(min=FASTEST_DECAY).log().squeeze(-1)
    return rates.log().float()


def _refuse(path: Path, problem: str) -> NoReturn:
    raise UserError(problem, where=path, remedy="check that the file is whole and was written by rwkv.cpp's converter")
