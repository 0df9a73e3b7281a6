"""The interface of sequence mixers: a map of a sequence, causal after a prefix, in parallel or
token by token, and its cost."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.long_conv.torch_impl import DIRECT_TAPS, transform_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from recallkit.kernels.choice import Impl

State = dict[str, "Tensor"]
"""The state of a mixer after the tokens so far: tensors with the batch first, to join and select
rows; taps of filters have no batch.

A tensor that grows with the tokens grows along one axis, the latest last; shorter rows have zeros
at the left.
"""

ACCUMULATED = ("kv", "k", "scan", "poles", "numerator", "denominator")
"""What mixers call the tensors of a state in which they add up what they have read; the others are
inputs, keys and positions."""


class Mixer(nn.Module):
    """A sequence mixer (b, t, d) -> (b, t, d): output i depends on inputs 0..i of its own row, and
    on those of `prefix`, alone.

    `forward` is the fast implementation, `reference` the readable one, `step` the recurrent one:
    all three give the same values.
    """

    needs_ids: ClassVar[bool] = False
    """Whether the mixer also depends on the token ids (to find repeated tokens): they are then
    passed as `ids`."""
    max_length: int | None = None
    """Longest sequence, where a filter has that length; None where there is no limit."""
    prefix: int = 0
    """Of what is read first, the tokens that also see what follows them among these: none in a
    causal mixer."""
    chunk: int
    """Of linear attentions: tokens per chunk, which are compared pair by pair; earlier ones act
    through the state."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """u: (b, t, d), ids: (b, t) int64 -> (b, t, d), at once for all t."""
        return self.read(u, self.initial_state(len(u)), ids)[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """The same, written like the equation, in the precision of `u` and the parameters."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> State:
        """The state before the first token."""
        raise NotImplementedError

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """u: (b, d), the next token of each row, ids: (b,) -> its output (b, d) and a new state;
        `state` is unchanged."""
        y, state = self.read(u.unsqueeze(1), state, None if ids is None else ids.unsqueeze(1))
        return y.squeeze(1), state

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """u: (b, t, d), the next t >= 1 tokens of each row -> their outputs (b, t, d) and a new
        state; `state` is unchanged."""
        raise NotImplementedError

    def state_size(self, t: int) -> int:
        """Elements of the state of one sequence after t tokens, as the papers count them.

        The last few inputs that a short convolution before a mixer keeps are not counted: Zoology's
        code counts only a mixer's own state. Where the convolution is the mixer (`base_conv`,
        `gated_short_conv`) it is that state.
        """
        raise NotImplementedError

    def flops(self, t: int) -> int:
        """Floating-point operations of `forward` on one sequence of t tokens: a multiplication and
        an addition count as two.

        A comparison, division, exponential, logarithm, root or sine counts as one; so a sigmoid or
        silu is four, a softplus three, and a gelu is taken as eight, like a layer norm per entry.
        What depends on parameters alone is not counted, except filters.
        """
        # Not by `torch.utils.flop_counter`: it counts products of matrices alone, those of masked
        # pairs too, and neither transforms nor what is done to each entry. Of 2,048 tokens of width
        # 128 it agrees with none of our mixers, within 2 % with eight of 32, and is between 0.2 of
        # ours (attention on a CPU, whose kernel it does not know) and 1.9 of it (all pairs).
        raise NotImplementedError

    def auxiliary_loss(self) -> Tensor | None:
        """What the last `forward` adds to the training loss (a scalar), for mixers that learn a
        selection; else None."""
        return None


