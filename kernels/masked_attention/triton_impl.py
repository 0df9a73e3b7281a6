"""`masked_attention` on a GPU: PyTorch's FlexAttention, which compiles the rule into its kernel and
skips blocks without pairs.

Whether none, some or all of the 128 x 128 pairs of a block are seen is computed here from the rule
itself, a strip of queries at a time, and cached for rules with a key. Inside a block that is partly
seen, the kernel evaluates the rule for each pair.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from torch.nn.attention.flex_attention import BlockMask

    from recallkit.kernels.masked_attention.reference import Sees

BLOCK = 128
"""Queries and keys per block in FlexAttention."""

MOST_PAIRS = 1 << 26
"""Pairs per strip for which the rule is evaluated at once: 512 MB for each int64 intermediate of
the rule."""

MOST_TABLES = 32
"""Size of the cache of tables (least recently used is dropped). At 32k tokens a table takes 2 MB
per head."""

MOST_VARIANTS = 256
"""Most kernels that are compiled, by pattern, type and width. Beyond them a call raises: the
fallback would materialise t x t scores."""

_NO_NUMBERS: Mapping[str, int] = MappingProxyType({})

_tables: OrderedDict[Hashable, BlockMask] = OrderedDict()


def masked_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Sees,
    by_head: bool,
    key: Hashable,
    numbers: Mapping[str, int] = _NO_NUMBERS,
) -> Tensor:
    """Shapes as in `masked_attention`."""
    table = kept_block_mask(sees, by_head, key, q.shape[1], q.shape[2], q.device, numbers)
    with torch._dynamo.config.patch(recompile_limit=MOST_VARIANTS):
        out: Tensor = _compiled()(q, k, v, block_mask=table)
    return out


def kept_block_mask(
    sees: Sees,
    by_head: bool,
    key: Hashable,
    num_heads: int,
    t: int,
    device: torch.device,
    numbers: Mapping[str, int] = _NO_NUMBERS,
) -> BlockMask:
    """The table of a rule, from the cache where possible; with `key` None nothing is cached."""

    def make() -> BlockMask:
        # torch.compile makes a number a constant at first, and a variable once its value changes,
        # which this code does not support.
        tensors = {name: torch.tensor(number, device=device) for name, number in numbers.items()}
        return block_mask(
            functools.partial(sees, **tensors) if tensors else sees, by_head, num_heads, t, device
        )

    if key is None:
        return make()
    full_key = (key, *sorted(numbers.items()), num_heads, t, device)
    if full_key not in _tables:
        _tables[full_key] = make()
        if len(_tables) > MOST_TABLES:
            _tables.popitem(last=False)
    _tables.move_to_end(full_key)
    return _tables[full_key]


def block_mask(
    sees: Sees, by_head: bool, num_heads: int, t: int, device: torch.device
) -> BlockMask:
    """Which blocks of a text of t tokens the kernel visits, and which of them without evaluating
    the rule; one table where heads agree."""
    from torch.nn.attention.flex_attention import BlockMask

    # A cached table must also be usable outside inference mode.
    with torch.inference_mode(False), torch.no_grad():
        num_pairs = pairs_in_blocks(sees, by_head, num_heads, t, device)[None]
        full = num_pairs == BLOCK * BLOCK
        some = (num_pairs > 0) & ~full
        tables = (*_listed(some), *_listed(full))
        return BlockMask.from_kv_blocks(
            *tables, BLOCK_SIZE=BLOCK, mask_mod=as_mask_mod(sees, by_head), seq_lengths=(t, t)
        )


def pairs_in_blocks(
    sees: Sees, by_head: bool, num_heads: int, t: int, device: torch.device
) -> Tensor:
    """How many pairs are seen in each block, (1 or h, blocks, blocks) int64. Positions beyond the
    text are not seen."""
    keys = torch.arange(t, device=device)
    heads = [torch.arange(num_heads, device=device).view(-1, 1, 1)] if by_head else []
    table_heads = num_heads if by_head else 1
    strip = max(1, MOST_PAIRS // (table_heads * t * BLOCK)) * BLOCK
    counted = []
    for start in range(0, t, strip):
        queries = keys[start : start + strip]
        visible = sees(queries[:, None], keys[None, :], *heads)
        visible = visible.expand(torch.broadcast_shapes(visible.shape, (1, len(queries), t)))
        if visible.shape[0] not in (1, table_heads):
            raise ValueError(
                "masked_attention: a rule that differs by head needs by_head=True, and must not "
                f"add {len(visible)} heads itself"
            )
        visible = F.pad(visible, (0, -t % BLOCK, 0, -len(queries) % BLOCK))
        counted.append(visible.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK)).sum((2, 4)))
    return torch.cat(counted, 1)


def as_mask_mod(sees: Sees, by_head: bool) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The rule in the form of FlexAttention: for one pair of one head, all scalars.

    It must also return scalars: an axis of heads inside, indexed by the head, compiles to a kernel
    with wrong results.
    """

    # The kernel has 32-bit positions, which the hashes of a rule would overflow.
    def mask_mod(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(query.long(), key.long())

    def mask_mod_by_head(_row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(query.long(), key.long(), head.long())

    return mask_mod_by_head if by_head else mask_mod


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """blocks: (1, h, n, n) bool -> how many are set in each row, and all columns with the set ones
    first; int32."""
    return blocks.sum(-1, dtype=torch.int32), blocks.to(torch.uint8).argsort(
        dim=-1, descending=True, stable=True
    ).to(torch.int32)


@functools.cache
def _compiled() -> Any:
    """FlexAttention, compiled; with `fullgraph` a call raises where it cannot be compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)
