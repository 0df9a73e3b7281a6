"""Times each operation of `recallkit.kernels` beside its peers: PyTorch's own, the formula as it is
usually written, public libraries.

    python tests/benchmarks/kernels.py
    python tests/benchmarks/kernels.py token_nll taylor_attention --device cuda --repeats 15

Each implementation's time is the median of samples taken in turn with the others', of so many calls
that a sample takes 20 ms or more (50 on CPU). On a GPU inputs go through copies that exceed its
second-level cache three times, and single steps of decoding are replayed from a graph. Rates are of
the least work; shares are of a large copy or a large matrix product measured in the same run; above
1 in `x ours`, recallkit is faster. It needs torch and numpy, triton on a GPU; fla, liger-kernel and
cut-cross-entropy are timed where they are installed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.kernels.linear_scan import api as linear_scans
from recallkit.kernels.long_conv import api as long_convs
from recallkit.kernels.lookup_attention import api as lookups
from recallkit.kernels.masked_attention import api as masks
from recallkit.kernels.recurrences import api as recurrences
from recallkit.kernels.rwkv4 import api as rwkv4
from recallkit.kernels.selective_scan import api as selective_scans
from recallkit.kernels.short_conv import api as short_convs
from recallkit.kernels.taylor_attention import api as taylor
from recallkit.kernels.taylor_attention.state import TaylorState
from recallkit.kernels.token_nll import api as token_nlls
from recallkit.kernels.window_attention import api as windows
from recallkit.kernels.window_attention.state import WindowState
from tests.benchmarks import harness
from tests.benchmarks.harness import Timing

MOST_COPIES, REPLAYS = 16, 32


@dataclass(frozen=True)
class Setting:
    """The device and the precision of operations."""

    device: torch.device
    dtype: torch.dtype

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def heads(self) -> int:
        return 16 if self.on_gpu else 4

    def normal(self, *shapes: tuple[int, ...], dtype: torch.dtype | None = None) -> list[Tensor]:
        """Standard normal numbers, a tensor for each shape."""
        return [torch.randn(shape, device=self.device).to(dtype or self.dtype) for shape in shapes]

    def decays(self, *shape: int) -> Tensor:
        """Logarithms of decays, near zero as in trained models."""
        return -torch.rand(shape, device=self.device) / 16

    def ours(self, run: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        """The implementation that `auto` takes on the device and, on a GPU, also PyTorch's."""
        names = ("triton", "torch") if self.on_gpu else ("torch",)
        return {f"recallkit ({impl})": partial(run, impl=impl) for impl in names}

    def on_gpu_only(self, **runs: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        return {name.replace("_", " "): run for name, run in runs.items()} if self.on_gpu else {}


class Case(NamedTuple):
    """An operation at one size: its inputs, its implementations (ours first), and the least
    work."""

    make: Callable[[], Sequence[Tensor]]
    runs: dict[str, Callable[..., Any]]
    elements: float
    """Least elements read and written, of the setting's precision; a step's states are float32."""
    flops: float = 0.0
    """Arithmetic operations that every implementation needs; 0 where memory traffic is the
    bound."""
    is_step: bool = False
    """Whether it is so short that a GPU replays it from a graph, so that the GPU is timed and not
    Python."""


# ----------------------------------------------------------------------------------------------- operations and their peers


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch's softmax attention, causal or with a mask (FlashAttention on a GPU in half
    precision); all (b, h, t, k)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


def token_nll(setting: Setting, n: int, d: int, vocab: int) -> Case:
    def eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        logits = (hidden @ weight.T).float()
        rank = (logits > logits.gather(1, targets[:, None])).sum(1)
        return F.cross_entropy(logits, targets, reduction="none"), logits.argmax(1), rank

    def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Any:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        return LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden, targets)

    def cut(hidden: Tensor, weight: Tensor, targets: Tensor) -> Any:
        from cut_cross_entropy import linear_cross_entropy

        return linear_cross_entropy(hidden, weight, targets, reduction="none")

    def make() -> Sequence[Tensor]:
        hidden, weight = setting.normal((n, d), (vocab, d))
        return hidden, weight / d**0.5, torch.randint(vocab, (n,), device=setting.device)

    peers = {"eager PyTorch": eager, **setting.on_gpu_only(liger=liger, cut_cross_entropy=cut)}
    return Case(
        make,
        {**setting.ours(token_nlls.token_nll), **peers},
        n * d + vocab * d,
        2.0 * n * d * vocab,
    )


