"""`masked_attention` on a GPU: PyTorch's FlexAttention, which compiles the rule into its kernel and leaves out blocks without pairs.

Whether a block of 128 x 128 pairs holds none that is seen, some or all is counted here from the rule itself, a strip of queries
at a time, and kept for rules that have a key. Inside a block that is seen in part, the kernel asks the rule again, pair by pair.
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

    from recallkit.kernels.masked_attention.rule import Sees

BLOCK = 128
"""Queries and keys of a block, as FlexAttention has them."""

MOST_PAIRS = 1 << 26
"""Pairs of a strip that the rule is asked for at once: 512 MB for each int64 number that it computes of a pair."""

MOST_TABLES = 32
"""Rules, lengths and devices whose tables are kept, the latest used. At 32k tokens a table has 2 MB a head."""

MOST_VARIANTS = 256
"""Kernels that may be compiled, by pattern, type and width. Beyond them a call raises: the way back would be t x t scores in memory."""

_NO_NUMBERS: Mapping[str, int] = MappingProxyType({})

_tables: OrderedDict[Hashable, BlockMask] = OrderedDict()


def masked_attention_triton(
    q: Tensor, k: Tensor, v: Tensor, sees: Sees, by_head: bool, key: Hashable, numbers: Mapping[str, int] = _NO_NUMBERS
) -> Tensor:
    """Shapes as in `masked_attention`."""
    table = kept_block_mask(sees, by_head, key, q.shape[1], q.shape[2], q.device, numbers)
    with torch._dynamo.config.patch(recompile_limit=MOST_VARIANTS):
        out: Tensor = _compiled()(q, k, v, block_mask=table)
    return out


def kept_block_mask(
    sees: Sees, by_head: bool, key: Hashable, num_heads: int, t: int, device: torch.device, numbers: Mapping[str, int] = _NO_NUMBERS
) -> BlockMask:
    """The table of a rule, from those kept where it is there; `key` None is never kept."""

    def make() -> BlockMask:
        # The compiler would make a constant of a first number and of a second one a variable, in code that does not expect it.
        tensors = {name: torch.tensor(number, device=device) for name, number in numbers.items()}
        return block_mask(functools.partial(sees, **tensors) if tensors else sees, by_head, num_heads, t, device)

    if key is None:
        return make()
    full_key = (key, *sorted(numbers.items()), num_heads, t, device)
    if full_key not in _tables:
        _tables[full_key] = make()
        if len(_tables) > MOST_TABLES:
            _tables.popitem(last=False)
    _tables.move_to_end(full_key)
    return _tables[full_key]


def block_mask(sees: Sees, by_head: bool, num_heads: int, t: int, device: torch.device) -> BlockMask:
    """Which blocks of a text of t tokens the kernel visits, and which of them without asking the rule; one table where heads agree."""
    from torch.nn.attention.flex_attention import BlockMask

    # A table that is kept must serve outside of inference mode, too.
    with torch.inference_mode(False), torch.no_grad():
        seen = pairs_in_blocks(sees, by_head, num_heads, t, device)[None]
        full = seen == BLOCK * BLOCK
        some = (seen > 0) & ~full
        tables = (*_listed(some), *_listed(full))
        return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=BLOCK, mask_mod=as_mask_mod(sees, by_head), seq_lengths=(t, t))


def pairs_in_blocks(sees: Sees, by_head: bool, num_heads: int, t: int, device: torch.device) -> Tensor:
    """How many pairs are seen in each block, (1 or h, blocks, blocks) int64. What is beyond the text is not seen."""
    keys = torch.arange(t, device=device)
    heads = [torch.arange(num_heads, device=device).view(-1, 1, 1)] if by_head else []
    table_heads = num_heads if by_head else 1
    strip = max(1, MOST_PAIRS // (table_heads * t * BLOCK)) * BLOCK
    counted = []
    for start in range(0, t, strip):
        queries = keys[start : start + strip]
        seen = sees(queries[:, None], keys[None, :], *heads)
        seen = seen.expand(torch.broadcast_shapes(seen.shape, (1, len(queries), t)))
        if seen.shape[0] not in (1, table_heads):
            raise ValueError(f"masked_attention: a rule that differs by head must be asked by_head, and not make {len(seen)} heads itself")
        seen = F.pad(seen, (0, -t % BLOCK, 0, -len(queries) % BLOCK))
        counted.append(seen.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK)).sum((2, 4)))
    return torch.cat(counted, 1)


def as_mask_mod(sees: Sees, by_head: bool) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The rule in the form that FlexAttention asks: for one pair of one head, all scalars.

    Scalars must come out of it, too: an axis of heads inside, indexed with the head, compiles to a kernel whose results are wrong.
    """

    # The kernel has its places in 32 bits, which the hashes of a rule would overflow.
    def mask_mod(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(query.long(), key.long())

    def mask_mod_by_head(_row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(query.long(), key.long(), head.long())

    return mask_mod_by_head if by_head else mask_mod


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """blocks: (1, h, n, n) bool -> how many are set in a row, and their columns, those first that are set; int32."""
    return blocks.sum(-1, dtype=torch.int32), blocks.to(torch.uint8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)


@functools.cache
def _compiled() -> Any:
    """FlexAttention, compiled; `fullgraph` makes a call raise where it cannot be."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)
