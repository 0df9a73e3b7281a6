"""`taylor_attention` and its step: the chunked forms equal the formula in float64, whole, in pieces
and token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from recallkit.kernels.choice import preferring
from recallkit.kernels.taylor_attention.api import taylor_attention, taylor_attention_step
from recallkit.kernels.taylor_attention.state import (
    TaylorState,
    num_taylor_features,
    taylor_features,
    taylor_scores,
    zero_state,
)
from recallkit.models.mixers.linear_attention import LinearAttention
from tests.kernels.battery import StatefulBattery, exactly
from tests.kernels.checks import DEVICE, assert_close, draw, relative_error
from tests.kernels.compilation import Case, assert_compiles

KERNEL = "recallkit.kernels.taylor_attention.triton_impl"


def operands(
    b: int,
    h: int,
    t: int,
    f: int,
    v: int,
    *,
    std: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """q, k of a standard deviation, and v whose mean is not zero."""
    q, k = (draw(b, h, t, f, std=std, dtype=dtype, seed=seed) for seed in (1, 2))
    return q, k, (draw(b, h, t, v, dtype=torch.float64, seed=3) + 0.5).to(dtype)


def drawn(
    t: int,
    b: int,
    f: int,
    v: int,
    dtype: torch.dtype = torch.float32,
    *,
    h: int = 2,
    std: float = 1.0,
) -> dict[str, Tensor]:
    """q, k and v of `t` tokens, and the state after nine other tokens."""
    before = operands(b, h, 9, f, v, dtype=torch.promote_types(dtype, torch.float32))
    state = taylor_attention(*before, impl="torch")[1]
    return dict(zip("qkv", operands(b, h, t, f, v, std=std, dtype=dtype), strict=True)) | {
        "kv": state.kv,
        "sums": state.k,
    }


def run(arguments: Mapping[str, Any], impl: str) -> tuple[Tensor, ...]:
    """y and the two parts of the state."""
    others = {name: value for name, value in arguments.items() if name not in ("kv", "sums")}
    y, state = taylor_attention(
        **others,
        state=TaylorState(arguments["kv"], arguments["sums"]) if "kv" in arguments else None,
        impl=impl,
    )
    return y, *state


class TestTaylorAttention(StatefulBattery):
    time: ClassVar = dict.fromkeys("qkv", 2)
    rows: ClassVar = dict.fromkeys(("q", "k", "v", "kv", "sums"), 0)
    out_time: ClassVar = 2
    out_rows: ClassVar = 0
    state: ClassVar = ("kv", "sums")
    sizes: ClassVar = [
        (1, 2, 16, 64),
        (17, 2, 8, 60),
        (128, 2, 24, 96),
        (129, 2, 5, 3),
        (300, 2, 16, 100),
    ]
    triton_sizes: ClassVar = [
        (15, 1, 16, 64),
        (65, 1, 8, 60),
        (33, 1, 24, 100),
        (63, 1, 5, 96),
        (257, 1, 16, 64),
    ]
    small_chunks: ClassVar = {"recallkit.kernels.taylor_attention.torch_impl.CHUNK": 3}
    traced: ClassVar = tuple(f"{KERNEL}.taylor_attention{step}_triton" for step in ("", "_step"))
    mixers: ClassVar = {
        f"short_conv {taps}": lambda taps=taps: LinearAttention(
            16,
            num_heads=2,
            feature_dim=4,
            short_conv=taps,
        )
        for taps in (0, 3)
    }
    misfits: ClassVar = [
        ({"k": (2, 2, 4, 5)}, "do not fit"),
        ({"v": (2, 2, 5, 6)}, "do not fit"),
        ({"q": (2, 4, 4)}, "do not fit"),
        ({"q": (2, 2, 4, 0), "k": (2, 2, 4, 0)}, "do not fit"),
        ({"k": torch.zeros(2, 2, 4, 4, dtype=torch.bfloat16)}, "one floating type"),
        ({"kv": (2, 2, 14, 6)}, "kv must be"),
        ({"sums": torch.zeros(2, 2, 15, dtype=torch.bfloat16)}, r"k must be torch\.float32"),
    ]

    def operands(self, t, b, f, v, *, dtype):
        return drawn(t, b, f, v, dtype, h=1, std=3)

    def some(self, t, b=2, dtype=torch.float32):
        return drawn(t, b, 4, 6, dtype)

    def run(self, arguments, impl):
        return run(arguments, impl)

    def step(self, arguments, i, state, impl):
        y, after = taylor_attention_step(
            *(arguments[name][:, :, i] for name in "qkv"),
            TaylorState(*state),
            impl=impl,
        )
        return y[:, :, None], *after

    def assert_states_close(self, state, exact, *, times=1):
        """A GPU sums products of features that are rounded to the operands' type."""
        for mine, theirs in zip(state, exact, strict=True):
            assert_close(mine, theirs, dtype=torch.bfloat16 if mine.is_cuda else None, times=times)

    def traceable(self):
        *tensors, kv, sums = self.some(5).values()
        token = [x[:, :, 0] for x in tensors]
        return [
            [(*tensors, None, None, 1e-12, True), (*tensors, kv, sums, 1e-12, False)],
            [(*token, kv, sums, 1e-12)],
        ]