def taylor_features(x: Tensor) -> Tensor:
    """[1, x / f^(1/4), x x^T / sqrt(2 f)]: all 1 + f + f^2 features, as listed in papers."""
    f = x.shape[-1]
    products = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat(
        [torch.ones_like(x[..., :1]), x / f**0.25, products / math.sqrt(2 * f)], dim=-1
    )


def taylor_attention(setting: Setting, b: int, n: int) -> Case:
    h, f, v = setting.heads, 16, 64

    def ours(q: Tensor, k: Tensor, v: Tensor, *_: Tensor, impl: Any) -> Any:
        return taylor.taylor_attention(q, k, v, impl=impl, final_state=False)

    def wide(_q: Tensor, _k: Tensor, v: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Heads as wide as its values, as attention has."""
        return sdpa(q, k, v)

    def parallel_based(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Any:
        from fla.ops.based import parallel_based

        return parallel_based(*(x.transpose(1, 2) for x in (q, k, v)))  # (b, t, h, k)

    runs = {
        **setting.ours(ours),
        "SDPA": wide,
        **setting.on_gpu_only(fla_parallel_based=parallel_based),
    }
    make = partial(setting.normal, *((b, h, n, f),) * 2, *((b, h, n, v),) * 3)
    return Case(make, runs, 2.0 * b * h * n * (f + v))


def taylor_attention_step(setting: Setting, b: int) -> Case:
    h, f, v = 16, 16, 64

    def ours(
        q: Tensor, k: Tensor, v: Tensor, kv: Tensor, sums: Tensor, *_: Tensor, impl: Any
    ) -> Any:
        return taylor.taylor_attention_step(q, k, v, TaylorState(kv, sums), impl=impl)

    def listed(
        q: Tensor, k: Tensor, v: Tensor, _kv: Tensor, _sums: Tensor, kv: Tensor, sums: Tensor
    ) -> tuple[Tensor, ...]:
        q, k = taylor_features(q), taylor_features(k)
        kv, sums = kv + k[..., None, :] * v[..., None], sums + k
        return (q[..., None, :] * kv).sum(-1) / ((q * sums).sum(-1, keepdim=True) + 1e-12), kv, sums

    def make() -> Sequence[Tensor]:
        """The next token, with the states of both implementations after the 16 before it."""
        keys, values = setting.normal((b, h, 16, f), (b, h, 16, v), dtype=torch.float32)
        _, state = taylor.taylor_attention(keys, keys, values)
        features = taylor_features(keys)
        listed_state = values.transpose(-1, -2) @ features, features.sum(2)
        return *setting.normal((b, h, f), (b, h, f), (b, h, v)), *state, *listed_state

    num_bytes = 2 * 4.0 * b * h * (1 + f + f * (f + 1) // 2) * (v + 1)
    runs = {**setting.ours(ours), "as listed": listed}
    return Case(make, runs, num_bytes / setting.dtype.itemsize, is_step=True)


def window_attention(setting: Setting, b: int, n: int) -> Case:
    h, k, window = setting.heads, 64, 128 if setting.on_gpu else 64
    runs = {**setting.ours(partial(_window, window)), "SDPA": sdpa}
    make = partial(setting.normal, *((b, h, n, k),) * 3)
    return Case(make, runs, 4.0 * b * h * n * k, 4.0 * b * h * n * window * k)


def _window(window: int, q: Tensor, k: Tensor, v: Tensor, *, impl: Any) -> Any:
    return windows.window_attention(q, k, v, window, impl=impl)


def window_attention_step(setting: Setting, b: int, window: int) -> Case:
    h, k, position = 16, 64, 1000

    def ours(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        positions: Tensor,
        *_: Tensor,
        impl: Any,
    ) -> Any:
        state = WindowState(keys, values, positions)
        return windows.window_attention_step(q, k, v, state, rope_width=64, inplace=True, impl=impl)

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, y = x.chunk(2, dim=-1)
        return torch.cat([x * cos - y * sin, y * cos + x * sin], dim=-1)

    def ring(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        _: Tensor,
        slot: Tensor,
        *turn: Tensor,
    ) -> Tensor:
        """Rotation, index_copy into the rings (b, h, w, k), attention."""
        keys.index_copy_(2, slot, rotated(k, *turn)[:, :, None])
        values.index_copy_(2, slot, v[:, :, None])
        return F.scaled_dot_product_attention(rotated(q, *turn)[:, :, None], keys, values)

    def make() -> Sequence[Tensor]:
        slot = torch.tensor([position % window], device=setting.device)
        angles = position * 10000.0 ** (-torch.arange(k // 2, device=setting.device) / (k // 2))
        turn = angles.cos().to(setting.dtype), angles.sin().to(setting.dtype)
        positions = torch.full((b,), position, device=setting.device)
        return *setting.normal(*((b, h, k),) * 3, *((b, h, window, k),) * 2), positions, slot, *turn

    runs = {**setting.ours(ours), "SDPA and index_copy": ring}
    return Case(make, runs, 2.0 * b * h * window * k, is_step=True)


def masked_attention(setting: Setting, b: int, n: int) -> Case:
    h, k, stride = setting.heads, 64, 128 if setting.on_gpu else 64

    def sees(queries: Tensor, keys: Tensor) -> Tensor:
        """Sparse Transformers' fixed pattern: the query's own block, and the last token of every
        block."""
        return ((queries // stride == keys // stride) | ((keys + 1) % stride == 0)) & (
            keys <= queries
        )

    def ours(q: Tensor, k: Tensor, v: Tensor, _: Tensor, *, impl: Any) -> Any:
        return masks.masked_attention(q, k, v, sees, key=("benchmark", stride), impl=impl)

    def make() -> Sequence[Tensor]:
        places = torch.arange(n, device=setting.device)
        return *setting.normal(*((b, h, n, k),) * 3), sees(places[:, None], places)

    runs = {**setting.ours(ours), "SDPA with a mask": sdpa}
    return Case(make, runs, 4.0 * b * h * n * k, 4.0 * b * h * k * n * (stride + n / stride) / 2)


def lookup_attention(setting: Setting, b: int, n: int, most: int) -> Case:
    h, k = 16, 64

    def ours(*inputs: Tensor, impl: Any) -> Any:
        return lookups.lookup_attention(*inputs[:5], impl=impl)

    def masked(
        q: Tensor, k: Tensor, v: Tensor, _offsets: Tensor, _keys: Tensor, mask: Tensor
    ) -> Tensor:
        return sdpa(q, k, v, mask)

    def flex(q: Tensor, k: Tensor, v: Tensor, _offsets: Tensor, keys: Tensor, mask: Tensor) -> Any:
        key = ("benchmark", mask.shape, len(keys))
        return masks.masked_attention(q, k, v, lambda i, j: mask[i, j], key=key, impl="triton")

    def make() -> Sequence[Tensor]:
        """Each query sees `most` keys spread evenly up to it, or as many as there are."""
        counts = torch.arange(1, n + 1).clamp(max=most)
        queries = torch.repeat_interleave(torch.arange(n), counts)
        places = torch.arange(len(queries)) - torch.repeat_interleave(
            counts.cumsum(0) - counts, counts
        )
        keys = (places * (queries + 1)).div(counts[queries], rounding_mode="floor")
        mask = torch.zeros(n, n, dtype=torch.bool)
        mask[queries, keys] = True
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.repeat(b).cumsum(0)])
        lists = (x.to(setting.device) for x in (offsets, keys.repeat(b), mask))
        return *setting.normal(*((b, h, n, k),) * 3), *lists

    runs = {
        **setting.ours(ours),
        "SDPA with a mask": masked,
        **setting.on_gpu_only(FlexAttention=flex),
    }
    return Case(make, runs, 2.0 * b * h * n * k * (1 + most))


def long_conv(setting: Setting, b: int, n: int, c: int) -> Case:
    def fft(u: Tensor, filters: Tensor) -> Tensor:
        spectrum = (
            torch.fft.rfft(u.float(), n=2 * n, dim=1) * torch.fft.rfft(filters.float(), n=2 * n).T
        )
        return torch.fft.irfft(spectrum, n=2 * n, dim=1)[:, :n].to(u.dtype)

    def make() -> Sequence[Tensor]:
        (filters,) = setting.normal((c, n), dtype=torch.float32)
        return *setting.normal((b, n, c)), filters / n**0.5

    runs = {**setting.ours(partial(long_convs.long_conv, out_dtype=setting.dtype)), "FFT": fft}
    return Case(make, runs, 2.0 * b * n * c, 1.0 * b * n * n * c if setting.on_gpu else 0.0)


def selective_scan(setting: Setting, b: int, n: int, d: int) -> Case:
    state = 16

    def ours(*inputs: Tensor, impl: Any) -> Tensor:
        *scanned, gate, bias = inputs
        return selective_scans.selective_scan(
            *scanned, gate=gate, dt_bias=bias, dt_softplus=True, impl=impl
        )[0]

    def by_steps(
        x: Tensor,
        dt: Tensor,
        rates: Tensor,
        write: Tensor,
        read: Tensor,
        gate: Tensor,
        bias: Tensor,
    ) -> Tensor:
        dt = F.softplus(dt.float() + bias)
        h, outputs = x.new_zeros(*x.shape[1:], state, dtype=torch.float32), []
        for i in range(len(x)):
            h = (
                torch.exp(dt[i, :, :, None] * rates) * h
                + (dt[i] * x[i])[:, :, None] * write[i, :, None, :]
            )
            outputs.append((h * read[i, :, None, :]).sum(-1))
        return torch.stack(outputs) * F.silu(gate)

    def make() -> Sequence[Tensor]:
        rates = -torch.arange(1.0, state + 1, device=setting.device).repeat(d, 1)
        x, dt, gate, write, read = setting.normal(*[(n, b, d)] * 3, *[(n, b, state)] * 2)
        return x, dt, rates, write, read, gate, torch.full((d,), -4.0, device=setting.device)

    # Of x, dt, the gate and the output; on a GPU the 16 exponentials per element take longer than
    # these.
    return Case(make, {**setting.ours(ours), "step by step": by_steps}, 4.0 * b * n * d)


def short_conv(setting: Setting, b: int, n: int, c: int) -> Case:
    def ours(u: Tensor, taps: Tensor, gate: Tensor, *, impl: Any) -> Tensor:
        return short_convs.short_conv(u, taps, gate=gate, activation="silu", impl=impl)[0]

    def conv1d(u: Tensor, taps: Tensor, gate: Tensor) -> Tensor:
        mixed = F.conv1d(
            u.transpose(1, 2), taps[:, None], padding=taps.shape[1] - 1, groups=len(taps)
        )
        return F.silu(mixed[..., :n].transpose(1, 2)) * gate

    make = partial(setting.normal, (b, n, c), (c, 3), (b, n, c))
    return Case(make, {**setting.ours(ours), "conv1d": conv1d}, 3.0 * b * n * c)


def rwkv4_attention(setting: Setting, b: int, n: int, d: int) -> Case:
    def run(
        k: Tensor, v: Tensor, gate: Tensor, decay: Tensor, bonus: Tensor, *, impl: Any
    ) -> Tensor:
        return rwkv4.rwkv4_attention(k, v, decay, bonus, gate=gate, impl=impl)[0]

    def make() -> Sequence[Tensor]:
        decay = torch.exp(torch.linspace(-5, 3, d, device=setting.device))
        return *setting.normal(*((n, b, d),) * 3), decay, *setting.normal((d,), dtype=torch.float32)

    runs = {**setting.ours(run), "token by token": partial(run, impl="reference")}
    return Case(make, runs, 4.0 * b * n * d)


def linear_scan(setting: Setting, b: int, n: int, d: int) -> Case:
    def run(decay: Tensor, u: Tensor, *, impl: Any) -> Tensor:
        return linear_scans.linear_scan(decay, u, impl=impl)[0]

    def make() -> Sequence[Tensor]:
        return [part.sigmoid() for part in setting.normal((n, b, d), (n, b, d))]

    runs = {**setting.ours(run), "token by token": partial(run, impl="reference")}
    return Case(make, runs, 3.0 * b * n * d)


# Inputs of linear recurrences, of so many rows, steps and channels: q, k, v, then those of each.


def decayed(setting: Setting, rows: int, n: int, k: int) -> Sequence[Tensor]:
    return *setting.normal(*((rows, 1, n, k),) * 3), setting.decays(rows, 1, n)


def gated(setting: Setting, rows: int, n: int, k: int) -> Sequence[Tensor]:
    return *setting.normal(*((rows, 1, n, k),) * 3), setting.decays(rows, 1, n, k)


def delta(setting: Setting, rows: int, n: int, k: int) -> Sequence[Tensor]:
    """With a decay of each key channel, which takes the most work."""
    q, keys, v, decays = gated(setting, rows, n, k)
    return q, F.normalize(keys, dim=-1), v, torch.rand(rows, 1, n, device=setting.device), decays


def rwkv5(setting: Setting, rows: int, n: int, k: int) -> Sequence[Tensor]:
    return (
        *setting.normal(*((1, rows, n, k),) * 3),
        setting.decays(rows, k),
        *setting.normal((rows, k)),
    )


def rwkv7(setting: Setting, rows: int, n: int, k: int) -> Sequence[Tensor]:
    r, keys, v, read = setting.normal(*((rows, 1, n, k),) * 4)
    erase = F.normalize(read, dim=-1)
    return r, keys, v, erase, erase / 2, setting.decays(rows, 1, n, k)


RECURRENCES = {
    "decayed_attention": decayed,
    "gated_linear_attention": gated,
    "delta_rule": delta,
    "rwkv5_attention": rwkv5,
    "rwkv7_attention": rwkv7,
}


def recurrence(name: str, setting: Setting, b: int, n: int) -> Case:
    """A linear recurrence that flash-linear-attention has kernels for; without it ours is PyTorch's
    also on a GPU."""
    h, k = setting.heads, 64 if setting.on_gpu else 48

    def run(*inputs: Tensor, impl: Any) -> Tensor:
        result: Tensor = getattr(recurrences, name)(*inputs, impl=impl)[0]
        return result

    runs = setting.ours(run)
    if not find_spec("fla"):
        runs.pop("recallkit (triton)", None)
    if n <= 1024:
        runs["token by token"] = partial(run, impl="reference")
    return Case(partial(RECURRENCES[name], setting, b * h, n, k), runs, 4.0 * b * h * n * k)


Size = tuple[int, ...]
# Based's Figure 5: 512 to 32,768 tokens of 4 rows, 2 to 256 rows of 1,024 tokens.
_FIGURE_5: list[Size] = [
    *((4, 1 << k) for k in range(9, 16)),
    *((b, 1024) for b in (2, 8, 16, 32, 128, 256)),
]
# Its Figure 7 has 8 to 256 rows, and the median of four positions, at all of which the window is
# full.
_FIGURE_7: list[Size] = [(16, 64), (1, 64), *((b, 64) for b in (8, 64, 128, 256)), (16, 128)]
_WIDE: list[Size] = [(b, 2048, 2048) for b in (8, 1, 4, 32)]

OPERATIONS: dict[str, tuple[Callable[..., Case], str, list[Size], list[Size]]] = {
    "token_nll": (
        token_nll,
        "n d vocab",
        [(16384, 1024, 50257), (16384, 2048, 50257), (512, 1024, 50257)],
        [(512, 256, 4096), (512, 576, 49152)],
    ),
    "taylor_attention": (
        taylor_attention,
        "b n",
        [(16, 32768), *_FIGURE_5],
        [(1, 256), (1, 1024), (1, 4096)],
    ),
    # Based's Figure 6 has 16 to 256.
    "taylor_attention_step": (
        taylor_attention_step,
        "b",
        [(b,) for b in (64, 1, 16, 32, 128, 256)],
        [(8,), (1,), (32,)],
    ),
    "window_attention": (
        window_attention,
        "b n",
        [(4, 4096), (4, 1024), (4, 16384)],
        [(1, 256), (1, 1024), (1, 4096)],
    ),
    "window_attention_step": (
        window_attention_step,
        "b window",
        _FIGURE_7,
        [(8, 64), (1, 64), (32, 64)],
    ),
    "masked_attention": (masked_attention, "b n", [(4, 4096), (4, 8192)], [(1, 512)]),
    "lookup_attention": (
        lookup_attention,
        "b n keys",
        [(4, 4096, 16), (4, 4096, 4), (4, 4096, 64)],
        [(1, 512, 4), (1, 512, 16), (1, 2048, 4)],
    ),
    "long_conv": (
        long_conv,
        "b n c",
        [*((8, n, 1024) for n in (2048, 1024, 4096, 8192)), (1, 2048, 1024), (4, 2048, 1024)],
        [(1, 512, 128), (1, 2048, 128)],
    ),
    "selective_scan": (
        selective_scan,
        "b n d",
        [*_WIDE, (8, 512, 2048)],
        [(1, 128, 384), (4, 512, 384), (1, 2048, 1536)],
    ),
    "short_conv": (
        short_conv,
        "b n c",
        [(16, 2048, 2048), (16, 8192, 2048), *_WIDE[:3]],
        [(4, 256, 384), (4, 2048, 384)],
    ),
    "rwkv4_attention": (
        rwkv4_attention,
        "b n d",
        [*_WIDE, (8, 512, 2048)],
        [(1, 128, 384), (4, 512, 384)],
    ),
    "linear_scan": (
        linear_scan,
        "b n d",
        [(8, 2048, 2560), (1, 2048, 2560), (32, 2048, 2560)],
        [(1, 128, 384), (4, 512, 384)],
    ),
    **dict.fromkeys(
        RECURRENCES, (recurrence, "b n", [(8, 4096), (8, 1024), (8, 16384)], [(1, 256), (1, 1024)])
    ),
}
"""Name -> a function of the setting and a size, the size's names, sizes on a GPU and on CPU,
smallest first on CPU."""


def cases(name: str, setting: Setting) -> Iterator[tuple[dict[str, int], Case]]:
    """The sizes of an operation, each with its case."""
    case_of, letters, on_gpu, on_cpu = OPERATIONS[name]
    if name in RECURRENCES:
        case_of = partial(case_of, name)
    for size in on_gpu if setting.on_gpu else on_cpu:
        yield dict(zip(letters.split(), size, strict=True)), case_of(setting, *size)


# ------------------------------------------------------------------------------------------------------------- measuring


def time_in_turn(
    calls: dict[str, Callable[[int], Any]], device: torch.device, repeats: int
) -> dict[str, Timing]:
    """The time of each call by name, of samples in turn, so that other load on the machine affects
    all of them."""
    samples = harness.in_turn(
        calls, repeats, lambda name: harness.time_call(calls[name], device, repeats=1)
    )
    timings = {}
    for name, rows in samples.items():
        problem = next((sample.problem for sample in rows if sample.problem), None)
        timings[name] = (
            Timing(problem=problem) if problem else Timing(tuple(sample.median for sample in rows))
        )
    return timings


def ceilings(setting: Setting) -> dict[str, float]:
    """Bytes per second of a large copy (read and written), operations per second of a large square
    matrix product."""
    elements, side = (1 << 28, 8192) if setting.on_gpu else (1 << 23, 1024)
    (source,) = setting.normal((elements,), dtype=torch.float32)
    target = torch.empty_like(source)
    left, right = setting.normal((side, side), (side, side))
    calls = {"copy": lambda _: target.copy_(source), "matrix": lambda _: left @ right}
    times = time_in_turn(calls, setting.device, repeats=5)
    return {
        "B/s": 2 * source.nbytes / times["copy"].median,
        "FLOP/s": 2 * side**3 / times["matrix"].median,
    }


def copies_of(case: Case, setting: Setting) -> list[Sequence[Tensor]]:
    """Inputs that together exceed a GPU's second-level cache three times."""
    first = case.make()
    cache = (
        3 * torch.cuda.get_device_properties(setting.device).L2_cache_size if setting.on_gpu else 0
    )
    number = min(MOST_COPIES, 1 + cache // max(1, sum(x.nbytes for x in first)))
    return [first, *(case.make() for _ in range(number - 1))]


def measure(case: Case, setting: Setting, repeats: int) -> dict[str, Timing]:
    """Seconds of one call of each implementation."""
    replays = REPLAYS if case.is_step and setting.on_gpu else 1
    try:
        copies = copies_of(case, setting)
    except (
        MemoryError,
        RuntimeError,
    ) as error:  # inputs that do not fit must not lose what was measured
        return dict.fromkeys(case.runs, Timing(problem=harness.problem_of(error)))
    prepare = graphed if replays > 1 else partial(partial, call)
    with torch.inference_mode():
        calls = {name: prepare(run, copies) for name, run in case.runs.items()}
        timings = time_in_turn(calls, setting.device, repeats)
    for name, timing in timings.items():
        timings[name] = Timing(tuple(x / replays for x in timing.samples), timing.problem)
    return timings


def call(run: Callable[..., Any], copies: list[Sequence[Tensor]], i: int) -> Any:
    return run(*copies[i % len(copies)])


def graphed(run: Callable[..., Any], copies: list[Sequence[Tensor]]) -> Callable[[int], Any]:
    """A call that replays `REPLAYS` calls, recorded in a CUDA graph when it is first called."""
    recorded: list[torch.cuda.CUDAGraph] = []

    def replay(_: int) -> None:
        if not recorded:
            call(run, copies, 0)  # compiles before the recording
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(REPLAYS):
                    call(run, copies, i)
            recorded.append(graph)
        recorded[0].replay()

    return replay


def rounded(number: float, unit: str) -> str:
    """6.2e10, "FLOP/s" -> 62 GFLOP/s; 0.000123, "s" -> 123 us."""
    for size, prefix in (
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1, ""),
        (1e-3, "m"),
        (1e-6, "u"),
    ):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def print_rows(
    name: str, case: Case, timings: dict[str, Timing], setting: Setting, highest: dict[str, float]
) -> None:
    """Time, rate, its share of the copy rate or the matrix rate, and the time relative to ours, the
    first."""
    work = {"B/s": case.elements * setting.dtype.itemsize, "FLOP/s": case.flops}
    unit = max(work, key=lambda unit: work[unit] / highest[unit])
    ours = next(iter(timings.values())).median
    for who, timing in timings.items():
        rate = work[unit] / timing.median
        figures = [
            rounded(timing.median, "s"),
            rounded(rate, unit),
            f"{100 * rate / highest[unit]:.0f} %",
            f"{timing.median / ours:.2f}",
        ]
        cells = [timing.problem, "", "", ""] if timing.problem else figures
        print(harness.markdown([name, who, *cells]), flush=True)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    options = {
        "operations": [],
        "--device": "cuda" if on_gpu else "cpu",
        "--dtype": "",
        "--repeats": 5,
        "--quick": False,
    }
    args = harness.parse(__doc__, options, operations=OPERATIONS)
    device = torch.device(args.device)
    dtype = getattr(torch, args.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    setting = Setting(device, dtype)
    highest = ceilings(setting)
    print(json.dumps({**harness.describe_machine(device, dtype), **highest}))
    print(
        harness.markdown(
            ["operation", "implementation", "time", "rate", "share", "x ours"], is_header=True
        )
    )
    for name in args.operations or OPERATIONS:
        for size, case in cases(name, setting):
            label = " ".join(f"{letter}={value:,}" for letter, value in size.items())
            print_rows(
                f"{name} {label}", case, measure(case, setting, args.repeats), setting, highest
            )
            if args.quick:
                break


if __name__ == "__main__":
    main()
