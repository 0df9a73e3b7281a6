"""The benchmark cases of `recallkit.kernels`: sizes, inputs, implementations, least work, targets."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from recallkit.bench import peers
from recallkit.bench.operations import COPY, MATRIX, MICROSECONDS, Case
from recallkit.bench.results import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from recallkit.bench.operations import Setting


def _ours(setting: Setting, function: Callable[..., Any], **options: Any) -> dict[str, Callable[..., Any]]:
    """The implementation that `auto` takes on the device and, on a GPU, also PyTorch's."""
    impls = ("triton", "torch") if setting.on_gpu else ("torch",)
    return {f"{OURS} ({impl})": partial(function, impl=impl, **options) for impl in impls}


def _on_gpu(setting: Setting, runs: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    return runs if setting.on_gpu else {}


def _token_nll(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.token_nll.api import token_nll

    width = setting.dtype.itemsize
    for n, d, vocab in setting.sizes(
        [(16384, 1024, 50257), (16384, 2048, 50257), (512, 1024, 50257)], [(512, 256, 4096), (512, 576, 49152)]
    ):
        yield Case(
            "token_nll",
            {"n": n, "d": d, "vocab": vocab},
            partial(_head, setting, n, d, vocab),
            {
                **_ours(setting, token_nll),
                "eager PyTorch": peers.eager_nll,
                **_on_gpu(setting, {"liger": peers.liger_nll, "cut-cross-entropy": peers.cut_nll}),
            },
            flops=2.0 * n * d * vocab,
            num_bytes=width * (n * d + vocab * d),
            targets={MATRIX: 0.6, "cut-cross-entropy": 1.15, "liger": 1.5, "eager PyTorch": 2.0} if n > 512 else {},
        )


def _head(setting: Setting, n: int, d: int, vocab: int) -> tuple[Tensor, ...]:
    return setting.normal(n, d), setting.normal(vocab, d) / d**0.5, torch.randint(vocab, (n,), device=setting.device)


def _taylor_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.taylor_attention.api import taylor_attention

    h, f, v = (16, 16, 64) if setting.on_gpu else (4, 16, 64)
    by_length = [(4, n) for n in (1024, 4096, 16384, 32768)]
    for b, n in setting.sizes([(16, 32768), *by_length, *((b, 4096) for b in (1, 16, 64))], [(1, 256), (1, 1024), (1, 4096)]):
        listing = {"cumulative sums, as listed": lambda q, k, v, *_: peers.taylor_by_cumulative_sums(q, k, v)}
        yield Case(
            "taylor_attention",
            {"b": b, "h": h, "n": n},
            # SDPA gets heads of the values' width, as attention would have.
            partial(_normals, setting, (b, h, n, f), (b, h, n, f), (b, h, n, v), (b, h, n, v), (b, h, n, v)),
            {
                **_ours(setting, lambda q, k, v, *_, impl: taylor_attention(q, k, v, impl=impl, final_state=False)),
                "SDPA": lambda _q, _k, v, wide_q, wide_k: peers.softmax_attention(wide_q, wide_k, v),
                **(listing if b * h * n <= 1 << 14 else {}),
                **_on_gpu(setting, {"fla parallel_based": lambda q, k, v, *_: peers.fla_based(*_time_before_heads(q, k, v))}),
            },
            num_bytes=2.0 * setting.dtype.itemsize * b * h * n * (f + v),
            # 40 % of the 149 ps per token and head that the memory traffic of three kernels takes.
            targets={
                MICROSECONDS: 373e-6 * b * h * n,
                **({"fla parallel_based": 20.0} if n >= 32768 else {"SDPA": 1.0} if n <= 1024 else {}),
            },
        )


def _normals(setting: Setting, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(setting.normal(*shape) for shape in shapes)


def _time_before_heads(*tensors: Tensor) -> Iterator[Tensor]:
    """(b, h, t, k) -> (b, t, h, k), the layout of other libraries."""
    return (x.transpose(1, 2) for x in tensors)


def _taylor_attention_step(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.taylor_attention.api import taylor_attention, taylor_attention_step
    from recallkit.kernels.taylor_attention.state import TaylorState

    h, f, v = 16, 16, 64
    features = 1 + f + f * (f + 1) // 2

    def make(b: int) -> tuple[Tensor, ...]:
        """The next token, with the states of both implementations after the 16 before it."""
        before = [setting.normal(b, h, 16, width, dtype=torch.float32) for width in (f, v)]
        _, state = taylor_attention(before[0], before[0], before[1])
        return *_normals(setting, (b, h, f), (b, h, f), (b, h, v)), *state, *peers.taylor_state(*before)

    for b in setting.sizes([64, 1, 4, 16, 256], [8, 1, 32]):
        yield Case(
            "taylor_attention_step",
            {"b": b, "h": h},
            partial(make, b),
            {
                **_ours(setting, lambda q, k, v, kv, sums, *_, impl: taylor_attention_step(q, k, v, TaylorState(kv, sums), impl=impl)),
                "as listed": lambda q, k, v, _kv, _sums, *state: peers.taylor_step(q, k, v, *state),
            },
            num_bytes=2 * 4.0 * b * h * features * (v + 1),
            graph=True,
            targets={COPY: 0.7, "as listed": 4.0} if b >= 32 else {},
        )


def _window_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.window_attention.api import window_attention

    h, k, window = (16, 64, 128) if setting.on_gpu else (4, 64, 64)
    for b, n in setting.sizes([(4, 4096), (4, 1024), (4, 16384)], [(1, 256), (1, 1024), (1, 4096)]):
        yield Case(
            "window_attention",
            {"b": b, "h": h, "n": n, "window": window},
            partial(_normals, setting, *((b, h, n, k),) * 3),
            {**_ours(setting, lambda q, k, v, *, impl: window_attention(q, k, v, window, impl=impl)), "SDPA": peers.softmax_attention},
            flops=4.0 * b * h * n * window * k,
            num_bytes=4.0 * setting.dtype.itemsize * b * h * n * k,
        )


def _window_attention_step(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.window_attention.api import window_attention_step
    from recallkit.kernels.window_attention.ring import WindowState

    h, k = 16, 64

    def ours(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, seen: Tensor, *_: Tensor, impl: Any) -> Any:
        return window_attention_step(q, k, v, WindowState(keys, values, seen), rope_width=64, inplace=True, impl=impl)

    def theirs(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, _seen: Tensor, *turn: Tensor) -> Any:
        return peers.ring_step(q[:, :, None], k[:, :, None], v[:, :, None], keys, values, *turn)

    def make(b: int, window: int) -> tuple[Tensor, ...]:
        position = 1000
        seen = torch.full((b,), position, device=setting.device)
        slot = torch.tensor([position % window], device=setting.device)
        angles = position * 10000.0 ** (-torch.arange(k // 2, device=setting.device) / (k // 2))
        turn = angles.cos().to(setting.dtype), angles.sin().to(setting.dtype)
        return *_normals(setting, *((b, h, k),) * 3, *((b, h, window, k),) * 2), seen, slot, *turn

    for b, window in setting.sizes([(16, 64), (1, 64), (64, 64), (16, 128)], [(8, 64), (1, 64), (32, 64)]):
        yield Case(
            "window_attention_step",
            {"b": b, "h": h, "window": window},
            partial(make, b, window),
            {**_ours(setting, ours), "SDPA and index_copy": theirs},
            num_bytes=2.0 * setting.dtype.itemsize * b * h * window * k,
            graph=True,
            targets={"SDPA and index_copy": 2.0, **({MICROSECONDS: 4.0} if b <= 16 else {})},
        )


def _masked_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.masked_attention.api import masked_attention

    h, k, stride = (16, 64, 128) if setting.on_gpu else (4, 64, 64)

    def sees(queries: Tensor, keys: Tensor) -> Tensor:
        """Sparse Transformers' fixed pattern: the query's own block, and the last token of every block."""
        return ((queries // stride == keys // stride) | ((keys + 1) % stride == 0)) & (keys <= queries)

    def ours(q: Tensor, k: Tensor, v: Tensor, _: Tensor, *, impl: Any) -> Any:
        return masked_attention(q, k, v, sees, key=("bench", stride), impl=impl)

    def make(b: int, n: int) -> tuple[Tensor, ...]:
        places = torch.arange(n, device=setting.device)
        return *_normals(setting, *((b, h, n, k),) * 3), sees(places[:, None], places)

    for b, n in setting.sizes([(4, 4096), (4, 8192)], [(1, 512)]):
        yield Case(
            "masked_attention",
            {"b": b, "h": h, "n": n, "stride": stride},
            partial(make, b, n),
            {**_ours(setting, ours), "SDPA with a mask": peers.masked_softmax_attention},
            flops=4.0 * b * h * k * n * (stride + n / stride) / 2,
            num_bytes=4.0 * setting.dtype.itemsize * b * h * n * k,
        )


def _lookup_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.lookup_attention.api import lookup_attention
    from recallkit.kernels.masked_attention.api import masked_attention

    h, k = 16, 64

    def flex(q: Tensor, k: Tensor, v: Tensor, _offsets: Tensor, keys: Tensor, mask: Tensor) -> Any:
        return masked_attention(q, k, v, lambda i, j: mask[i, j], key=("bench", mask.shape, len(keys)), impl="triton")

    def make(b: int, n: int, most: int) -> tuple[Tensor, ...]:
        """Each query sees `most` keys spread evenly up to it, or as many as there are."""
        counts = torch.arange(1, n + 1).clamp(max=most)
        queries = torch.repeat_interleave(torch.arange(n), counts)
        places = torch.arange(len(queries)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        keys = (places * (queries + 1)).div(counts[queries], rounding_mode="floor")
        mask = torch.zeros(n, n, dtype=torch.bool)
        mask[queries, keys] = True
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.repeat(b).cumsum(0)])
        return *_normals(setting, *((b, h, n, k),) * 3), *(x.to(setting.device) for x in (offsets, keys.repeat(b), mask))

    for b, n, most in setting.sizes([(4, 4096, 16), (4, 4096, 4), (4, 4096, 64)], [(1, 512, 4), (1, 512, 16), (1, 2048, 4)]):
        yield Case(
            "lookup_attention",
            {"b": b, "h": h, "n": n, "keys": most},
            partial(make, b, n, most),
            {
                **_ours(setting, lambda *given, impl: lookup_attention(*given[:5], impl=impl)),
                "SDPA with a mask": lambda q, k, v, _offsets, _keys, mask: peers.masked_softmax_attention(q, k, v, mask),
                **_on_gpu(setting, {"FlexAttention": flex}),
            },
            num_bytes=2.0 * setting.dtype.itemsize * b * h * n * k * (1 + most),
            targets={"FlexAttention": 5.0} if most <= 16 else {},
        )


def _long_conv(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.long_conv.api import long_conv

    def make(b: int, n: int, c: int) -> tuple[Tensor, ...]:
        return setting.normal(b, n, c), setting.normal(c, n, dtype=torch.float32) / n**0.5

    for b, n, c in setting.sizes([(8, n, 1024) for n in (2048, 1024, 4096, 8192)], [(1, 512, 128), (1, 2048, 128)]):
        yield Case(
            "long_conv",
            {"b": b, "n": n, "c": c},
            partial(make, b, n, c),
            {**_ours(setting, long_conv, out_dtype=setting.dtype), "FFT": peers.fft_conv},
            flops=1.0 * b * n * n * c if setting.on_gpu else 0.0,
            num_bytes=2.0 * setting.dtype.itemsize * b * n * c,
            targets={"FFT": 2.0 if n <= 2048 else 1.3} if n <= 4096 else {},
        )


def _selective_scan(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.selective_scan.api import selective_scan

    state = 16

    def make(b: int, n: int, d: int) -> tuple[Tensor, ...]:
        wide = torch.float32
        rates = -torch.arange(1.0, state + 1, device=setting.device).repeat(d, 1)
        dt = torch.nn.functional.softplus(setting.normal(n, b, d, dtype=wide) - 4)
        return setting.normal(n, b, d), dt, rates, *_normals(setting, (n, b, state), (n, b, state))

    for b, n, d in setting.sizes([(8, 2048, 2048), (8, 512, 2048), (1, 2048, 2048), (32, 2048, 2048)], [(1, 128, 384), (4, 512, 384)]):
        yield Case(
            "selective_scan",
            {"b": b, "n": n, "d": d},
            partial(make, b, n, d),
            {**_ours(setting, lambda *given, impl: selective_scan(*given, impl=impl)[0]), "step by step": peers.scan_step_by_step},
            # Of x, its output, and dt, which is float32; on a GPU the 16 exponentials per element take longer than these bytes.
            num_bytes=1.0 * b * n * d * (2 * setting.dtype.itemsize + 4),
            # 40 % of the 4.3 ps that 16 exponentials per token and channel take.
            targets={"step by step": 10.0, MICROSECONDS: 10.75e-6 * b * n * d},
        )


def _short_conv(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.short_conv.api import short_conv

    for b, n, c in setting.sizes([(16, 2048, 2048), (16, 8192, 2048)], [(4, 256, 384), (4, 2048, 384)]):
        yield Case(
            "short_conv",
            {"b": b, "n": n, "c": c},
            partial(_normals, setting, (b, n, c), (c, 3), (b, n, c)),
            {
                **_ours(setting, lambda u, taps, gate, *, impl: short_conv(u, taps, gate=gate, activation="silu", impl=impl)[0]),
                "conv1d": peers.gated_conv1d,
            },
            num_bytes=3.0 * setting.dtype.itemsize * b * n * c,
            targets={COPY: 0.8},
        )


def _rwkv4_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.rwkv4.api import rwkv4_attention

    def run(k: Tensor, v: Tensor, gate: Tensor, decay: Tensor, bonus: Tensor, *, impl: Any) -> Any:
        return rwkv4_attention(k, v, decay, bonus, gate=gate, impl=impl)[0]

    def make(b: int, n: int, d: int) -> tuple[Tensor, ...]:
        decay = torch.exp(torch.linspace(-5, 3, d, device=setting.device))
        return *_normals(setting, *((n, b, d),) * 3), decay, setting.normal(d, dtype=torch.float32)

    for b, n, d in setting.sizes([(8, 2048, 2048), (8, 512, 2048), (1, 2048, 2048), (32, 2048, 2048)], [(1, 128, 384), (4, 512, 384)]):
        yield Case(
            "rwkv4_attention",
            {"b": b, "n": n, "d": d},
            partial(make, b, n, d),
            {**_ours(setting, run), "token by token": partial(run, impl="reference")},
            num_bytes=4.0 * setting.dtype.itemsize * b * n * d,
            targets={"token by token": 10.0},
        )


def _recurrence(
    setting: Setting, operation: str, make: Callable[[int, int, int], tuple[Tensor, ...]], run: Callable[..., Any]
) -> Iterator[Case]:
    """Cases of a linear recurrence that flash-linear-attention has kernels for; without it ours is PyTorch's also on a GPU."""
    h, k = (16, 64) if setting.on_gpu else (4, 48)
    impls = ("triton", "torch") if setting.on_gpu and importlib.util.find_spec("fla") else ("torch",)
    for b, n in setting.sizes([(8, 4096), (8, 1024), (8, 16384)], [(1, 256), (1, 1024)]):
        listed = {"token by token": partial(run, impl="reference")} if n <= 1024 else {}
        yield Case(
            operation,
            {"b": b, "h": h, "n": n},
            partial(make, b * h, n, k),
            {**{f"{OURS} ({impl})": partial(run, impl=impl) for impl in impls}, **listed},
            num_bytes=4.0 * setting.dtype.itemsize * b * h * n * k,
        )


def _decays(setting: Setting, *shape: int) -> Tensor:
    """Logarithms of decays, near zero as in trained models."""
    return -torch.rand(shape, device=setting.device) / 16


def _decayed_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.decayed_attention.api import decayed_attention

    def make(rows: int, n: int, k: int) -> tuple[Tensor, ...]:
        return *_normals(setting, *((rows, 1, n, k),) * 3), _decays(setting, rows, 1, n)

    return _recurrence(setting, "decayed_attention", make, lambda *given, impl: decayed_attention(*given, impl=impl)[0])


def _gated_linear_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.gated_linear_attention.api import gated_linear_attention

    def make(rows: int, n: int, k: int) -> tuple[Tensor, ...]:
        return *_normals(setting, *((rows, 1, n, k),) * 3), _decays(setting, rows, 1, n, k)

    return _recurrence(setting, "gated_linear_attention", make, lambda *given, impl: gated_linear_attention(*given, impl=impl)[0])


def _delta_rule(setting: Setting) -> Iterator[Case]:
    """With a decay of each key channel, which takes the most work."""
    from recallkit.kernels.delta_rule.api import delta_rule

    def make(rows: int, n: int, k: int) -> tuple[Tensor, ...]:
        q, keys, v = _normals(setting, *((rows, 1, n, k),) * 3)
        strength = torch.rand(rows, 1, n, device=setting.device)
        return q, torch.nn.functional.normalize(keys, dim=-1), v, strength, _decays(setting, rows, 1, n, k)

    return _recurrence(setting, "delta_rule", make, lambda *given, impl: delta_rule(*given, impl=impl)[0])


def _rwkv5_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.rwkv5.api import rwkv5_attention

    def make(rows: int, n: int, k: int) -> tuple[Tensor, ...]:
        return *_normals(setting, *((1, rows, n, k),) * 3), _decays(setting, rows, k), setting.normal(rows, k)

    return _recurrence(setting, "rwkv5_attention", make, lambda *given, impl: rwkv5_attention(*given, impl=impl)[0])


def _rwkv7_attention(setting: Setting) -> Iterator[Case]:
    from recallkit.kernels.rwkv7.api import rwkv7_attention

    def make(rows: int, n: int, k: int) -> tuple[Tensor, ...]:
        r, keys, v, read = _normals(setting, *((rows, 1, n, k),) * 4)
        erase = torch.nn.functional.normalize(read, dim=-1)
        return r, keys, v, erase, erase / 2, _decays(setting, rows, 1, n, k)

    return _recurrence(setting, "rwkv7_attention", make, lambda *given, impl: rwkv7_attention(*given, impl=impl)[0])


OPERATIONS: dict[str, Callable[[Setting], Iterator[Case]]] = {
    "token_nll": _token_nll,
    "taylor_attention": _taylor_attention,
    "taylor_attention_step": _taylor_attention_step,
    "window_attention": _window_attention,
    "window_attention_step": _window_attention_step,
    "masked_attention": _masked_attention,
    "lookup_attention": _lookup_attention,
    "long_conv": _long_conv,
    "selective_scan": _selective_scan,
    "short_conv": _short_conv,
    "decayed_attention": _decayed_attention,
    "gated_linear_attention": _gated_linear_attention,
    "delta_rule": _delta_rule,
    "rwkv4_attention": _rwkv4_attention,
    "rwkv5_attention": _rwkv5_attention,
    "rwkv7_attention": _rwkv7_attention,
}
"""Name -> its cases."""