BATTERY = TestTaylorAttention()


@pytest.fixture(params=["torch", "triton"])
def impl(request):
    return request.param


@pytest.mark.parametrize("f", [1, 2, 3, 8, 15, 16, 24])
def test_packed_features_multiply_to_the_polynomial(f):
    q, k = draw(7, f, dtype=torch.float64), draw(5, f, dtype=torch.float64, seed=1)
    s = q @ k.T / math.sqrt(f)
    features = taylor_features(q)
    assert features.shape == (7, num_taylor_features(f))
    assert num_taylor_features(f) == 1 + f + f * (f + 1) // 2
    assert (features[:, 0] == 1).all()
    torch.testing.assert_close(features @ taylor_features(k).T, 1 + s + s**2 / 2)
    torch.testing.assert_close(taylor_scores(q, k), 1 + s + s**2 / 2)


def test_reference_is_the_normalised_sum_and_its_state_the_sum_of_products():
    q, k, v = operands(2, 2, 20, 6, 5, dtype=torch.float64)
    y, state = taylor_attention(q, k, v, impl="reference")
    s = q @ k.transpose(-1, -2) / math.sqrt(6)
    weights = torch.tril(1 + s + s**2 / 2)
    torch.testing.assert_close(y, weights @ v / weights.sum(dim=-1, keepdim=True))
    later = draw(2, 2, 3, 6, dtype=torch.float64, seed=9)
    scores = (
        1 + later @ k.transpose(-1, -2) / math.sqrt(6) + (later @ k.transpose(-1, -2)) ** 2 / 12
    )
    torch.testing.assert_close(taylor_features(later) @ state.kv, scores @ v)
    torch.testing.assert_close(
        (taylor_features(later) @ state.k[..., None])[..., 0],
        scores.sum(dim=-1),
    )


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize(("f", "v"), [(16, 64), (8, 60), (24, 100), (5, 3), (32, 16)])
def test_a_step_equals_reference(f, v, impl):
    for dtype in (
        (torch.float32, torch.bfloat16, torch.float16) if impl == "torch" else (torch.float32,)
    ):
        arguments = drawn(1, 2, f, v, dtype, std=3)
        y, *after = BATTERY.step(arguments, 0, [arguments["kv"], arguments["sums"]], impl)
        exact, *exact_after = run(exactly(arguments), "reference")
        assert y.dtype == dtype
        assert_close(y, exact)
        BATTERY.assert_states_close(after, exact_after)


def test_the_state_counts_tokens_exactly_and_in_float32(impl):
    q, k, v = operands(1, 1, 300, 4, 16)
    _, state = taylor_attention(q, k, torch.ones_like(v), impl=impl)
    _, state = taylor_attention_step(
        q[:, :, 0],
        k[:, :, 0],
        torch.ones_like(v[:, :, 0]),
        state,
        impl=impl,
    )
    assert (state.k[..., 0] == 301).all()
    assert (state.kv[..., 0, :] == 301).all()
    assert state.kv.dtype == state.k.dtype == torch.float32


