"""What is done to a model's state between chunks, whatever the model: `TorchModel.compress` finds the caches and states for it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from recallkit.models.cache_policies import CachePolicy

MOST_READING = 1e-4
"""Nats by which the NLL of any token may differ where text is read in chunks with nothing compressed, in float32 or wider."""


class Compression:
    """What becomes of caches (`policy`; or `made`, a user's own cache or context) and of recurrent states (`rounding`).

    Every `chunk` ids, or with `once` after the first so many alone. `shown`: what messages call it. `saved`: bytes of one row by which
    what is stored is smaller than the state's tensors; `changed`: which of "cache" and "state" were compressed, both since `begin`.
    `has_effect`: whether anything ever was. `exact`: nothing is, but text is read in the same chunks.
    """

    exact = has_effect = False

    def __init__(
        self,
        policy: CachePolicy | None,
        rounding: str | None,
        chunk: int,
        once: int | None,
        shown: str,
        made: Callable[[], Any] | None = None,
    ) -> None:
        self.policy, self.rounding, self.chunk, self.once, self.shown, self.made = policy, rounding, chunk, once, shown, made
        self.begin()

    def begin(self) -> None:
        """Counts from here."""
        self.saved, self.changed = 0, set[str]()

    def without_effect(self) -> Compression:
        """The same chunks with nothing compressed."""
        other = copy.copy(self)
        other.exact = True
        return other

    @property
    def should_change(self) -> bool:
        """Whether it is known to change long texts: everything but `full`, and but what a user's own code does."""
        from recallkit.models.cache_policies import Full

        return self.rounding is not None or not (self.policy is None or isinstance(self.policy, Full))

    def is_due(self, since: int, seen: int) -> bool:
        """Whether the state is compressed after `seen` ids, `since` of which are exact."""
        return seen == self.once if self.once else since >= self.chunk

    def keep(self, keys: Tensor, values: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        """What later queries see of keys and values (b, h, t, d) after `seen` ids; all where no cache is compressed."""
        if self.policy is None or self.exact:
            return keys, values
        from recallkit.models.rounding import row_bytes

        kept = self.policy.keep(keys, values, seen)
        self.has_effect |= kept.num_bytes < row_bytes(keys, values)
        self.saved += row_bytes(kept.keys, kept.values) - kept.num_bytes
        self.changed.add("cache")
        return kept.keys, kept.values

    def round(self, state: Tensor) -> Tensor:
        """A recurrent state (b, ...) as it would be stored; the same where no state is rounded."""
        if self.rounding is None or self.exact:
            return state
        from recallkit.models.rounding import round_state, row_bytes

        rounded, num_bytes = round_state(state, self.rounding)
        if self.once is None:  # else what follows writes an exact state
            self.saved += row_bytes(rounded) - num_bytes
        self.has_effect = True
        self.changed.add("state")
        return rounded
