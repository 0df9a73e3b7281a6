"""`taylor_attention` and its step: the chunked forms equal the formula in float64, whole, in pieces and token by token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recallkit.kernels.choice import preferring
from recallkit.kernels.taylor_attention import torch_impl
from recallkit.kernels.taylor_attention.api import taylor_attention, taylor_attention_step
from recallkit.kernels.taylor_attention.state import TaylorState, num_taylor_features, taylor_features, taylor_scores, zero_state
from recallkit.models.mixers.linear_attention import LinearAttention
from tests.kernels.checks import DEVICE, assert_close, draw, pairwise, relative_error
from tests.kernels.compilation import Case, assert_compiles

KERNEL = "recallkit.kernels.taylor_attention.triton_impl"
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def operands(b: int, h: int, t: int, f: int, v: int, *, std: float = 1.0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q, k of a standard deviation, and v whose mean is not zero."""
    q, k = (draw(b, h, t, f, std=std, dtype=dtype, seed=seed) for seed in (1, 2))
    return q, k, (draw(b, h, t, v, dtype=torch.float64, seed=3) + 0.5).to(dtype)


def earlier(q: Tensor, v: Tensor) -> TaylorState:
    """The state after nine other tokens, which fit q and v."""
    (b, h, _, f), v_dim = q.shape, v.shape[3]
    before = operands(b, h, 9, f, v_dim, dtype=torch.promote_types(v.dtype, torch.float32))
    return taylor_attention(*before, impl="torch")[1]


def exactly(q: Tensor, k: Tensor, v: Tensor, state: TaylorState | None, eps: float = 1e-12) -> tuple[Tensor, TaylorState]:
    """By the reference, in float64."""
    wide = None if state is None else TaylorState(*(x.double() for x in state))
    return taylor_attention(q.double(), k.double(), v.double(), wide, eps=eps, impl="reference")


def assert_equal(made: tuple[Tensor, TaylorState], exact: tuple[Tensor, TaylorState], dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    assert made[0].dtype == dtype
    assert_close(made[0], exact[0])
    for mine, theirs in zip(made[1], exact[1], strict=True):
        assert mine.dtype == wide
        # A GPU sums products of features that are rounded to the operands' type.
        assert_close(mine, theirs, dtype=dtype if mine.is_cuda else wide)


def in_pieces(q: Tensor, k: Tensor, v: Tensor, at: list[int], impl: str) -> tuple[Tensor, TaylorState]:
    outputs, state = [], None
    for start, stop in zip([0, *at], [*at, q.shape[2]], strict=True):
        y, state = taylor_attention(*(x[:, :, start:stop] for x in (q, k, v)), state, impl=impl)
        outputs.append(y)
    return torch.cat(outputs, dim=2), state


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
    scores = 1 + later @ k.transpose(-1, -2) / math.sqrt(6) + (later @ k.transpose(-1, -2)) ** 2 / 12
    torch.testing.assert_close(taylor_features(later) @ state.kv, scores @ v)
    torch.testing.assert_close((taylor_features(later) @ state.k[..., None])[..., 0], scores.sum(dim=-1))


@pytest.mark.parametrize(
    ("sizes", "dtype", "std"), pairwise([(1, 16, 64), (17, 8, 60), (128, 24, 96), (129, 5, 3), (300, 16, 100)], DTYPES, [1, 3])
)
def test_torch_equals_reference(sizes, dtype, std):
    given = operands(2, 2, *sizes, std=std, dtype=dtype)
    for state in (None, earlier(given[0], given[2])):
        assert_equal(taylor_attention(*given, state, impl="torch"), exactly(*given, state), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_torch_step_equals_reference(dtype):
    q, k, v = operands(2, 3, 1, 16, 20, std=3, dtype=dtype)
    state = earlier(q, v)
    y, after = taylor_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state, impl="torch")
    assert_equal((y[:, :, None], after), exactly(q, k, v, state), dtype)


def test_torch_in_two_pieces_is_the_whole_wherever_it_is_cut(monkeypatch):
    monkeypatch.setattr(torch_impl, "CHUNK", 8)
    given = operands(1, 2, 21, 4, 6, dtype=torch.float64)
    whole = taylor_attention(*given, impl="torch")
    assert_equal(whole, exactly(*given, None), torch.float64)
    for at in range(22):
        assert_equal(in_pieces(*given, [at], "torch"), whole, torch.float64)


def test_torch_can_be_differentiated(monkeypatch):
    monkeypatch.setattr(torch_impl, "CHUNK", 3)
    q, k, v = (x.requires_grad_() for x in operands(1, 2, 7, 3, 2, dtype=torch.float64))
    kv, k_sum = (x.detach().requires_grad_() for x in earlier(q.detach(), v.detach()))

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        y, state = taylor_attention(*given[:3], TaylorState(*given[3:]))
        return y, *state

    assert torch.autograd.gradcheck(run, (q, k, v, kv, k_sum))


def test_gradients_are_an_obstacle_to_the_kernel():
    q, k, v = operands(1, 1, 3, 4, 4)
    with pytest.raises(ValueError, match="no backward"):
        taylor_attention(q.requires_grad_(), k, v, impl="triton")


# Both implementations.


@pytest.fixture(params=["torch", "triton"])
def impl(request):
    return request.param


def test_every_short_length(impl):
    q, k, v = operands(1, 1, 17, 8, 60)
    y, _ = exactly(q, k, v, None)
    for t in range(1, 18):
        made, _ = taylor_attention(q[:, :, :t], k[:, :, :t], v[:, :, :t], impl=impl)
        assert_close(made, y[:, :, :t])


def test_prefill_and_steps_are_the_whole(impl):
    given = operands(2, 1, 20, 16, 40)
    whole = exactly(*given, None)
    y, state = taylor_attention(*(x[:, :, :15] for x in given), impl=impl)
    outputs = [y]
    for i in range(15, 20):
        before = TaylorState(*(x.clone() for x in state))
        y, after = taylor_attention_step(*(x[:, :, i] for x in given), state, impl=impl)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(state, before, strict=True)), "the given state is changed"
        outputs.append(y[:, :, None])
        state = after
    assert_equal((torch.cat(outputs, dim=2), state), whole, torch.float32)


