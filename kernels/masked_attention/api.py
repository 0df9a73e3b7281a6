"""`masked_attention`: softmax attention where a rule of positions says which keys a query sees.

y[h, i] = sum over j in S(h, i) of softmax_j(q[h, i] . k[h, j] / sqrt(k)) v[h, j],   S(h, i) = {j : sees(i, j), in head h}

The sparse patterns of Sparse Transformers (Child et al. 2019, arXiv 1904.10509, equation 2, where S is the connectivity pattern) and
of Yun et al. 2020 (arXiv 2006.04862, section 3) are such rules.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from recallkit.kernels.choice import Impl, choose

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from torch import Tensor

    from recallkit.kernels.masked_attention.rule import Sees

_NARROWEST = 16
"""Head width from which on FlexAttention has a kernel."""


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Sees,
    *,
    by_head: bool = False,
    key: Hashable = None,
    numbers: Mapping[str, int] | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Attention of each position to those that `sees` lets through; all (b, h, t, k), of one type, which the result has, too.

    `sees(queries, keys)` is given int64 positions 0 to t - 1 that broadcast, such as (1, 1, t, 1) and (1, 1, 1, t), or two scalars, and
    returns which pairs are seen, bool. With `by_head` it is given the heads, too, as a third tensor that broadcasts with them, such as
    (h, 1, 1). It must be a function of these numbers alone, made of operations element by element. (A rule that makes an axis of
    heads itself is understood by "reference" and "torch" alone.) Every query must see a key: where it sees none, nothing is promised.

    `numbers`, such as a window, are given to the rule by name, on a GPU as tensors: rules that differ in them alone share a
    compiled kernel, where a number that the rule holds itself may break it as soon as another value comes.
    `key` names the rule with all its other parameters: two rules of the same key must see the same, and a rule that has one must hold no
    model, for it is kept. On a GPU, the table of blocks that hold a seen pair is made once for a key, a length and a device.
    `impl`: "reference" goes query by query, "torch" is PyTorch's attention under a dense mask, one for all heads where they do not
    differ, differentiable, in time and memory of t^2. "triton" is FlexAttention (torch.nn.attention.flex_attention), compiled, which
    leaves out blocks of 128 x 128 pairs where none is seen; forward only. `auto` takes it on a GPU where there is a key.
    Raises ValueError for shapes, types or an implementation that do not fit.
    """
    _check(q, k, v)
    unnamed = "without a key the table of blocks would be made at every call" if key is None else None
    chosen = choose("masked_attention", impl, q, k, v, unsupported=_obstacle(q), slower=unnamed)
    if chosen == "triton":
        from recallkit.kernels.masked_attention.triton_impl import masked_attention_triton

        return masked_attention_triton(q, k, v, sees, by_head, key, numbers or {})
    if chosen == "torch":
        from recallkit.kernels.masked_attention.torch_impl import masked_attention_torch as compute
    else:
        from recallkit.kernels.masked_attention.reference import masked_attention_reference as compute
    return compute(q, k, v, functools.partial(sees, **numbers) if numbers else sees, by_head)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = {tuple(x.shape) for x in (q, k, v)}
    if q.ndim != 4 or len(shapes) > 1:
        raise ValueError(f"q, k and v must be (b, h, t, k) of one shape: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
    types = {x.dtype for x in (q, k, v)}
    if len(types) > 1 or not q.dtype.is_floating_point:
        raise ValueError(f"q, k and v must be of one floating type: {q.dtype}, {k.dtype}, {v.dtype}")


def _obstacle(q: Tensor) -> str | None:
    """What keeps FlexAttention from these inputs, if anything does."""
    if not q.is_cuda:
        return f"FlexAttention is compiled for a GPU, and the tensors are on {q.device.type}; it has no interpreter"
    if q.shape[3] < _NARROWEST:
        return f"FlexAttention takes heads from a width of {_NARROWEST} on, not {q.shape[3]}"
    if 0 in q.shape:
        return f"there is nothing to attend to in {tuple(q.shape)}"
    if torch.compiler.is_compiling():
        return "the table of blocks cannot be made inside torch.compile"
    return None
