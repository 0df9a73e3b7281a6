"""Times each operation of `recallkit.kernels` beside its peers: PyTorch's own, the formula as it is usually written, public libraries.

    python tests/benchmarks/kernels.py
    python tests/benchmarks/kernels.py --device cuda --json kernels.json --plot kernels.svg
    python tests/benchmarks/kernels.py token_nll taylor_attention --device cuda --repeats 15

Each implementation's time is the median of samples taken in turn with the others', of so many calls that a sample takes 20 ms
or more (50 on CPU). On a GPU time is between events, inputs go through copies that exceed its second-level cache three times,
and single steps of decoding are replayed from a graph. Rates are of the least work; shares are of a large copy or a large matrix
product measured in the same run; above 1 in `x ours`, recallkit is faster. It needs torch and numpy, triton on a GPU; fla,
liger-kernel and cut-cross-entropy are timed where they are installed, and --plot wants altair and vl-convert-python.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.harness import Timing, describe_machine, problem_of, time_call

COPY, MATRIX, MICROSECONDS = "of the copy rate", "of the matrix rate", "microseconds"
MOST_COPIES, REPLAYED = 16, 32


@dataclass(frozen=True)
class Setting:
    """The device and the precision of operations; `quick`: the smallest size of each."""

    device: torch.device
    dtype: torch.dtype
    quick: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def normal(self, *shapes: tuple[int, ...], dtype: torch.dtype | None = None) -> list[Tensor]:
        """Standard normal numbers, a tensor for each shape."""
        return [torch.randn(shape, device=self.device).to(dtype or self.dtype) for shape in shapes]

    def sizes(self, on_gpu: list[Any], on_cpu: list[Any]) -> list[Any]:
        chosen = on_gpu if self.on_gpu else on_cpu
        return chosen[:1] if self.quick else chosen

    def ours(self, run: Callable[..., Any], **options: Any) -> dict[str, Callable[..., Any]]:
        """The implementation that `auto` takes on the device and, on a GPU, also PyTorch's."""
        return {f"recallkit ({impl})": partial(run, impl=impl, **options) for impl in (("triton", "torch") if self.on_gpu else ("torch",))}

    def only_on_gpu(self, **runs: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        return {name.replace("_", " "): run for name, run in runs.items()} if self.on_gpu else {}


@dataclass(frozen=True)
class Case:
    """An operation at one size: its inputs, its implementations (ours first), and the least work."""

    size: dict[str, int]
    make: Callable[[], Sequence[Tensor]]
    runs: dict[str, Callable[..., Any]]
    num_bytes: float
    """Least bytes read and written."""
    flops: float = 0.0
    """Arithmetic operations that every implementation needs; 0 where memory traffic is the bound."""
    is_step: bool = False
    """Whether it is so short that a GPU replays it from a graph, so that the GPU is timed and not Python."""
    targets: dict[str, float] = field(default_factory=dict)
    """On a GPU: least speed relative to a peer by name, least share `COPY` or `MATRIX`, most `MICROSECONDS`."""


@dataclass(frozen=True)
class Row:
    """One implementation at one size."""

    operation: str
    size: dict[str, int]
    implementation: str
    timing: Timing
    rate: float = math.nan
    unit: str = ""
    share: float = math.nan
    ratio: float = math.nan
    """Its time relative to ours."""


OPERATIONS: dict[str, Callable[[Setting], Iterator[Case]]] = {}
"""Name -> its cases, smallest size first on CPU."""


def operation(cases: Callable[[Setting], Iterator[Case]]) -> Callable[[Setting], Iterator[Case]]:
    OPERATIONS[cases.__name__] = cases
    return cases


# ----------------------------------------------------------------------------------------------- operations and their peers


def sdpa(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    """PyTorch's causal softmax attention (FlashAttention on a GPU in half precision); all (b, h, t, k)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@operation
def token_nll(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.token_nll import api

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

    def make(n: int, d: int, vocab: int) -> Sequence[Tensor]:
        hidden, weight = setting.normal((n, d), (vocab, d))
        return hidden, weight / d**0.5, torch.randint(vocab, (n,), device=setting.device)

    for n, d, vocab in setting.sizes(
        [(16384, 1024, 50257), (16384, 2048, 50257), (512, 1024, 50257)], [(512, 256, 4096), (512, 576, 49152)]
    ):
        yield Case(
            {"n": n, "d": d, "vocab": vocab},
            partial(make, n, d, vocab),
            {**setting.ours(api.token_nll), "eager PyTorch": eager, **setting.only_on_gpu(liger=liger, cut_cross_entropy=cut)},
            setting.dtype.itemsize * (n * d + vocab * d),
            flops=2.0 * n * d * vocab,
            targets={MATRIX: 0.6, "cut cross entropy": 1.15, "liger": 1.5, "eager PyTorch": 2.0} if n > 512 else {},
        )


def taylor_features(x: Tensor) -> Tensor:
    """[1, x / f^(1/4), x x^T / sqrt(2 f)]: all 1 + f + f^2 features, as listed in papers."""
    f = x.shape[-1]
    products = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x / f**0.25, products / math.sqrt(2 * f)], dim=-1)


@operation
def taylor_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.taylor_attention import api

    def listed(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        q, k, v = taylor_features(q)[..., None, :], taylor_features(k)[..., None, :], v[..., None]
        return (q * (k * v).cumsum(2)).sum(-1) / ((q * k.cumsum(2)).sum(-1) + 1e-12)

    def fla_parallel_based(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Any:
        from fla.ops.based import parallel_based

        return parallel_based(*(x.transpose(1, 2) for x in (q, k, v)))  # (b, t, h, k)

    h, f, v = (16, 16, 64) if setting.on_gpu else (4, 16, 64)
    # On a GPU, behind the largest, Based's Figure 5: 512 to 32,768 tokens of 4 rows, 2 to 256 rows of 1,024 tokens.
    figure_5 = [*((4, 1 << k) for k in range(9, 16)), *((b, 1024) for b in (2, 8, 16, 32, 128, 256))]
    for b, n in setting.sizes([(16, 32768), *figure_5], [(1, 256), (1, 1024), (1, 4096)]):
        runs = setting.ours(lambda q, k, v, *_, impl: api.taylor_attention(q, k, v, impl=impl, final_state=False))
        runs["SDPA"] = lambda _q, _k, v, wide_q, wide_k: sdpa(wide_q, wide_k, v)  # heads as wide as its values, as attention has
        if b * h * n <= 1 << 14:  # the listing takes O(t f^2 v) of memory
            runs["cumulative sums, as listed"] = listed
        yield Case(
            {"b": b, "h": h, "n": n},
            partial(setting.normal, (b, h, n, f), (b, h, n, f), *((b, h, n, v),) * 3),
            {**runs, **setting.only_on_gpu(fla_parallel_based=fla_parallel_based)},
            2.0 * setting.dtype.itemsize * b * h * n * (f + v),
            # 40 % of the 149 ps per token and head that the memory traffic of three kernels takes.
            targets={
                MICROSECONDS: 373e-6 * b * h * n,
                **({"fla parallel based": 20.0} if n >= 32768 else {"SDPA": 1.0} if n <= 1024 else {}),
            },
        )


@operation
def taylor_attention_step(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.taylor_attention import api
    from recallkit.kernels.taylor_attention.state import TaylorState

    h, f, v = 16, 16, 64

    def ours(q: Tensor, k: Tensor, v: Tensor, kv: Tensor, sums: Tensor, *_: Tensor, impl: Any) -> Any:
        return api.taylor_attention_step(q, k, v, TaylorState(kv, sums), impl=impl)

    def listed(q: Tensor, k: Tensor, v: Tensor, _kv: Tensor, _sums: Tensor, kv: Tensor, sums: Tensor) -> tuple[Tensor, ...]:
        q, k = taylor_features(q), taylor_features(k)
        kv, sums = kv + k[..., None, :] * v[..., None], sums + k
        return (q[..., None, :] * kv).sum(-1) / ((q * sums).sum(-1, keepdim=True) + 1e-12), kv, sums

    def make(b: int) -> Sequence[Tensor]:
        """The next token, with the states of both implementations after the 16 before it."""
        keys, values = setting.normal((b, h, 16, f), (b, h, 16, v), dtype=torch.float32)
        _, state = api.taylor_attention(keys, keys, values)
        features = taylor_features(keys)
        return *setting.normal((b, h, f), (b, h, f), (b, h, v)), *state, values.transpose(-1, -2) @ features, features.sum(2)

    for b in setting.sizes([64, 1, 16, 32, 128, 256], [8, 1, 32]):  # Based's Figure 6 has 16 to 256
        yield Case(
            {"b": b, "h": h},
            partial(make, b),
            {**setting.ours(ours), "as listed": listed},
            2 * 4.0 * b * h * (1 + f + f * (f + 1) // 2) * (v + 1),
            is_step=True,
            targets={COPY: 0.7, "as listed": 4.0} if b >= 32 else {},
        )


@operation
def window_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.window_attention import api

    h, k, window = (16, 64, 128) if setting.on_gpu else (4, 64, 64)
    for b, n in setting.sizes([(4, 4096), (4, 1024), (4, 16384)], [(1, 256), (1, 1024), (1, 4096)]):
        yield Case(
            {"b": b, "h": h, "n": n, "window": window},
            partial(setting.normal, *((b, h, n, k),) * 3),
            {**setting.ours(lambda q, k, v, *, impl: api.window_attention(q, k, v, window, impl=impl)), "SDPA": sdpa},
            4.0 * setting.dtype.itemsize * b * h * n * k,
            flops=4.0 * b * h * n * window * k,
        )


@operation
def window_attention_step(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.window_attention import api
    from recallkit.kernels.window_attention.state import WindowState

    h, k, position = 16, 64, 1000

    def ours(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, positions: Tensor, *_: Tensor, impl: Any) -> Any:
        return api.window_attention_step(q, k, v, WindowState(keys, values, positions), rope_width=64, inplace=True, impl=impl)

    def ring(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, _: Tensor, slot: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotation, index_copy into the rings (b, h, w, k), attention."""
        q, k = (torch.cat([x * cos - y * sin, y * cos + x * sin], dim=-1) for x, y in (q.chunk(2, dim=-1), k.chunk(2, dim=-1)))
        keys.index_copy_(2, slot, k[:, :, None])
        values.index_copy_(2, slot, v[:, :, None])
        return F.scaled_dot_product_attention(q[:, :, None], keys, values)

    def make(b: int, window: int) -> Sequence[Tensor]:
        slot = torch.tensor([position % window], device=setting.device)
        angles = position * 10000.0 ** (-torch.arange(k // 2, device=setting.device) / (k // 2))
        turn = angles.cos().to(setting.dtype), angles.sin().to(setting.dtype)
        positions = torch.full((b,), position, device=setting.device)
        return *setting.normal(*((b, h, k),) * 3, *((b, h, window, k),) * 2), positions, slot, *turn

    # Based's Figure 7 has 8 to 256 rows, and the median of four positions, at all of which the window is full.
    for b, window in setting.sizes([(16, 64), (1, 64), *((b, 64) for b in (8, 64, 128, 256)), (16, 128)], [(8, 64), (1, 64), (32, 64)]):
        yield Case(
            {"b": b, "h": h, "window": window},
            partial(make, b, window),
            {**setting.ours(ours), "SDPA and index_copy": ring},
            2.0 * setting.dtype.itemsize * b * h * window * k,
            is_step=True,
            targets={"SDPA and index_copy": 2.0, **({MICROSECONDS: 4.0} if b <= 16 else {})},
        )


@operation
def masked_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.masked_attention import api

    h, k, stride = (16, 64, 128) if setting.on_gpu else (4, 64, 64)

    def sees(queries: Tensor, keys: Tensor) -> Tensor:
        """Sparse Transformers' fixed pattern: the query's own block, and the last token of every block."""
        return ((queries // stride == keys // stride) | ((keys + 1) % stride == 0)) & (keys <= queries)

    def make(b: int, n: int) -> Sequence[Tensor]:
        places = torch.arange(n, device=setting.device)
        return *setting.normal(*((b, h, n, k),) * 3), sees(places[:, None], places)

    for b, n in setting.sizes([(4, 4096), (4, 8192)], [(1, 512)]):
        yield Case(
            {"b": b, "h": h, "n": n, "stride": stride},
            partial(make, b, n),
            {
                **setting.ours(lambda q, k, v, _, *, impl: api.masked_attention(q, k, v, sees, key=("benchmark", stride), impl=impl)),
                "SDPA with a mask": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            },
            4.0 * setting.dtype.itemsize * b * h * n * k,
            flops=4.0 * b * h * k * n * (stride + n / stride) / 2,
        )


@operation
def lookup_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.lookup_attention import api
    from recallkit.kernels.masked_attention.api import masked_attention

    h, k = 16, 64

    def flex(q: Tensor, k: Tensor, v: Tensor, _offsets: Tensor, keys: Tensor, mask: Tensor) -> Any:
        return masked_attention(q, k, v, lambda i, j: mask[i, j], key=("benchmark", mask.shape, len(keys)), impl="triton")

    def make(b: int, n: int, most: int) -> Sequence[Tensor]:
        """Each query sees `most` keys spread evenly up to it, or as many as there are."""
        counts = torch.arange(1, n + 1).clamp(max=most)
        queries = torch.repeat_interleave(torch.arange(n), counts)
        places = torch.arange(len(queries)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        keys = (places * (queries + 1)).div(counts[queries], rounding_mode="floor")
        mask = torch.zeros(n, n, dtype=torch.bool)
        mask[queries, keys] = True
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.repeat(b).cumsum(0)])
        return *setting.normal(*((b, h, n, k),) * 3), *(x.to(setting.device) for x in (offsets, keys.repeat(b), mask))

    for b, n, most in setting.sizes([(4, 4096, 16), (4, 4096, 4), (4, 4096, 64)], [(1, 512, 4), (1, 512, 16), (1, 2048, 4)]):
        yield Case(
            {"b": b, "h": h, "n": n, "keys": most},
            partial(make, b, n, most),
            {
                **setting.ours(lambda *args, impl: api.lookup_attention(*args[:5], impl=impl)),
                "SDPA with a mask": lambda q, k, v, _offsets, _keys, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
                **setting.only_on_gpu(FlexAttention=flex),
            },
            2.0 * setting.dtype.itemsize * b * h * n * k * (1 + most),
            targets={"FlexAttention": 5.0} if most <= 16 else {},
        )


@operation
def long_conv(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.long_conv import api

    def fft(u: Tensor, filters: Tensor) -> Tensor:
        n = 2 * u.shape[1]
        spectrum = torch.fft.rfft(u.float(), n=n, dim=1) * torch.fft.rfft(filters.float(), n=n).T
        return torch.fft.irfft(spectrum, n=n, dim=1)[:, : u.shape[1]].to(u.dtype)

    def make(b: int, n: int, c: int) -> Sequence[Tensor]:
        (filters,) = setting.normal((c, n), dtype=torch.float32)
        return *setting.normal((b, n, c)), filters / n**0.5

    lengths = [(8, n, 1024) for n in (2048, 1024, 4096, 8192)]
    for b, n, c in setting.sizes([*lengths, (1, 2048, 1024), (4, 2048, 1024)], [(1, 512, 128), (1, 2048, 128)]):
        yield Case(
            {"b": b, "n": n, "c": c},
            partial(make, b, n, c),
            {**setting.ours(api.long_conv, out_dtype=setting.dtype), "FFT": fft},
            2.0 * setting.dtype.itemsize * b * n * c,
            flops=1.0 * b * n * n * c if setting.on_gpu else 0.0,
            targets={"FFT": 2.0 if n <= 2048 else 1.3} if n <= 4096 else {},
        )


@operation
def selective_scan(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.selective_scan import api

    state = 16

    def by_steps(x: Tensor, dt: Tensor, rates: Tensor, write: Tensor, read: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
        dt = F.softplus(dt.float() + bias)
        h, outputs = x.new_zeros(*x.shape[1:], state, dtype=torch.float32), []
        for i in range(len(x)):
            h = torch.exp(dt[i, :, :, None] * rates) * h + (dt[i] * x[i])[:, :, None] * write[i, :, None, :]
            outputs.append((h * read[i, :, None, :]).sum(-1))
        return torch.stack(outputs) * F.silu(gate)

    def make(b: int, n: int, d: int) -> Sequence[Tensor]:
        rates = -torch.arange(1.0, state + 1, device=setting.device).repeat(d, 1)
        x, dt, gate, write, read = setting.normal(*[(n, b, d)] * 3, *[(n, b, state)] * 2)
        return x, dt, rates, write, read, gate, torch.full((d,), -4.0, device=setting.device)

    def run(*inputs: Tensor, impl: Any) -> Tensor:
        *scanned, gate, bias = inputs
        return api.selective_scan(*scanned, gate=gate, dt_bias=bias, dt_softplus=True, impl=impl)[0]

    rows = [(b, 2048, 2048) for b in (8, 1, 4, 32)]
    for b, n, d in setting.sizes([*rows, (8, 512, 2048)], [(1, 128, 384), (4, 512, 384), (1, 2048, 1536)]):
        yield Case(
            {"b": b, "n": n, "d": d},
            partial(make, b, n, d),
            {**setting.ours(run), "step by step": by_steps},
            # Of x, dt, the gate and the output; on a GPU the 16 exponentials per element take longer than these bytes.
            4.0 * b * n * d * setting.dtype.itemsize,
            # 40 % of the 4.3 ps that 16 exponentials per token and channel take.
            targets={"step by step": 10.0, MICROSECONDS: 10.75e-6 * b * n * d},
        )


@operation
def short_conv(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.short_conv import api

    def conv1d(u: Tensor, taps: Tensor, gate: Tensor) -> Tensor:
        mixed = F.conv1d(u.transpose(1, 2), taps[:, None], padding=taps.shape[1] - 1, groups=len(taps))[..., : u.shape[1]]
        return F.silu(mixed.transpose(1, 2)) * gate

    few = [(b, 2048, 2048) for b in (1, 4, 8)]
    for b, n, c in setting.sizes([(16, 2048, 2048), (16, 8192, 2048), *few], [(4, 256, 384), (4, 2048, 384)]):
        yield Case(
            {"b": b, "n": n, "c": c},
            partial(setting.normal, (b, n, c), (c, 3), (b, n, c)),
            {
                **setting.ours(lambda u, taps, gate, *, impl: api.short_conv(u, taps, gate=gate, activation="silu", impl=impl)[0]),
                "conv1d": conv1d,
            },
            3.0 * setting.dtype.itemsize * b * n * c,
            targets={COPY: 0.8},
        )


@operation
def rwkv4_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.rwkv4 import api

    def run(k: Tensor, v: Tensor, gate: Tensor, decay: Tensor, bonus: Tensor, *, impl: Any) -> Any:
        return api.rwkv4_attention(k, v, decay, bonus, gate=gate, impl=impl)[0]

    def make(b: int, n: int, d: int) -> Sequence[Tensor]:
        decay = torch.exp(torch.linspace(-5, 3, d, device=setting.device))
        return *setting.normal(*((n, b, d),) * 3), decay, *setting.normal((d,), dtype=torch.float32)

    for b, n, d in setting.sizes([(8, 2048, 2048), (8, 512, 2048), (1, 2048, 2048), (32, 2048, 2048)], [(1, 128, 384), (4, 512, 384)]):
        yield Case(
            {"b": b, "n": n, "d": d},
            partial(make, b, n, d),
            {**setting.ours(run), "token by token": partial(run, impl="reference")},
            4.0 * setting.dtype.itemsize * b * n * d,
            targets={"token by token": 10.0},
        )


@operation
def linear_scan(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.linear_scan import api

    def run(decay: Tensor, u: Tensor, *, impl: Any) -> Any:
        return api.linear_scan(decay, u, impl=impl)[0]

    def make(b: int, n: int, d: int) -> Sequence[Tensor]:
        return [part.sigmoid() for part in setting.normal((n, b, d), (n, b, d))]

    for b, n, d in setting.sizes([(8, 2048, 2560), (1, 2048, 2560), (32, 2048, 2560)], [(1, 128, 384), (4, 512, 384)]):
        yield Case(
            {"b": b, "n": n, "d": d},
            partial(make, b, n, d),
            {**setting.ours(run), "token by token": partial(run, impl="reference")},
            3.0 * setting.dtype.itemsize * b * n * d,
            targets={"token by token": 10.0},
        )


def recurrence(setting: Setting, make: Callable[[int, int, int], Sequence[Tensor]], run: Callable[..., Any]) -> Iterator[Case]:
    """Cases of a linear recurrence that flash-linear-attention has kernels for; without it ours is PyTorch's also on a GPU."""
    h, k = (16, 64) if setting.on_gpu else (4, 48)
    ours = setting.ours(lambda *args, impl: run(*args, impl=impl)[0])
    if not find_spec("fla"):
        ours = {name: call for name, call in ours.items() if "triton" not in name}
    for b, n in setting.sizes([(8, 4096), (8, 1024), (8, 16384)], [(1, 256), (1, 1024)]):
        listed = {"token by token": lambda *args: run(*args, impl="reference")[0]} if n <= 1024 else {}
        size = {"b": b, "h": h, "n": n}
        yield Case(size, partial(make, b * h, n, k), {**ours, **listed}, 4.0 * setting.dtype.itemsize * b * h * n * k)


def decays(setting: Setting, *shape: int) -> Tensor:
    """Logarithms of decays, near zero as in trained models."""
    return -torch.rand(shape, device=setting.device) / 16


@operation
def decayed_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.recurrences import api

    return recurrence(
        setting, lambda rows, n, k: (*setting.normal(*((rows, 1, n, k),) * 3), decays(setting, rows, 1, n)), api.decayed_attention
    )


@operation
def gated_linear_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.recurrences import api

    return recurrence(
        setting, lambda rows, n, k: (*setting.normal(*((rows, 1, n, k),) * 3), decays(setting, rows, 1, n, k)), api.gated_linear_attention
    )


@operation
def delta_rule(setting: Setting) -> Iterator[Case]:
    """With a decay of each key channel, which takes the most work."""
    from recallkit.kernels.recurrences import api

    def make(rows: int, n: int, k: int) -> Sequence[Tensor]:
        q, keys, v = setting.normal(*((rows, 1, n, k),) * 3)
        return q, F.normalize(keys, dim=-1), v, torch.rand(rows, 1, n, device=setting.device), decays(setting, rows, 1, n, k)

    return recurrence(setting, make, api.delta_rule)


@operation
def rwkv5_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.recurrences import api

    def make(rows: int, n: int, k: int) -> Sequence[Tensor]:
        return *setting.normal(*((1, rows, n, k),) * 3), decays(setting, rows, k), *setting.normal((rows, k))

    return recurrence(setting, make, api.rwkv5_attention)


@operation
def rwkv7_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.recurrences import api

    def make(rows: int, n: int, k: int) -> Sequence[Tensor]:
        r, keys, v, read = setting.normal(*((rows, 1, n, k),) * 4)
        erase = F.normalize(read, dim=-1)
        return r, keys, v, erase, erase / 2, decays(setting, rows, 1, n, k)

    return recurrence(setting, make, api.rwkv7_attention)


# ------------------------------------------------------------------------------------------------------------- measuring


def compare(calls: dict[str, Callable[[int], Any]], device: torch.device, repeats: int) -> dict[str, Timing]:
    """The time of each call by name, of samples in turn, so that other load on the machine affects all of them."""
    result = harness.in_turn(calls, repeats, lambda name: time_call(calls[name], device, repeats=1))
    problems = {name: next((sample.problem for sample in samples if sample.problem), None) for name, samples in result.items()}
    samples = {name: tuple(sample.median for sample in item) for name, item in result.items()}
    return {name: Timing(problem=problems[name]) if problems[name] else Timing(samples[name]) for name in result}


def ceilings(setting: Setting) -> dict[str, float]:
    """Bytes per second of a large copy (read and written), operations per second of a large square matrix product."""
    elements, side = (1 << 28, 8192) if setting.on_gpu else (1 << 23, 1024)
    (source,) = setting.normal((elements,), dtype=torch.float32)
    target = torch.empty_like(source)
    left, right = setting.normal((side, side), (side, side))
    times = compare({"copy": lambda _: target.copy_(source), "matrix": lambda _: left @ right}, setting.device, repeats=5)
    return {COPY: 2 * source.nbytes / times["copy"].median, MATRIX: 2 * side**3 / times["matrix"].median}


def measure(name: str, case: Case, setting: Setting, reached: dict[str, float], repeats: int) -> list[Row]:
    """A row for each implementation, ours first."""
    replayed = REPLAYED if case.is_step and setting.on_gpu else 1
    try:
        first = case.make()
        cache = 3 * torch.cuda.get_device_properties(setting.device).L2_cache_size if setting.on_gpu else 0
        num_copies = min(MOST_COPIES, 1 + cache // max(1, sum(x.nbytes for x in first)))
        copies = [first, *(case.make() for _ in range(num_copies - 1))]
    except (MemoryError, RuntimeError) as error:  # inputs that do not fit must not lose what was measured
        return [Row(name, case.size, who, Timing(problem=problem_of(error))) for who in case.runs]
    calls = {who: graphed(run, copies) if replayed > 1 else partial(call, run, copies) for who, run in case.runs.items()}
    with torch.inference_mode():
        times = compare(calls, setting.device, repeats=repeats)
    work, ceiling, unit = case.num_bytes, reached[COPY], "B/s"
    if case.flops / reached[MATRIX] > case.num_bytes / reached[COPY]:
        work, ceiling, unit = case.flops, reached[MATRIX], "FLOP/s"
    ours, rows = next(iter(times.values())).median, []
    for who, timing in times.items():
        one = Timing(tuple(sample / replayed for sample in timing.samples), timing.problem)
        rows.append(Row(name, case.size, who, one, work / one.median, unit, work / one.median / ceiling, timing.median / ours))
    return rows


def call(run: Callable[..., Any], copies: list[Sequence[Tensor]], i: int) -> Any:
    return run(*copies[i % len(copies)])


def graphed(run: Callable[..., Any], copies: list[Sequence[Tensor]]) -> Callable[[int], Any]:
    """A call that replays `REPLAYED` calls, recorded in a CUDA graph when it is first called."""
    recorded: list[torch.cuda.CUDAGraph] = []

    def replay(_: int) -> None:
        if not recorded:
            call(run, copies, 0)  # compiles before the recording
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(REPLAYED):
                    call(run, copies, i)
            recorded.append(graph)
        recorded[0].replay()

    return replay


def verdicts(case: Case, rows: list[Row]) -> Iterator[str]:
    """A line for each target: met, missed or not measured."""
    ours, by_name = rows[0], {row.implementation: row for row in rows}
    for name, wanted in case.targets.items():
        if name == MICROSECONDS:
            what, result, is_met = f"at most {wanted:g} {name}", 1e6 * ours.timing.median, 1e6 * ours.timing.median <= wanted
        else:
            result = ours.share if name in (COPY, MATRIX) else by_name[name].ratio if name in by_name else math.nan
            what = f"{100 * wanted:.0f} % {name}" if name in (COPY, MATRIX) else f"{wanted:g} times as fast as {name}"
            is_met = result >= wanted
        verdict = "not measured" if math.isnan(result) else f"{'met' if is_met else 'MISSED'} ({result:.3g})"
        yield f"{ours.operation} {shown_size(ours)}: {what}: {verdict}"


# --------------------------------------------------------------------------------------------------------------- printing


def shown_size(row: Row) -> str:
    return " ".join(f"{name}={value:,}" for name, value in row.size.items())


def rounded(number: float, unit: str) -> str:
    """6.2e10, "FLOP/s" -> 62 GFLOP/s; 0.000123, "s" -> 123 us."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "u")):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def print_rows(rows: list[Row]) -> None:
    for row in rows:
        figures = [rounded(row.timing.median, "s"), rounded(row.rate, row.unit), f"{100 * row.share:.0f} %", f"{row.ratio:.2f}"]
        print("".join(f"{cell:<16}" for cell in ([row.timing.problem] if row.timing.problem else figures)) + row.implementation)


def draw(rows: list[Row], path: Path) -> None:
    """Milliseconds by tokens and by rows, the other sizes being those at which most were measured; a line for each implementation."""
    import altair as alt

    def others(row: Row, letter: str) -> str:
        return " ".join(f"{name}={value:,}" for name, value in row.size.items() if name != letter)

    plots = []
    for name, group in groupby((row for row in rows if not row.timing.problem), lambda row: row.operation):
        measured = list(group)
        for letter, title in (("n", "tokens"), ("b", "rows")):
            fixed = statistics.mode(others(row, letter) for row in measured)
            result = [row for row in measured if others(row, letter) == fixed]
            if len({row.size.get(letter) for row in result}) > 1:
                values = [{"size": row.size[letter], "ms": 1e3 * row.timing.median, "by": row.implementation} for row in result]
                x, y = alt.X("size:Q", title=title).scale(type="log"), alt.Y("ms:Q", title="milliseconds").scale(type="log")
                line = alt.Chart(alt.Data(values=values), title=f"{name}, {fixed}", width=300, height=200).mark_line(point=True)
                plots.append(line.encode(x=x, y=y, color=alt.Color("by:N", title=None)))
    alt.concat(*plots, columns=3).resolve_scale(color="independent", x="independent", y="independent").save(path)


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=5, runs="samples of each implementation")
    parser.add_argument("operations", nargs="*", choices=[[], *OPERATIONS], metavar="OPERATION", help="everything if none")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="bfloat16 on a GPU, else float32")
    parser.add_argument("--quick", action="store_true", help="one size of each, one sample")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help=".svg, .png or .html")
    args = parser.parse_args()
    device = torch.device(args.device)
    dtype = getattr(torch, args.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    setting = Setting(device, dtype, args.quick)
    reached = ceilings(setting)
    machine = {**describe_machine(device, dtype), "copy_b_s": reached[COPY], "matrix_flop_s": reached[MATRIX]}
    print(json.dumps(machine))
    print("".join(f"{cell:<16}" for cell in ("time", "rate", "share", "x ours")))
    rows: list[Row] = []
    for name in args.operations or OPERATIONS:
        for case in OPERATIONS[name](setting):
            measured = measure(name, case, setting, reached, 1 if args.quick else args.repeats)
            print(f"{name} {shown_size(measured[0])}")
            print_rows(measured)
            if setting.on_gpu:
                print("\n".join(verdicts(case, measured)))
            rows.extend(measured)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1), encoding="utf-8")
    if args.plot:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
