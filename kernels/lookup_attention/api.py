"""`lookup_attention`: each query attends to the keys of its own list; its output is zero where the
list is empty.

y[h, i] = sum over j in L(i) of softmax_j(q[h, i] . k[h, j] / sqrt(k)) v[h, j],   0 where L(i) is
empty

Attention as selective lookups (Zoology, arXiv 2312.04927, section 5), there for positions whose
token occurred before. The lists of a batch are concatenated, as in the compressed sparse row (CSR)
format, and are shared by all heads: the lists {4, 7}, {} and {2} of three queries are offsets 0, 2,
2, 3 and keys 4, 7, 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallkit.kernels.choice import Impl, check_alike, choose
from recallkit.kernels.lookup_attention import reference, torch_impl

DENSE = 16
"""Where more than one pair in this many is listed, products of all pairs on a GPU's matrix units
are expected to be faster than lookups."""


def lookup_attention(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor, *, impl: Impl = "auto"
) -> Tensor:
    """Attention of the query at position i of row r to keys[offsets[r t + i] : offsets[r t + i +
    1]], positions in the same row.

    Shapes: q, k, v (b, h, t, k) of one type, which the result (b, h, t, k) has, too; offsets (b t +
    1,) int64 from 0 to n, nondecreasing; keys (n,) int64 from 0 to t - 1, in any order, before or
    after the query. A key that is listed twice counts twice. Scores and sums are float32 or wider.
    A query's result depends on no other query.

    `impl`: "reference" computes query by query. "torch" computes listed pairs in chunks, or strips
    of queries under a mask where more than one pair in 32 is listed; it is differentiable once, and
    stores nothing per pair for that. "triton" reads only the keys and values that are listed:
    `auto` takes it on a GPU where at most one pair in 16 is listed. Raises ValueError for shapes,
    types, lists or an implementation that do not fit; on a GPU lists are not checked, and a key
    outside the row gives NaN.
    """
    _check(q, k, v, offsets, keys)
    dense = DENSE * len(keys) > q.shape[0] * q.shape[2] ** 2
    slower = f"more than one pair in {DENSE} is listed" if dense else None
    chosen = choose("lookup_attention", impl, q, k, v, offsets, keys, slower=slower)
    if chosen == "triton":
        from recallkit.kernels.lookup_attention.triton_impl import lookup_attention_triton

        out: Tensor = lookup_attention_triton(q, k, v, offsets, keys)
        return out
    compute = (
        torch_impl.lookup_attention_torch
        if chosen == "torch"
        else reference.lookup_attention_reference
    )
    return compute(q, k, v, offsets, keys)


def _check(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, keys: Tensor) -> None:
    check_alike(4, q=q, k=k, v=v)
    for name, column in (("offsets", offsets), ("keys", keys)):
        if column.ndim != 1 or column.dtype != torch.int64:
            raise ValueError(
                f"{name} must be int64 with one axis, not {column.dtype} of {tuple(column.shape)}"
            )
    batch, _, t, _ = q.shape
    if len(offsets) != batch * t + 1:
        raise ValueError(f"offsets must have length b t + 1 = {batch * t + 1}, not {len(offsets)}")
    # On a GPU, checking would synchronise with it.
    if (
        offsets.device.type == "cpu"
        and keys.device.type == "cpu"
        and not torch.compiler.is_compiling()
    ):
        _check_lists(offsets, keys, t)


def _check_lists(offsets: Tensor, keys: Tensor, t: int) -> None:
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(keys):
        raise ValueError(
            f"offsets must go from 0 to the number of keys, {len(keys)}, not from "
            f"{int(offsets[0])} to {int(offsets[-1])}"
        )
    falls = (offsets[1:] < offsets[:-1]).nonzero()
    if len(falls):
        place = int(falls[0])
        raise ValueError(
            f"offsets must not decrease: after place {place} they go from {int(offsets[place])} "
            f"to {int(offsets[place + 1])}"
        )
    if len(keys) and not 0 <= int(keys.min()) <= int(keys.max()) < t:
        raise ValueError(
            f"keys must be positions from 0 to {t - 1}, not from {int(keys.min())} to "
            f"{int(keys.max())}"
        )
