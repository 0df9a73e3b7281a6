"""The rule of `masked_attention`: which keys a query sees."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Sees = Callable[..., Tensor]
"""Positions of queries and keys (and heads, with `by_head`), int64 tensors that broadcast -> bool,
on their device."""
