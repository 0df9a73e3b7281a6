"""Launches Triton kernels: their configuration, their GPU and the precision of their products.

A configuration (tile sizes, warps, stages) may change the order of a sum, and so the last bit of a
result. Resumed scores must equal those of an uninterrupted run, so the first configuration of a
kernel's list is used unless RECALLKIT_AUTOTUNE=1 selects the fastest one. Tuning is done once per
value of a kernel's `key`, which never includes the length of a text.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

import torch
import triton

from recallkit.kernels.choice import interpreted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

OPTIONS = {"enable_fp_fusion": True}
"""Compile options of every kernel: fused multiply-adds. Triton 3.9 warns unless this is explicit,
and 3.10 disables them by default."""

_HERE = contextlib.nullcontext()


class Launcher:
    """A kernel with its configurations, the first of which is the default.

    `key`: the arguments that tuning depends on: widths and types, never the length of a text or the
    number of rows.
    """

    def __init__(self, kernel: Any, configs: Sequence[triton.Config], key: Sequence[str]) -> None:
        self.kernel, self.configs, self.key = kernel, list(configs), list(key)
        self._options = [{**OPTIONS, **config.all_kwargs()} for config in configs]

    def __call__(
        self,
        grid: Callable[[dict[str, Any]], tuple[int, ...]],
        *tensors: Tensor | None,
        config: int | None = None,
        **values: Any,
    ) -> None:
        """Runs the kernel with `tensors` as its first arguments and `values` by name, on the
        tensors' device.

        `grid`: number of programs as a function of all values by name. `config`: index of the
        configuration, the default where None.
        """
        kernel, options = self._usual if config is None else (self.kernel, self._options[config])
        # This takes about as long as a launch does: nothing is looked up that cannot have changed.
        device: contextlib.AbstractContextManager[Any] = _HERE
        for tensor in tensors:
            if tensor is not None:
                if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
                    device = torch.cuda.device(tensor.device)
                break
        with device:
            kernel[grid](*tensors, **values, **options)

    @functools.cached_property
    def _usual(self) -> tuple[Any, dict[str, Any]]:
        """The kernel of a launch that names no configuration, and its options: as the environment
        says at the first launch."""
        if os.environ.get("RECALLKIT_AUTOTUNE") != "1" or interpreted():
            return self.kernel, self._options[0]
        return triton.autotune(configs=self.configs, key=self.key, cache_results=True)(
            self.kernel
        ), OPTIONS


def operand_type(dtype: torch.dtype) -> Any:
    """The type in which values of this type are multiplied.

    Half-precision values are multiplied as they are and summed in float32; the interpreter would
    multiply the bit patterns of bfloat16, so there everything is float32.
    """
    import triton.language as tl

    if interpreted() or dtype == torch.float32:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16


def inner_contiguous(tensor: Tensor) -> Tensor:
    """The tensor, or a copy, whose entries along the last axis lie side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