def test_the_state_counts_tokens_exactly_and_in_float32(impl):
    q, k, v = operands(1, 1, 300, 4, 16)
    _, state = taylor_attention(q, k, torch.ones_like(v), impl=impl)
    _, state = taylor_attention_step(q[:, :, 0], k[:, :, 0], torch.ones_like(v[:, :, 0]), state, impl=impl)
    assert (state.k[..., 0] == 301).all()
    assert (state.kv[..., 0, :] == 301).all()
    assert state.kv.dtype == state.k.dtype == torch.float32


def test_eps_is_added_to_the_sum_of_weights_and_moves_nothing_where_it_is_small(impl):
    given = operands(1, 1, 20, 8, 16)
    state = earlier(given[0], given[2])
    assert torch.equal(taylor_attention(*given, state, eps=0.0, impl=impl)[0], taylor_attention(*given, state, impl=impl)[0])
    assert_close(taylor_attention(*given, state, eps=50.0, impl=impl)[0], exactly(*given, state, 50.0)[0])
    last = [x[:, :, 0] for x in given]
    assert_close(
        taylor_attention_step(*last, state, eps=50.0, impl=impl)[0], exactly(*(x[:, :, :1] for x in given), state, 50.0)[0][:, :, 0]
    )


@pytest.mark.parametrize("std", [1e-3, 3.0, 100.0])
def test_equal_values_come_out_as_they_are_whatever_the_weights(impl, std):
    q, k, v = operands(1, 1, 40, 16, 16, std=std)
    y, state = taylor_attention(q, k, torch.full_like(v, 1e4), impl=impl)
    torch.testing.assert_close(y, torch.full_like(y, 1e4))
    y, _ = taylor_attention_step(q[:, :, 0], k[:, :, 0], torch.full_like(v[:, :, 0], 1e4), state, impl=impl)
    torch.testing.assert_close(y, torch.full_like(y, 1e4))


def test_strides_are_any(impl):
    q, k, v = operands(2, 2, 18, 8, 20)
    exact = exactly(q, k, v, None)
    beside = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], dim=2)  # (b, t, channels), as one projection gives
    views = [torch.unflatten(part, 2, (2, -1)).transpose(1, 2) for part in torch.split(beside, [16, 16, 40], dim=2)]
    assert not views[0].is_contiguous()
    assert_equal(taylor_attention(*views, impl=impl), exact, torch.float32)
    assert_equal(taylor_attention(*(x.mT.contiguous().mT for x in (q, k, v)), impl=impl), exact, torch.float32)
    state = TaylorState(*(x.transpose(0, 1).contiguous().transpose(0, 1) for x in earlier(q, v)))
    after = exactly(q[:, :, :1], k[:, :, :1], v[:, :, :1], state)
    y, new = taylor_attention_step(*(x[:, :, 0] for x in views), state, impl=impl)
    assert_equal((y[:, :, None], new), after, torch.float32)


