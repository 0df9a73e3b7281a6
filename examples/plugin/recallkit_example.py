"""One of each kind of plug-in, as small as it can be. Each is named recallkit-example.NAME (NAME is
in pyproject.toml)."""

import torch

from recallkit.models.mixers.api import Mixer
from recallkit.synthetic.tasks import NOT_ASKED, Examples

NEARBY = "repeated AND distance <= 32"
"""A slice: a condition on the columns of tokens.parquet (docs/slices.md)."""


def uniform(request):
    """A model: gives every entry of the vocabulary the same probability (docs/models.md on
    FILE.py:FUNCTION)."""
    return lambda ids: torch.zeros(*ids.shape, request.vocab_size)


class Mean(Mixer):
    """A mixer: y[i] is the mean of u[0..i]. A layer with it: {mixer = "recallkit-example.mean"}
    (docs/train.md)."""

    def reference(self, u, ids=None):
        return torch.stack([u[:, : i + 1].mean(1) for i in range(u.shape[1])], dim=1)

    def initial_state(self, batch):
        return {"sum": torch.zeros(batch, self.d_model), "num_read": torch.zeros(batch)}

    def read(self, u, state, ids=None):
        sums = state["sum"].to(u)[:, None] + u.cumsum(1)
        seen = state["num_read"].to(u)[:, None] + torch.arange(1, u.shape[1] + 1).to(u)
        return sums / seen[:, :, None], {"sum": sums[:, -1], "num_read": seen[:, -1]}

    def state_size(self, t):
        return self.d_model + 1

    def flops(self, t):
        return 2 * t * self.d_model


def last(num, length, pairs, vocab, generator):
    """A task: the last id is asked for, which is also the first (docs/mqar.md). `pairs` does
    nothing."""
    ids = torch.randint(vocab, (num, length), generator=generator)
    targets, distances = torch.full_like(ids, NOT_ASKED), torch.zeros_like(ids)
    targets[:, -1], distances[:, -1] = ids[:, 0], length - 1
    return Examples(ids, targets, distances)


def halved(model):
    """A cache: keys and values of every other id are zeros (docs/models.md on
    cache=FILE.py:FUNCTION)."""
    from transformers import DynamicCache

    class Halved(DynamicCache):
        def update(self, key_states, value_states, layer_idx, *args, **kwargs):
            keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
            return keys * self.kept(keys), values * self.kept(values)

        def kept(self, states):
            return (torch.arange(states.shape[-2]) % 2 == 0).to(states)[:, None]

    return Halved(config=model.config)