def test_eps_is_added_to_the_sum_of_weights_and_moves_nothing_where_it_is_small(impl):
    arguments = drawn(20, 1, 8, 16)
    assert torch.equal(run(arguments | {"eps": 0.0}, impl)[0], run(arguments, impl)[0])
    exact = run(exactly(arguments) | {"eps": 50.0}, "reference")[0]
    assert_close(run(arguments | {"eps": 50.0}, impl)[0], exact)
    q, k, v, *state = arguments.values()
    y, _ = taylor_attention_step(
        *(x[:, :, 0] for x in (q, k, v)),
        TaylorState(*state),
        eps=50.0,
        impl=impl,
    )
    assert_close(y, exact[:, :, 0])


@pytest.mark.parametrize("std", [1e-3, 3.0, 100.0])
def test_equal_values_come_out_as_they_are_whatever_the_weights(impl, std):
    q, k, v = operands(1, 1, 40, 16, 16, std=std)
    y, state = taylor_attention(q, k, torch.full_like(v, 1e4), impl=impl)
    torch.testing.assert_close(y, torch.full_like(y, 1e4))
    y, _ = taylor_attention_step(
        q[:, :, 0],
        k[:, :, 0],
        torch.full_like(v[:, :, 0], 1e4),
        state,
        impl=impl,
    )
    torch.testing.assert_close(y, torch.full_like(y, 1e4))


@pytest.mark.parametrize("with_state", [False, True])
def test_outputs_are_the_same_where_no_final_state_is_asked_for(impl, with_state):
    for t in (0, 30, 260):
        q, k, v, *state = drawn(t, 1, 4, 16).values()
        before = TaylorState(*state) if with_state else None
        y, after = taylor_attention(q, k, v, before, impl=impl, final_state=False)
        assert after is None
        assert torch.equal(y, taylor_attention(q, k, v, before, impl=impl)[0])


@pytest.fixture
def short_chunks(monkeypatch):
    from recallkit.kernels.taylor_attention import triton_impl

    monkeypatch.setattr(triton_impl, "CHUNK", 64)


def test_triton_adds_many_chunks_up_and_goes_on_anywhere_in_one(short_chunks):
    arguments = drawn(257, 1, 8, 32, h=1)
    BATTERY.check(arguments, "triton")
    arguments = drawn(80, 1, 8, 16)
    exact = run(exactly(arguments), "reference")
    for offset in (1, 63, 64, 65):
        first, *state = run(
            BATTERY.part(arguments, slice(0, offset), [arguments["kv"], arguments["sums"]]),
            "triton",
        )
        second, *last = run(BATTERY.part(arguments, slice(offset, 80), state), "triton")
        assert_close(torch.cat([first, second], 2), exact[0])
        BATTERY.assert_states_close(last, exact[1:])


@pytest.mark.parametrize("config", range(2))
def test_every_configuration_gives_the_result(config, short_chunks):
    from recallkit.kernels.taylor_attention import triton_impl

    assert {
        len(launcher.configs)
        for launcher in (triton_impl.FLOAT_STATES, triton_impl.FLOAT_OUTPUTS, triton_impl.STEP)
    } == {2}
    arguments = drawn(130, 1, 16, 80, h=1)
    *tensors, kv, sums = arguments.values()
    y, *after = triton_impl.taylor_attention_triton(*tensors, kv, sums, 1e-12, True, config)
    exact, *exact_after = run(exactly(arguments), "reference")
    assert_close(y, exact)
    BATTERY.assert_states_close(after, exact_after)
    y, *after = triton_impl.taylor_attention_step_triton(
        *(x[:, :, 0] for x in tensors),
        kv,
        sums,
        1e-12,
        config,
    )
    first = BATTERY.part(arguments, slice(0, 1), [kv, sums])
    exact, *exact_after = run(exactly(first), "reference")
    assert_close(y[:, :, None], exact)
    BATTERY.assert_states_close(after, exact_after)


def test_triton_does_not_look_ahead(short_chunks):
    """Chunks do not depend on later ones, even where these are no numbers."""
    arguments = drawn(70, 2, 8, 16)
    at_once = run(arguments, "triton")[0]
    for name in "qkv":
        arguments[name][:, :, 66:] = math.nan
    assert torch.equal(run(arguments, "triton")[0][:, :, :64], at_once[:, :, :64])


