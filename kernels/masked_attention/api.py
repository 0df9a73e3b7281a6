"""`masked_attention`: softmax attention in which a rule of positions determines the keys that a
query sees.

y[h, i] = sum over j in S(h, i) of softmax_j(q[h, i] . k[h, j] / sqrt(k)) v[h, j],   S(h, i) = {j :
sees(i, j), in head h}

The sparse patterns of Sparse Transformers (Child et al. 2019, arXiv 1904.10509, equation 2, where S
is the connectivity pattern) and of Yun et al. 2020 (arXiv 2006.04862, section 3) are such rules.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from recallkit.kernels.choice import Impl, check_alike, choose
from recallkit.kernels.masked_attention import reference, torch_impl

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from torch import Tensor

    from recallkit.kernels.masked_attention.reference import Sees

_NARROWEST = 16
"""Least head width for which FlexAttention has a kernel."""


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
    """Attention of each position to those that `sees` selects; q, k, v and the result are (b, h, t,
    k) of one type.

    `sees(queries, keys)` receives int64 positions 0 to t - 1 that broadcast, such as (1, 1, t, 1)
    and (1, 1, 1, t), or two scalars, and returns which pairs are seen, bool. With `by_head` it also
    receives the heads, as a third tensor that broadcasts with them, such as (h, 1, 1). It must
    depend on these numbers alone, by elementwise operations. (A rule that adds an axis of heads
    itself works in "reference" and "torch" only.) Every query must see a key: otherwise its output
    is undefined.

    `numbers`, such as a window, are passed to the rule by name, on a GPU as tensors: rules that
    differ only in them share a compiled kernel, whereas a number captured in the rule becomes a
    constant and another value may fail to compile. `key` names the rule with all its other
    parameters: two rules with the same key must agree, and a rule with a key must not reference a
    model, since it is cached. On a GPU the table of blocks with a seen pair is computed once per
    key, length and device.
    `impl`: "reference" computes query by query, "torch" is PyTorch's attention under a dense mask,
    one for all heads where they do not differ, differentiable, in time and memory of t^2. "triton"
    is FlexAttention (torch.nn.attention.flex_attention), compiled, which skips blocks of 128 x 128
    pairs where none is seen; forward only. `auto` takes it on a GPU where there is a key. Raises
    ValueError for shapes, types or an implementation that do not fit.
    """
    check_alike(4, q=q, k=k, v=v)
    unnamed = (
        "without a key the table of blocks would be computed in every call" if key is None else None
    )
    chosen = choose("masked_attention", impl, q, k, v, unsupported=_obstacle(q), slower=unnamed)
    if chosen == "triton":
        from recallkit.kernels.masked_attention.triton_impl import masked_attention_triton

        return masked_attention_triton(q, k, v, sees, by_head, key, numbers or {})
    compute = (
        torch_impl.masked_attention_torch
        if chosen == "torch"
        else reference.masked_attention_reference
    )
    return compute(q, k, v, functools.partial(sees, **numbers) if numbers else sees, by_head)


def _obstacle(q: Tensor) -> str | None:
    """Why FlexAttention cannot process these inputs; None where it can."""
    if not q.is_cuda:
        return (
            f"FlexAttention is compiled for a GPU, and the tensors are on {q.device.type}; it "
            "has no interpreter"
        )
    if q.shape[3] < _NARROWEST:
        return f"FlexAttention needs heads at least {_NARROWEST} wide, not {q.shape[3]}"
    if 0 in q.shape:
        return f"there is nothing to attend to in {tuple(q.shape)}"
    if torch.compiler.is_compiling():
        return "the table of blocks cannot be computed inside torch.compile"
    return None
