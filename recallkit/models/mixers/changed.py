"""A mixer whose outputs pass through a function on their way out; its state is the mixer's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.models.mixers.api import Mixer, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class ChangedMixer(Mixer):
    """`change` of every output of `mixer`, in each of its forms; (..., d) -> (..., d)."""

    def __init__(self, mixer: Mixer, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(mixer.d_model)
        self.mixer, self.change = mixer, change
        self.max_length = mixer.max_length

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.forward`."""
        return self.change(self.mixer(u, ids))

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`."""
        return self.change(self.mixer.reference(u, ids))

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`."""
        return self.mixer.initial_state(batch)

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.step`."""
        y, after = self.mixer.step(u, state, ids)
        return self.change(y), after

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`."""
        y, after = self.mixer.read(u, state, ids)
        return self.change(y), after

    def state_size(self, t: int) -> int:
        """See `Mixer.state_size`."""
        return self.mixer.state_size(t)

    def flops(self, t: int) -> int:
        """See `Mixer.flops`."""
        return self.mixer.flops(t)

    def auxiliary_loss(self) -> Tensor | None:
        """See `Mixer.auxiliary_loss`."""
        return self.mixer.auxiliary_loss()