class Recurrence(Mixer):
    """A mixer that is one map of inputs and a state, `mix`, by a kernel that has a reference.

    An empty state is the initial one.
    """

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self.mix(u, {})[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        return self.mix(u, {}, "reference")[0]

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        return self.mix(u, state)

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """As `Mixer.read`, by an implementation of the kernel."""
        raise NotImplementedError


class HeadRecurrence(Recurrence):
    """Heads whose state is a matrix S (k, v) each: `kv` (b, h, k, v), k = `key_dim`."""

    out_proj: nn.Linear

    def __init__(self, d_model: int, num_heads: int, widths: tuple[int, int]) -> None:
        """`widths`: those of the keys and of the values of all heads, see `head_widths`."""
        super().__init__(d_model)
        self.num_heads = num_heads
        self.key_dim, self.value_dim = (width // num_heads for width in widths)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, k, v) as `kv`."""
        weight = widened(self.out_proj.weight)
        return {"kv": weight.new_zeros(batch, self.num_heads, self.key_dim, self.value_dim)}

    def state_size(self, t: int) -> int:
        """S of every head, as Zoology's code counts it; for all t."""
        return self.num_heads * self.key_dim * self.value_dim

    def by_head(self, x: Tensor) -> Tensor:
        """(b, t, h width) -> (b, h, t, width)."""
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2)


def widened(u: Tensor) -> Tensor:
    """The tensor in float32 where it is narrower, else unchanged: sums, decays and states are
    computed in this precision."""
    return u.to(torch.promote_types(u.dtype, torch.float32))


def rms_normed(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """norm(x), in float32 or wider."""
    wide = widened(x)
    shape = list(norm.normalized_shape)
    return functional.rms_norm(wide, shape, norm.weight.to(wide.dtype), norm.eps)


def extended(state: State, latest: State, dim: int) -> State:
    """The entries of `latest`, each behind what the state has of it along an axis, in its type."""
    return {
        # The state is wider than the inputs.
        name: torch.cat([state[name], x.to(state[name].dtype)], dim=dim)
        for name, x in latest.items()
    }


def constant_taps(module: nn.Module, compute: Callable[[int], Tensor], t: int) -> Tensor:
    """compute(t), taps (channels, t) that depend on the module's parameters alone: those of the
    last call where these are the same.

    They are computed each time where gradients are enabled, in what torch compiles, and in a CUDA
    graph, whose memory they would be.
    """
    tensors = [*module.parameters(), *module.buffers()]
    is_captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    is_recorded = is_captured or torch.compiler.is_compiling()
    if torch.is_grad_enabled() or is_recorded or any(tensor.is_inference() for tensor in tensors):
        return compute(t)
    versions = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    latest = module.__dict__.get("latest_taps")
    # The parameters themselves are part of the record: as long as they exist, no other tensor has
    # their address.
    if latest is None or latest[:2] != (t, versions) or not _are(latest[2], tensors):
        with torch.inference_mode(False), torch.no_grad():
            latest = module.__dict__["latest_taps"] = (t, versions, tensors, compute(t))
    taps: Tensor = latest[3]
    return taps


def check_positive(**sizes: int) -> None:
    """Raises ValueError for a size that is not at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}, not a positive integer")


def _are(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether they are the same objects."""
    return all(map(operator.is_, some, others))


def head_widths(
    d_model: int,
    num_heads: int,
    key_factor: float,
    value_factor: float,
) -> tuple[int, int]:
    """The widths of the keys and of the values of all heads, as shares of d. Raises ValueError
    where the heads do not divide them."""
    key_width, value_width = int(d_model * key_factor), int(d_model * value_factor)
    if num_heads < 1 or any(width < 1 or width % num_heads for width in (key_width, value_width)):
        widths = f"widths of {key_width} (keys) and {value_width} (values)"
        raise ValueError(f"num_heads {num_heads} does not divide {widths}")
    return key_width, value_width


def chunk_sizes(t: int, chunk: int) -> list[int]:
    """The lengths of the chunks, at most `chunk` each, of t tokens: 10 in chunks of 4: 4, 4, 2."""
    return [min(chunk, t - start) for start in range(0, t, chunk)]


def chunk_pairs(t: int, chunk: int) -> int:
    """Pairs of a token and itself or an earlier one of its chunk: 10 in chunks of 4: 10 + 10 +
    3."""
    return sum(size * (size + 1) // 2 for size in chunk_sizes(t, chunk))


def doublings(t: int, chunk: int) -> int:
    """How often blocks of one token are doubled until they are a chunk of t tokens, see
    `kernels.recurrences.chunks.weigh_pairs`."""
    return (min(chunk, 1 << (t - 1).bit_length()) - 1).bit_length()


def gated_flops(mixer: HeadRecurrence, t: int) -> int:
    """Operations of a head whose keys decay: each chunk's pairs, two products with S and its decay.

    Each doubling of a block multiplies q or k of every token by decays, see
    `kernels.recurrences.chunks.weigh_pairs`.
    """
    keys, values = mixer.key_dim, mixer.value_dim
    tokens = t * keys * (doublings(t, mixer.chunk) + 4 * values)
    pairs = chunk_pairs(t, mixer.chunk) * 2 * (keys + values)
    return tokens + pairs + len(chunk_sizes(t, mixer.chunk)) * keys * (2 * values + 1)


def linear_flops(t: int, *layers: nn.Linear) -> int:
    """Operations of linear layers applied to each of t tokens: two for each weight, one for each
    bias."""
    weights = sum(layer.weight.numel() for layer in layers)
    biases = sum(layer.out_features for layer in layers if layer.bias is not None)
    return t * (2 * weights + biases)


def conv_flops(t: int, taps: int, channels: int) -> int:
    """Operations of a causal convolution of one sequence on a CPU, direct or by FFT as in
    `kernels/long_conv/torch_impl.py`.

    Two per tap, or two transforms of 5 n log2 n and a product of spectra. The filters' own
    transform is included: it is computed in each forward pass, once for the batch.
    """
    taps = min(taps, t)
    if taps <= DIRECT_TAPS:
        return 2 * taps * t * channels
    n = transform_length(t, taps)
    return channels * math.ceil(3 * 5 * n * math.log2(n) + 6 * (n // 2 + 1))


def applied(layer: nn.Module, x: Tensor, **options: Any) -> Tensor:
    """layer(x), with its type: torch declares the result of calling a module as Any."""
    y: Tensor = layer(x, **options)
    return y