def test_no_rows_and_no_tokens(impl):
    q, k, v = operands(1, 2, 5, 4, 6)
    state = earlier(q, v)
    y, after = taylor_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], state, impl=impl)
    assert y.shape == (1, 2, 0, 6)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(after, state, strict=True))
    y, after = taylor_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], impl=impl)
    assert all((x == 0).all() for x in after)
    y, none = taylor_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], impl=impl, final_state=False)
    assert y.shape == (1, 2, 0, 6)
    assert none is None
    y, after = taylor_attention(q[:0], k[:0], v[:0], impl=impl)
    assert y.shape == (0, 2, 5, 6)
    assert after.kv.shape == (0, 2, 15, 6)
    y, after = taylor_attention_step(q[:0, :, 0], k[:0, :, 0], v[:0, :, 0], after, impl=impl)
    assert y.shape == (0, 2, 6)


@pytest.mark.parametrize("with_state", [False, True])
def test_outputs_are_the_same_where_no_final_state_is_asked_for(impl, with_state):
    given = operands(1, 1, 260, 4, 16)
    state = earlier(given[0], given[2]) if with_state else None
    for t in (30, 260):
        part = [x[:, :, :t] for x in given]
        y, after = taylor_attention(*part, state, impl=impl, final_state=False)
        assert after is None
        assert torch.equal(y, taylor_attention(*part, state, impl=impl)[0])


# The kernel for GPUs: interpreted where there is none.


@pytest.mark.parametrize(
    ("h", "t", "f", "v", "std"), [(2, 15, 16, 64, 3), (1, 65, 8, 60, 3), (1, 33, 24, 100, 1), (1, 63, 5, 96, 3), (1, 257, 16, 64, 1)]
)
def test_triton_equals_reference(h, t, f, v, std):
    given = operands(1, h, t, f, v, std=std)
    for state in (None, earlier(given[0], given[2])):
        assert_equal(taylor_attention(*given, state, impl="triton"), exactly(*given, state), torch.float32)


@pytest.mark.parametrize(("f", "v"), [(16, 64), (8, 60), (24, 100), (5, 3), (32, 16)])
def test_triton_step_equals_reference(f, v):
    q, k, values = operands(2, 2, 1, f, v, std=3)
    state = earlier(q, values)
    y, after = taylor_attention_step(q[:, :, 0], k[:, :, 0], values[:, :, 0], state, impl="triton")
    assert_equal((y[:, :, None], after), exactly(q, k, values, state), torch.float32)


@pytest.fixture
def short_chunks(monkeypatch):
    from recallkit.kernels.taylor_attention import triton_impl

    monkeypatch.setattr(triton_impl, "CHUNK", 64)


def test_triton_adds_many_chunks_up(short_chunks):
    given = operands(1, 1, 257, 8, 32)
    for state in (None, earlier(given[0], given[2])):
        assert_equal(taylor_attention(*given, state, impl="triton"), exactly(*given, state), torch.float32)


def test_triton_in_pieces_is_the_whole(short_chunks):
    given = operands(1, 1, 80, 8, 16)
    exact = exactly(*given, None)
    for at in ([1], [63], [64], [65], [20, 21, 70]):
        assert_equal(in_pieces(*given, at, "triton"), exact, torch.float32)


@pytest.mark.parametrize("config", range(2))
def test_every_configuration_gives_the_result(config, short_chunks):
    from recallkit.kernels.taylor_attention import triton_impl

    assert {len(launcher.configs) for launcher in (triton_impl.FLOAT_STATES, triton_impl.FLOAT_OUTPUTS, triton_impl.STEP)} == {2}
    given = operands(1, 1, 130, 16, 80)
    state = earlier(given[0], given[2])
    y, *after = triton_impl.taylor_attention_triton(*given, *state, 1e-12, True, config)
    assert_equal((y, TaylorState(*after)), exactly(*given, state), torch.float32)
    y, *after = triton_impl.taylor_attention_step_triton(*(x[:, :, 0] for x in given), *state, 1e-12, config)
    assert_equal((y[:, :, None], TaylorState(*after)), exactly(*(x[:, :, :1] for x in given), state), torch.float32)