def test_the_mixer_takes_the_kernels_and_widths_that_they_lack_go_to_torch(monkeypatch):
    from recallkit.kernels.taylor_attention import triton_impl

    calls = []
    for name in ("taylor_attention_triton", "taylor_attention_step_triton"):
        kernel = getattr(triton_impl, name)
        monkeypatch.setattr(
            triton_impl,
            name,
            lambda *all_, kernel=kernel, name=name: calls.append(name) or kernel(*all_),
        )
    mixer = LinearAttention(16, num_heads=2, feature_dim=4).to(DEVICE).eval()
    with preferring("triton"), torch.no_grad():
        _, state = mixer.read(draw(2, 6, 16), mixer.initial_state(2))
        mixer.step(draw(2, 16), state)
    assert calls == ["taylor_attention_triton", "taylor_attention_step_triton"]
    wide = torch.zeros(1, 1, 2, 33, device=DEVICE)
    with pytest.raises(ValueError, match="feature_dim 33 is above 32"):
        taylor_attention(wide, wide, wide, impl="triton")
    assert taylor_attention(wide, wide, wide)[0].shape == wide.shape
    with pytest.raises(ValueError, match="do not fit"):
        taylor_attention_step(wide, wide, wide, zero_state(wide, wide))


def strides(names: str, f: int, v: int, axes: str = "bht") -> dict[str, object]:
    """Of q, k and v that lie side by side, for 16 heads, as the kernels call them."""
    channels = 16 * (2 * f + v)
    return {
        f"{x}_{axis}": {"b": 4096 * channels, "h": v if x == "v" else f, "t": channels}[axis]
        for x in names
        for axis in axes
    }


def compiled_cases(kind: str, f: int, v: int, num: int = 2) -> list[Case]:
    """The kernels with products in their first `num` configurations, with q, k and v of a type."""
    features, block = num_taylor_features(f), 16 if f <= 16 else 32
    common: dict[str, object] = {
        "k_ptr": f"*{kind}",
        "v_ptr": f"*{kind}",
        "sum_ptr": "*fp32",
        "heads": 16,
        "t": 4097,
        "v_dim": v,
    }
    common |= {
        "num_chunks": 17,
        "F": f,
        "FEATURES": features,
        "DOT": [kind],
        "CHUNK": 256,
        "BLOCK_K": block,
        "BLOCK_V": 64,
    }
    states = common | strides("kv", f, v) | {"kv_ptr": "*fp32"}
    outputs = (
        common
        | strides("qkv", f, v)
        | {"q_ptr": f"*{kind}", "y_ptr": f"*{kind}", "kv_ptr": f"*{kind}"}
    )
    outputs |= {"eps": 1e-12, "HAS_INITIAL": True}
    precision = "FLOAT" if kind == "fp32" else "HALF"
    results = [
        Case(f"{KERNEL}:chunk_state_kernel", states, f"{KERNEL}:{precision}_STATES", config)
        for config in range(num)
    ]
    return results + [
        Case(f"{KERNEL}:output_kernel", outputs, f"{KERNEL}:{precision}_OUTPUTS", config)
        for config in range(num)
    ]


