"""Fewer bits: states as they would be stored in lower precision, and weights as weight-only quantisation leaves them."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from recallkit.config import installing
from recallkit.errors import UserError
from recallkit.quiet_transformers import without_logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

STATES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""What a state can be rounded to."""

WEIGHT_GROUP = 128
"""Most weights of a row that share a scale in int4."""


def round_state(tensor: Tensor, kind: str) -> tuple[Tensor, int]:
    """A state (b, ..., m, n) as it is after having been stored as a `kind` of `STATES`, in its own precision, and bytes of one row.

    fp8 (e4m3) and int8 are symmetric, with one float32 scale per row and head, that is for the last two axes together (for all but the
    first of a tensor with less than three), at which the largest magnitude is the largest code. Scales count as bytes.
    Raises UserError where magnitudes are beyond fp16.
    """
    dtype = STATES[kind]
    if kind in ("fp8", "int8"):
        codes, scale = scaled(tensor, range(max(1, tensor.ndim - 2), tensor.ndim), dtype)
        return unscaled(codes, scale, tensor.dtype), row_bytes(codes, scale)
    stored = tensor.to(dtype)
    if kind == "fp16" and (stored.isinf() & tensor.isfinite()).any():
        problem = f"a state has a magnitude of {tensor.abs().max().item():.3g}, beyond the 65,504 of fp16"
        raise UserError(problem, remedy="round it to bf16")
    return stored.to(tensor.dtype), row_bytes(stored)


def scaled(tensor: Tensor, axes: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Symmetric codes of a tensor in int8 or a float8, and the float32 scale that all entries along `axes` share."""
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    values = tensor.float()
    scale = (values.abs().amax(tuple(axes), keepdim=True) / largest).clamp(min=torch.finfo(torch.float32).tiny)
    values = values / scale
    return (values if dtype.is_floating_point else values.round()).clamp(-largest, largest).to(dtype), scale


def unscaled(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes and their scale stand for."""
    return (codes.float() * scale).to(dtype)


def quantise_weights(module: nn.Module, kind: str) -> None:
    """Replaces weights in place by what weight-only quantisation to int8 or int4 makes of them.

    Those of every nn.Linear but the output head and what is tied to an embedding, which GPTQ and AWQ leave alone, too. By torchao's
    `IntxWeightOnlyConfig`, which works on any machine (optimum-quanto has had no release since 2025). Symmetric: int8 with a scale per
    output, int4 with one per group of 128 inputs, or of the largest power of two that divides their number. The weights are dequantised
    to their own precision, so that any code reads them, as weight-only kernels do within each product. Raises UserError without
    torchao, or such a layer, and for a mixture of experts whose weights are no nn.Linear.
    """
    check_torchao()
    with without_logs():
        from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_

    layers = _inner_linears(module)
    if not layers:
        raise UserError("no nn.Linear but the output head, so that no weights can be quantised", remedy=f"leave out weights={kind}")
    experts = (name for name, weight in module.named_parameters() if weight.ndim == 3 and min(weight.shape) > 1)
    if (stacked := next(experts, None)) is not None:
        raise UserError(f"weight {stacked} is of no nn.Linear, and would stay as it is", remedy=f"leave out weights={kind}")
    for layer in layers:
        width = layer.in_features
        granularity = PerAxis(0) if kind == "int8" else PerGroup(min(WEIGHT_GROUP, width & -width))
        quantize_(layer, IntxWeightOnlyConfig(getattr(torch, kind), granularity), filter_fn=lambda *_: True)
        stored: Any = layer.weight
        layer.weight = nn.Parameter(stored.dequantize(), requires_grad=False)


def check_torchao() -> None:
    """Raises UserError where torchao is not installed."""
    if importlib.util.find_spec("torchao") is None:
        raise UserError("torchao, which quantises weights, is not installed", remedy=installing("weights"))


def _inner_linears(module: nn.Module) -> list[nn.Linear]:
    """The linear layers of a model without its output head: what transformers names so, else an attribute `head` or `lm_head`."""
    named = getattr(module, "get_output_embeddings", lambda: None)() or getattr(module, "head", None) or getattr(module, "lm_head", None)
    left = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)} | {id(getattr(named, "weight", None))}
    return [part for part in module.modules() if isinstance(part, nn.Linear) and id(part.weight) not in left]


def row_bytes(*tensors: Tensor) -> int:
    """Bytes of one row of tensors (b, ...)."""
    return sum(stored_bytes(tensor) // max(1, len(tensor)) for tensor in tensors)


def stored_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's entries; of a quantised one those of the tensors that it consists of."""
    if hasattr(tensor, "__tensor_flatten__"):
        return sum(stored_bytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return tensor.numel() * tensor.element_size()