def test_triton_rows_do_not_depend_on_each_other(short_chunks):
    given = operands(2, 2, 70, 8, 16)
    state = earlier(given[0], given[2])
    whole = taylor_attention(*given, state, impl="triton")
    alone = taylor_attention(*(x[1:, 1:] for x in given), TaylorState(*(x[1:, 1:] for x in state)), impl="triton")
    assert torch.equal(alone[0], whole[0][1:, 1:])
    assert all(torch.equal(mine, theirs[1:, 1:]) for mine, theirs in zip(alone[1], whole[1], strict=True))
    # Nor do chunks on later ones, even where these are no numbers.
    for x in given:
        x[:, :, 66:] = math.nan
    assert torch.equal(taylor_attention(*given, state, impl="triton")[0][:, :, :64], whole[0][:, :, :64])


def test_triton_is_an_operation_that_torch_can_trace():
    from recallkit.kernels.taylor_attention.triton_impl import taylor_attention_step_triton, taylor_attention_triton

    given = operands(1, 2, 5, 4, 6)
    state = earlier(given[0], given[2])
    token = [x[:, :, 0] for x in given]
    torch.library.opcheck(taylor_attention_triton, (*given, None, None, 1e-12, True))
    torch.library.opcheck(taylor_attention_triton, (*given, *state, 1e-12, False))
    torch.library.opcheck(taylor_attention_step_triton, (*token, *state, 1e-12))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y, state = taylor_attention(q, k, v, impl="triton")
        return taylor_attention_step(q[:, :, 0], k[:, :, 0], y[:, :, 4], state, impl="triton")[0]

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(*given), run(*given))


@pytest.mark.parametrize("short_conv", [0, 3])
def test_the_mixer_on_the_kernel_equals_its_reference(short_conv, monkeypatch):
    from recallkit.kernels.taylor_attention import triton_impl

    calls = []
    for name in ("taylor_attention_triton", "taylor_attention_step_triton"):
        run = getattr(triton_impl, name)
        monkeypatch.setattr(triton_impl, name, lambda *given, run=run, name=name: calls.append(name) or run(*given))
    mixer = LinearAttention(16, num_heads=2, feature_dim=4, short_conv=short_conv).to(DEVICE).eval()
    u = draw(2, 9, 16)
    with preferring("triton"), torch.no_grad():
        wanted = mixer.double().reference(u.double())
        mixer.float()
        assert_close(mixer(u), wanted, times=5)
        first, state = mixer.read(u[:, :6], mixer.initial_state(2))
        outputs = [first]
        for i in range(6, 9):
            y, state = mixer.step(u[:, i], state)
            outputs.append(y[:, None])
    assert_close(torch.cat(outputs, dim=1), wanted, times=5)
    assert calls == ["taylor_attention_triton"] * 2 + ["taylor_attention_step_triton"] * 3


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 6), "do not fit"),
        ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 5, 6), "do not fit"),
        ((2, 3, 4), (2, 3, 4), (2, 3, 6), "do not fit"),
        ((1, 2, 3, 0), (1, 2, 3, 0), (1, 2, 3, 6), "do not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_named(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        taylor_attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def test_types_states_and_implementations_that_do_not_fit_are_named():
    q, k, v = (x.cpu() for x in operands(1, 2, 3, 4, 6))
    with pytest.raises(ValueError, match="one floating type"):
        taylor_attention(q.bfloat16(), k, v)
    state = zero_state(q, v)
    with pytest.raises(ValueError, match="kv must be"):
        taylor_attention(q, k, v, TaylorState(state.kv[:, :, 1:], state.k))
    with pytest.raises(ValueError, match=r"k must be torch\.float32"):
        taylor_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], TaylorState(state.kv, state.k.bfloat16()))
    with pytest.raises(ValueError, match="do not fit"):
        taylor_attention_step(q, k, v, state)
    with pytest.raises(ValueError, match="impl"):
        taylor_attention(q, k, v, impl="fast")
    wide = torch.zeros(1, 1, 2, 33, device=DEVICE)
    with pytest.raises(ValueError, match="feature_dim 33 is above 32"):
        taylor_attention(wide, wide, wide, impl="triton")
    assert taylor_attention(wide, wide, wide)[0].shape == wide.shape


def strides(names: str, f: int, v: int, axes: str = "bht") -> dict[str, object]:
    """Of q, k and v that lie side by side, for 16 heads, as the kernels call them."""
    channels = 16 * (2 * f + v)
    return {f"{x}_{axis}": {"b": 4096 * channels, "h": v if x == "v" else f, "t": channels}[axis] for x in names for axis in axes}


