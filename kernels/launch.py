"""How a Triton kernel is launched: in which configuration, on which GPU, with which precision of products.

A configuration (tile sizes, warps, stages) may change the order of a sum, and so the last bit of a result. Scores that are
resumed must come out as they began, so the first configuration of a kernel's list is taken unless RECALLKIT_AUTOTUNE=1 asks
for the fastest one. Tuning is done once for a kernel's `key`, which holds no length of a text: other lengths tune nothing.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
import triton

from recallkit.kernels.choice import interpreted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

OPTIONS = {"enable_fp_fusion": True}
"""What every kernel is compiled with: products and sums fused, which Triton 3.9 warns of where it is not said, and 3.10 leaves out."""


class Launcher:
    """A kernel with its configurations, the first of which is the usual one.

    `key`: the arguments that tuning depends on: widths and types, never a length of a text or a number of rows.
    """

    def __init__(self, kernel: Any, configs: Sequence[triton.Config], key: Sequence[str]) -> None:
        self.kernel, self.configs, self.key = kernel, list(configs), list(key)
        self._tuned: Any = None

    def __call__(
        self, grid: Callable[[dict[str, Any]], tuple[int, ...]], *tensors: Tensor | None, config: int | None = None, **values: Any
    ) -> None:
        """Runs the kernel with `tensors` as its first arguments and `values` by name, on the tensors' device.

        `grid`: programs, from all values by name. `config`: which configuration, the usual one where None.
        """
        device = next(tensor for tensor in tensors if tensor is not None).device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            if config is None and os.environ.get("RECALLKIT_AUTOTUNE") == "1" and not interpreted():
                self._autotuner()[grid](*tensors, **values, **OPTIONS)
            else:
                self.kernel[grid](*tensors, **values, **OPTIONS, **self.configs[config or 0].all_kwargs())

    def _autotuner(self) -> Any:
        if self._tuned is None:
            self._tuned = triton.autotune(configs=self.configs, key=self.key, cache_results=True)(self.kernel)
        return self._tuned


def operand_type(dtype: torch.dtype) -> Any:
    """The type that products of values of this type are made in.

    Half precisions are multiplied as they are, with float32 sums; the interpreter would multiply bfloat16's bit patterns, so that
    there all are float32.
    """
    import triton.language as tl

    if interpreted() or dtype == torch.float32:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16
