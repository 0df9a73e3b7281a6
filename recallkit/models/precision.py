"""A context in which torch computes nothing in less than a given precision: the reference for
rounding errors.

Converting a model to float64 is not enough to compute in float64. Many modules narrow on the way: a
norm casts to float32, a softmax is computed in float32, a state begins as float32 zeros. In this
context each such cast and tensor is widened.

Values that were rounded earlier keep their rounding error and are used in the wide precision:
weights, and buffers computed in float32 when the model was built, such as the frequencies of rotary
positions.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FROM_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
"""They round Python numbers to a dtype before the dispatcher sees them."""


@contextlib.contextmanager
def widened(to: torch.dtype = torch.float64) -> Iterator[None]:
    """Inside, torch's operators take, create and return floating-point tensors of `to` or wider.

    Tensors that come from outside are widened where they are read; one that is written to, or
    viewed, keeps its dtype. To be used under `torch.inference_mode`: with autograd a convolution
    compares dtypes before its operands are widened. Fused kernels that do not go through torch's
    operators keep their own precision.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(_wide(default, to))
    try:
        with _WideNumbers(to), _WideOperators(to):
            yield
    finally:
        torch.set_default_dtype(default)


def exempt_hooks(model: torch.nn.Module) -> None:
    """Has the hooks of a device map bring weights in, and take them away, as outside of `widened`.

    Inside, a placeholder would take the wide precision, and weights that replace it later, too.
    """

    def outside(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return function(*arguments, **options)

        return run

    for module in model.modules():
        if (hook := getattr(module, "_hf_hook", None)) is not None:
            hook.pre_forward = outside(hook.pre_forward)
            hook.post_forward = outside(hook.post_forward)


class _WideOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, to: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.to = to

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        shared = _shared(func)
        wide = [self._widen(arg, tensors=place not in shared) for place, arg in enumerate(args)]
        options = {}
        for name, arg in (kwargs or {}).items():
            options[name] = self._widen(arg, tensors=name not in shared)
        if func.name() == "aten::_grouped_mm":
            return _grouped_product(*wide, **options)
        return func(*wide, **options)

    def _widen(self, arguments: Any, *, tensors: bool) -> Any:
        def one(argument: Any) -> Any:
            if isinstance(argument, torch.dtype):
                return _wide(argument, self.to)
            if tensors and isinstance(argument, torch.Tensor):
                return argument.to(_wide(argument.dtype, self.to))
            return argument

        return tree_map(one, arguments)


class _WideNumbers(TorchFunctionMode):
    def __init__(self, to: torch.dtype) -> None:
        super().__init__()
        self.to = to

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _FROM_NUMBERS and isinstance(options.get("dtype"), torch.dtype):
            options["dtype"] = _wide(options["dtype"], self.to)
        return func(*args, **options)


def _wide(dtype: torch.dtype, to: torch.dtype) -> torch.dtype:
    """The dtype that replaces a dtype: `to`, or its complex counterpart, where that is wider."""
    wanted = to.to_complex() if dtype.is_complex else to
    is_number = dtype.is_complex or dtype.is_floating_point
    return wanted if is_number and dtype.itemsize < wanted.itemsize else dtype


@functools.cache
def _shared(func: Any) -> frozenset[int | str]:
    """Positions and names of the arguments that an operator writes to or returns a view of."""
    keys: set[int | str] = set()
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None:
            keys |= {place, argument.name}
    return frozenset(keys)


def _grouped_product(
    rows: torch.Tensor,
    weights: torch.Tensor,
    offs: torch.Tensor,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Rows (n, d) in groups that end at `offs` (g,), each times its matrix of `weights` (g, d, e):
    torch does not implement it in float64.

    Rows after the last group are zero.
    """
    product = rows.new_zeros(len(rows), weights.shape[2])
    start = 0
    for stop, weight in zip(offs.tolist(), weights, strict=True):
        product[start:stop] = rows[start:stop] @ weight
        start = stop
    return product