def compiled_step_and_prefix() -> list[Case]:
    """The kernels without products, for bfloat16 at Based's widths."""
    sums: dict[str, object] = {
        f"{x}{part}_ptr": "*fp32"
        for x in ("kv", "sum")
        for part in ("", "_initial", "_prefix", "_final")
    }
    sums |= {
        "kv_prefix_ptr": "*bf16",
        "kv_width": 153 * 64,
        "sum_width": 153,
        "num_chunks": 17,
        "num_prefixes": 17,
    }
    sums |= {"HAS_INITIAL": True, "WITH_FINAL": True, "DOT": ["bf16"]}
    step: dict[str, object] = {f"{x}_ptr": "*bf16" for x in "qkvy"} | {
        f"{x}_ptr": "*fp32" for x in ("kv", "sum", "new_kv", "new_sum")
    }
    step |= strides("qkv", 16, 64, "bh") | {
        "heads": 16,
        "v_dim": 64,
        "eps": 1e-12,
        "F": 16,
        "FEATURES": 153,
    }
    results = [Case(f"{KERNEL}:step_kernel", step, f"{KERNEL}:STEP", config) for config in range(2)]
    return [*results, Case(f"{KERNEL}:prefix_kernel", sums, f"{KERNEL}:PREFIXES")]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_halves_use_matrix_instructions():
    halves = compiled_cases("bf16", 16, 64) + compiled_cases("fp16", 24, 100, 1)
    results = assert_compiles(
        halves + compiled_cases("fp32", 16, 64) + compiled_step_and_prefix(),
        matrix=None,
    )
    for case, resources in zip(halves, results, strict=False):
        assert resources.instructions.get("HGMMA"), f"{case} uses no HGMMA: {resources}"
    assert results[-1].instructions.get("LDGSTS"), "the prefix kernel loads no chunk ahead"


# What a GPU alone can show.


@pytest.mark.gpu
@pytest.mark.parametrize("std", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("b", "h", "t", "f", "v"),
    [(2, 4, 1000, 16, 64), (1, 2, 513, 8, 60), (1, 2, 300, 24, 100), (3, 2, 17, 16, 96)],
)
@pytest.mark.parametrize("config", range(2))
def test_on_a_gpu_every_type_equals_reference(b, h, t, f, v, dtype, std, config):
    from recallkit.kernels.taylor_attention.triton_impl import (
        taylor_attention_step_triton,
        taylor_attention_triton,
    )

    arguments = drawn(t, b, f, v, dtype, h=h, std=std)
    *tensors, kv, sums = arguments.values()
    for chosen, state in ((BATTERY.bare(arguments), (None, None)), (arguments, (kv, sums))):
        exact, *exact_state = run(exactly(chosen), "reference")
        y, *after = taylor_attention_triton(*tensors, *state, 1e-12, True, config)
        assert_close(y, exact)
        BATTERY.assert_states_close(after, exact_state)
    exact, *exact_state = run(
        exactly(BATTERY.part(arguments, slice(0, 1), [kv, sums])),
        "reference",
    )
    y, *after = taylor_attention_step_triton(
        *(x[:, :, 0] for x in tensors),
        kv,
        sums,
        1e-12,
        config,
    )
    assert_close(y[:, :, None], exact)
    BATTERY.assert_states_close(after, exact_state)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_a_long_text_keeps_its_count_and_its_precision(dtype):
    """Values of a mean of four sum to four times float16's largest number."""
    q, k, v = operands(1, 2, 65_537, 16, 64, dtype=dtype)
    v = v + 3.5
    y, state = taylor_attention(q, k, v, impl="triton")
    exact, wide = taylor_attention(q.double(), k.double(), v.double(), impl="torch")
    for part in (slice(0, 300), slice(32_000, 33_000), slice(65_000, None)):
        assert_close(y[:, :, part], exact[:, :, part])
    assert (state.k[..., 0] == 65_537).all()
    assert relative_error(state.kv, wide.kv) < 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize(("b", "h", "t"), [(16, 16, 32_768), (1050, 32, 1000)])
def test_on_a_gpu_rows_of_a_large_batch_are_as_if_alone(b, h, t):
    """Of the second, q, k and v are of one tensor, and values past element 2^31."""
    z = torch.randn(b, t, h, 16 + 16 + 64, device="cuda", dtype=torch.bfloat16)
    views = [x.transpose(1, 2) for x in torch.split(z, [16, 16, 64], dim=3)]
    y, state = taylor_attention(*views, impl="triton")
    assert y.numel() > 2**31 or t > 30_000
    for row in (0, b // 2, b - 1):
        alone = taylor_attention(*(x[row : row + 1] for x in views), impl="triton")
        assert torch.equal(alone[0], y[row : row + 1])
        assert torch.equal(alone[1].kv, state.kv[row : row + 1])
        assert torch.equal(alone[1].k, state.k[row : row + 1])
    exact, _ = taylor_attention(*(x[b - 1 :, :2].double() for x in views), impl="torch")
    assert_close(y[b - 1 :, :2], exact)
