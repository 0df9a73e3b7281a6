"""LongConv: one long convolution for each channel, then a projection; Zoology's "Long Conv"
baseline, which has no gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import Mixer, State, applied, linear_flops
from recallkit.models.mixers.filters import ExplicitFilter, FilterConv

if TYPE_CHECKING:
    from torch import Tensor


class LongConv(Mixer):
    """y = glu(out_proj(gelu(h conv u + D u))), glu([a, b]) = a sigmoid(b)  (arXiv 2302.06646,
    section 3; safari's `LongConv`).

    The taps of the filter h are parameters, soft-thresholded by `squash`, see `ExplicitFilter`.
    """

    def __init__(self, d_model: int, *, max_length: int = 2048, squash: float = 0.0) -> None:
        super().__init__(d_model)
        self.max_length = max_length
        self.conv = FilterConv(ExplicitFilter(d_model, max_length, squash=squash), skip=True)
        self.out_proj = nn.Linear(d_model, 2 * d_model)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.forward`. Raises ValueError for more tokens than `max_length`."""
        return self._projected(self.conv(u))

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self._projected(self.conv.reference(u))

    def initial_state(self, batch: int) -> State:
        """That of the convolution, see `FilterConv`."""
        return self.conv.initial_state(batch)

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        mixed, after = self.conv.read(u, state)
        return self._projected(mixed), after

    def state_size(self, t: int) -> int:
        """The inputs, d t, as Zoology's code counts a long convolution."""
        return self.d_model * t

    def flops(self, t: int) -> int:
        """Of our forward: convolution, eight for each gelu, projection, five for each gate of the
        glu."""
        return self.conv.flops(t) + linear_flops(t, self.out_proj) + 13 * t * self.d_model

    def _projected(self, mixed: Tensor) -> Tensor:
        return functional.glu(applied(self.out_proj, functional.gelu(mixed)), dim=-1)