def compiled_cases(kind: str, f: int, v: int, num: int = 2) -> list[Case]:
    """The kernels with products in their first `num` configurations, with q, k and v of a type."""
    features, block = num_taylor_features(f), 16 if f <= 16 else 32
    common: dict[str, object] = {"k_ptr": f"*{kind}", "v_ptr": f"*{kind}", "sum_ptr": "*fp32", "heads": 16, "t": 4097, "v_dim": v}
    common |= {"num_chunks": 17, "F": f, "FEATURES": features, "DOT": [kind], "CHUNK": 256, "BLOCK_K": block, "BLOCK_V": 64}
    states = common | strides("kv", f, v) | {"kv_ptr": "*fp32"}
    outputs = common | strides("qkv", f, v) | {"q_ptr": f"*{kind}", "y_ptr": f"*{kind}", "kv_ptr": f"*{kind}"}
    outputs |= {"eps": 1e-12, "HAS_INITIAL": True}
    precision = "FLOAT" if kind == "fp32" else "HALF"
    found = [Case(f"{KERNEL}:chunk_state_kernel", states, f"{KERNEL}:{precision}_STATES", config) for config in range(num)]
    return found + [Case(f"{KERNEL}:output_kernel", outputs, f"{KERNEL}:{precision}_OUTPUTS", config) for config in range(num)]


def compiled_step_and_prefix() -> list[Case]:
    """The kernels without products, for bfloat16 at Based's widths."""
    sums: dict[str, object] = {f"{x}{part}_ptr": "*fp32" for x in ("kv", "sum") for part in ("", "_initial", "_prefix", "_final")}
    sums |= {"kv_prefix_ptr": "*bf16", "kv_width": 153 * 64, "sum_width": 153, "num_chunks": 17, "num_prefixes": 17}
    sums |= {"HAS_INITIAL": True, "WITH_FINAL": True, "DOT": ["bf16"]}
    step: dict[str, object] = {f"{x}_ptr": "*bf16" for x in "qkvy"} | {f"{x}_ptr": "*fp32" for x in ("kv", "sum", "new_kv", "new_sum")}
    step |= strides("qkv", 16, 64, "bh") | {"heads": 16, "v_dim": 64, "eps": 1e-12, "F": 16, "FEATURES": 153}
    found = [Case(f"{KERNEL}:step_kernel", step, f"{KERNEL}:STEP", config) for config in range(2)]
    return [*found, Case(f"{KERNEL}:prefix_kernel", sums, f"{KERNEL}:PREFIXES")]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_halves_use_matrix_instructions():
    halves = compiled_cases("bf16", 16, 64) + compiled_cases("fp16", 24, 100, 1)
    found = assert_compiles(halves + compiled_cases("fp32", 16, 64) + compiled_step_and_prefix(), matrix=None)
    for case, resources in zip(halves, found, strict=False):
        assert resources.instructions.get("HGMMA"), f"{case} uses no HGMMA: {resources}"
    assert found[-1].instructions.get("LDGSTS"), "the prefix kernel loads no chunk ahead"


# What a GPU alone can show.


@pytest.mark.gpu
@pytest.mark.parametrize("std", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("b", "h", "t", "f", "v"), [(2, 4, 1000, 16, 64), (1, 2, 513, 8, 60), (1, 2, 300, 24, 100), (3, 2, 17, 16, 96)])
@pytest.mark.parametrize("config", range(2))
def test_on_a_gpu_every_type_equals_reference(b, h, t, f, v, dtype, std, config):
    from recallkit.kernels.taylor_attention.triton_impl import taylor_attention_step_triton, taylor_attention_triton

    given = operands(b, h, t, f, v, std=std, dtype=dtype)
    for state in (None, earlier(given[0], given[2])):
        y, *after = taylor_attention_triton(*given, *(state or (None, None)), 1e-12, True, config)
        assert_equal((y, TaylorState(*after)), exactly(*given, state), dtype)
    y, *after = taylor_attention_step_triton(*(x[:, :, 0] for x in given), *state, 1e-12, config)
    assert_equal((y[:, :, None], TaylorState(*after)), exactly(*(x[:, :, :1] for x in given), state), dtype)


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
    given = [x.transpose(1, 2) for x in torch.split(z, [16, 16, 64], dim=3)]
    y, state = taylor_attention(*given, impl="triton")
    assert y.numel() > 2**31 or t > 30_000
    for row in (0, b // 2, b - 1):
        alone = taylor_attention(*(x[row : row + 1] for x in given), impl="triton")
        assert torch.equal(alone[0], y[row : row + 1])
        assert torch.equal(alone[1].kv, state.kv[row : row + 1])
        assert torch.equal(alone[1].k, state.k[row : row + 1])
    exact, _ = taylor_attention(*(x[b - 1 :, :2].double() for x in given), impl="torch")
    assert_close(y[b - 1 :, :2], exact)
