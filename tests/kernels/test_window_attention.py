"""`window_attention` and its step: every implementation equals the float64 reference, wherever in
its ring a row has come."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from recallkit.kernels.choice import preferring
from recallkit.kernels.window_attention.api import window_attention, window_attention_step
from recallkit.kernels.window_attention.state import (
    WindowState,
    empty_window,
    positions_in_ring,
    rotate,
    written_ring,
)
from recallkit.models.mixers.sliding_window import SlidingWindow
from tests.kernels.checks import DEVICE, TOLERANCES, assert_close, draw, of_the_compiler, pairwise
from tests.kernels.compilation import Case, assert_compiles

HALVES = (torch.float16, torch.bfloat16)


def tokens(*shape: int, std: float = 1.0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q and k of a standard deviation, v of 1."""
    return [
        draw(*shape, std=size, dtype=dtype, seed=seed) for seed, size in enumerate((std, std, 1.0))
    ]


def filled(
    num_read: list[int],
    h: int,
    window: int,
    k: int,
    dtype: torch.dtype = torch.float32,
    std: float = 1.0,
) -> WindowState:
    """Rings whose rows have read these numbers of tokens; slots that none has reached are zeros."""
    counts = torch.tensor(num_read, device=DEVICE)
    reached = (positions_in_ring(counts, window) >= 0)[:, None, :, None]
    keys, values = (
        draw(len(num_read), h, window, k, std=size, dtype=dtype, seed=9 + i) * reached
        for i, size in enumerate((std, 1.0))
    )
    return WindowState(keys, values, counts)


def copied(state: WindowState, dtype: torch.dtype | None = None) -> WindowState:
    keys, values = (ring.to(dtype or ring.dtype, copy=True) for ring in state[:2])
    return WindowState(keys, values, state.num_read.clone())


def exact_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: WindowState,
    **rope,
) -> tuple[Tensor, WindowState]:
    return window_attention_step(
        *(x.double() for x in (q, k, v)),
        copied(state, torch.float64),
        **rope,
        impl="reference",
    )


def assert_steps(
    actual: tuple[Tensor, WindowState],
    exact: tuple[Tensor, WindowState],
    dtype: torch.dtype,
    times: float = 1,
) -> None:
    (y, state), (wanted, after) = actual, exact
    assert y.dtype == state.keys.dtype == state.values.dtype == dtype
    assert_close(y, wanted, times=times)
    assert_close(state.keys, after.keys)
    assert torch.equal(state.values, after.values.to(dtype))
    assert torch.equal(state.num_read, after.num_read)


# A whole text.


@pytest.mark.parametrize(
    ("window", "t", "std"),
    pairwise([1, 2, 7, 64], [1, 15, 17, 64, 130], [1.0, 3.0]),
)
def test_torch_equals_reference(window, t, std):
    for dtype in (torch.float32, torch.float64):
        q, k, v = tokens(2, 2, t, 24, std=std, dtype=dtype)
        exact = window_attention(q.double(), k.double(), v.double(), window, impl="reference")
        assert_close(window_attention(q, k, v, window, impl="torch"), exact, dtype=dtype)


@pytest.mark.parametrize("width", [16, 64, 100])
@pytest.mark.parametrize("dtype", HALVES)
def test_torch_takes_half_precision_and_odd_widths(width, dtype):
    q, k, v = tokens(1, 2, 65, width, dtype=dtype)
    actual = window_attention(q, k, v, 16, impl="torch")
    assert actual.dtype == dtype
    assert_close(actual, window_attention(q.double(), k.double(), v.double(), 16, impl="reference"))


def test_a_query_sees_as_many_keys_as_the_window_has():
    """Equal scores: the mean of the values num_read, counted by hand."""
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).view(1, 1, 5, 1)
    for impl in ("reference", "torch"):
        y = window_attention(torch.zeros(1, 1, 5, 1), torch.zeros(1, 1, 5, 1), values, 2, impl=impl)
        assert y.flatten().tolist() == pytest.approx([1, 1.5, 3, 6, 12])


def test_strides_do_not_matter_and_nothing_is_nothing():
    q, k, v = tokens(2, 40, 3, 16)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    assert_close(
        window_attention(*turned, 4, impl="torch"),
        window_attention(*(x.contiguous() for x in turned), 4, impl="reference"),
    )
    for impl in ("reference", "torch"):
        assert window_attention(*(x[:, :, :0] for x in turned), 4, impl=impl).shape == (2, 3, 0, 16)


@pytest.mark.parametrize(("t", "window"), [(3, 4), (5, 4), (11, 4)])
def test_gradients_of_a_whole_text(t, window):
    operands = [x.requires_grad_() for x in tokens(1, 1, t, 3, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda q, k, v: window_attention(q, k, v, window), operands)


def test_a_whole_text_has_no_kernel_on_cpu():
    q, k, v = (torch.randn(1, 1, 40, 16) for _ in range(3))
    with pytest.raises(ValueError, match=r"window_attention: impl=.triton. cannot run"):
        window_attention(q, k, v, 4, impl="triton")
    with preferring("triton"):
        assert torch.equal(window_attention(q, k, v, 4), window_attention(q, k, v, 4, impl="torch"))


@pytest.mark.parametrize("window", [1, 2, 5, 64])
def test_positions_in_a_ring_are_the_latest_of_each_slot(window):
    num_read = [0, 1, window - 1, window, window + 1, 3 * window + 2]
    for count, positions in zip(
        num_read,
        positions_in_ring(torch.tensor(num_read), window).tolist(),
        strict=True,
    ):
        for slot, position in enumerate(positions):
            reached = [p for p in range(count) if p % window == slot]
            assert position == reached[-1] if reached else position < 0


@pytest.mark.parametrize("t", [1, 3, 5, 6, 14])
def test_a_ring_is_written_as_token_by_token(t):
    num_read, x = torch.tensor([0, 3, 17]), draw(3, 2, t, 4).cpu()
    ring = torch.zeros(3, 2, 5, 4)
    by_hand = ring.clone()
    for row, i in itertools.product(range(3), range(t)):
        by_hand[row, :, (int(num_read[row]) + i) % 5] = x[row, :, i]
    assert torch.equal(written_ring(ring, x, num_read), by_hand)
    assert (ring == 0).all()
    assert written_ring(ring, x, num_read, inplace=True) is ring
    assert torch.equal(ring, by_hand)


# The next token.

SIZES = [(1, 16, 16), (2, 24, 12), (64, 64, 64), (5, 100, 50), (17, 100, 0), (130, 16, 8)]
"""Windows, widths of a head and of its rotated part."""


@pytest.mark.parametrize(("window", "width", "rope_width"), SIZES)
@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_step_equals_reference(window, width, rope_width, impl, inplace):
    """With rows at different places: at the start, in the first round, at its end and several
    rounds on."""
    state = filled([0, 1, window - 1, 3 * window + 1], 2, window, width, std=3.0)
    q, k, v = tokens(4, 2, width, std=3.0)
    rope = {"rope_base": 500.0, "rope_width": rope_width}
    actual = window_attention_step(q, k, v, copied(state), **rope, inplace=inplace, impl=impl)
    assert_steps(actual, exact_step(q, k, v, state, **rope), torch.float32)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_the_rotation_is_exact_far_on(impl):
    """In float32 the angle of position 1e5 would be off by 1e-2."""
    positions = [0, 63, 64, 65, 100_000, 2**31 + 7]
    state = empty_window(6, 1, 64, 64, like=torch.zeros(1, device=DEVICE))._replace(
        num_read=torch.tensor(positions, device=DEVICE),
    )
    k = draw(6, 1, 64)
    _, after = window_attention_step(k, k, k, state, rope_width=64, impl=impl)
    for row, position in enumerate(positions):
        angles = [position * 10000.0 ** (-i / 32) for i in range(32)]
        cos = torch.tensor(list(map(math.cos, angles)))
        sin = torch.tensor(list(map(math.sin, angles)))
        first, second = k[row, 0].cpu()[:32], k[row, 0].cpu()[32:]
        exact = torch.cat([first * cos - second * sin, second * cos + first * sin])
        assert (after.keys[row, 0, position % 64].cpu() - exact).abs().max() < 2e-6, position


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_a_torch_step_takes_any_precision(dtype):
    state, (q, k, v) = filled([0, 40, 1000], 2, 64, 64, dtype), tokens(3, 2, 64, dtype=dtype)
    actual = window_attention_step(q, k, v, copied(state), rope_width=64, impl="torch")
    assert_steps(actual, exact_step(q, k, v, state, rope_width=64), dtype)


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_the_state_given_stays_and_in_place_gives_the_same_bits(impl):
    state, (q, k, v) = filled([0, 3, 9], 2, 5, 24), tokens(3, 2, 24)
    before = copied(state)
    y, after = window_attention_step(q, k, v, state, rope_width=12, impl=impl)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(state, before, strict=True))
    written, new = window_attention_step(q, k, v, state, rope_width=12, inplace=True, impl=impl)
    assert torch.equal(written, y)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(new, after, strict=True))
    assert new.keys is state.keys
    assert new.values is state.values
    assert torch.equal(state.num_read, before.num_read)


@pytest.mark.parametrize(
    ("impl", "window", "t"),
    [("torch", 1, 4), ("torch", 2, 9), ("torch", 5, 18), ("triton", 1, 2), ("triton", 2, 5)],
)
def test_whole_is_prefill_and_steps_at_every_split(impl, window, t):
    q, k, v = tokens(1, 2, t, 16)
    turned = [
        rotate(x.double(), torch.arange(t, device=DEVICE), base=100.0, width=8) for x in (q, k)
    ]
    at_once = window_attention(*turned, v.double(), window, impl="reference")
    for split in range(window + 1):
        empty = empty_window(1, 2, window, 16, like=q)
        rings = (
            written_ring(ring, x[:, :, :split].float(), empty.num_read)
            for ring, x in zip(empty[:2], (turned[1], v), strict=True)
        )
        state = WindowState(*rings, empty.num_read + split)
        for i in range(split, t):
            y, state = window_attention_step(
                *(x[:, :, i] for x in (q, k, v)),
                state,
                rope_base=100.0,
                rope_width=8,
                inplace=i % 2 == 0,
                impl=impl,
            )
            assert_close(y, at_once[:, :, i])


def test_a_row_depends_on_no_other():
    state, (q, k, v) = filled([2, 70, 9], 2, 8, 24), tokens(3, 2, 24)
    for impl in ("torch", "triton"):
        both, after = window_attention_step(q, k, v, state, rope_width=24, impl=impl)
        one = WindowState(*(part[1:2] for part in state))
        alone, left = window_attention_step(q[1:2], k[1:2], v[1:2], one, rope_width=24, impl=impl)
        assert torch.equal(both[1:2], alone)
        assert all(torch.equal(part[1:2], own) for part, own in zip(after, left, strict=True))


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_slots_that_no_token_has_reached_are_not_seen(impl):
    state, (q, k, v) = filled([0, 3], 2, 70, 16), tokens(2, 2, 16)
    y, _ = window_attention_step(q, k, v, state, rope_width=16, impl=impl)
    reached = (positions_in_ring(state.num_read, 70) >= 0)[:, None, :, None]
    other = WindowState(*(torch.where(reached, ring, 1e4) for ring in state[:2]), state.num_read)
    assert torch.equal(window_attention_step(q, k, v, other, rope_width=16, impl=impl)[0], y)


def test_large_scores_do_not_overflow():
    state, (q, k, v) = filled([2, 40], 2, 32, 16, std=300.0), tokens(2, 2, 16, std=300.0)
    exact = exact_step(q, k, v, state, rope_width=16)
    for impl in ("torch", "triton"):
        # Scores of 1e5 leave float32 1e-2: the largest must win, and nothing be infinite.
        y, _ = window_attention_step(q, k, v, state, rope_width=16, impl=impl)
        assert_close(y, exact[0], times=0.05 / TOLERANCES[torch.float32])


@pytest.mark.parametrize("config", range(2))
def test_every_configuration_gives_the_result(config):
    """On rings that are several tiles in each, with one slot in the last, in which the first row
    is."""
    from recallkit.kernels.window_attention import triton_impl

    launchers = (triton_impl.HALF_STEP, triton_impl.FLOAT_STEP)
    assert [len(launcher.configs) for launcher in launchers] == [2, 2]
    state, (q, k, v) = filled([128, 300], 1, 129, 100, std=3.0), tokens(2, 1, 100, std=3.0)
    exact = exact_step(q, k, v, state, rope_width=50)
    with pytest.MonkeyPatch.context() as patch:
        # Halves' tiles on float32, which is all that the interpreter multiplies.
        patch.setattr(triton_impl, "FLOAT_STEP", launchers[0])
        y, *after = triton_impl.window_attention_step_new(q, k, v, *state, 10000.0, 50, config)
    assert_steps((y, WindowState(*after)), exact, torch.float32)
    actual = copied(state)
    y, num_read = triton_impl.window_attention_step_inplace(q, k, v, *actual, 10000.0, 50, config)
    assert_steps((y, actual._replace(num_read=num_read)), exact, torch.float32)


def test_a_step_takes_any_strides_and_no_rows():
    z, state = draw(3, 3, 2, 24), filled([0, 4, 12], 2, 6, 24)
    exact = exact_step(*z.unbind(1), state, rope_width=24)
    spread = draw(3, 2, 24, 2)
    spread[..., 0] = z[:, 0]
    turned = WindowState(
        *(ring.transpose(1, 2).contiguous().transpose(1, 2) for ring in state[:2]),
        state.num_read,
    )
    for impl in ("torch", "triton"):
        assert_steps(
            window_attention_step(*z.unbind(1), turned, rope_width=24, impl=impl),
            exact,
            torch.float32,
        )
        assert_steps(
            window_attention_step(
                spread[..., 0],
                z[:, 1],
                z[:, 2],
                state,
                rope_width=24,
                impl=impl,
            ),
            exact,
            torch.float32,
        )
        none = WindowState(*(part[:0] for part in state))
        for inplace in (False, True):
            y, after = window_attention_step(
                *(x[:0] for x in z.unbind(1)),
                none,
                rope_width=24,
                inplace=inplace,
                impl=impl,
            )
            assert [y.shape[0], *(part.shape[0] for part in after)] == [0] * 4


def test_gradients_of_a_step():
    state = filled([0, 3, 9], 1, 4, 4, torch.float64)
    operands = [x.requires_grad_() for x in (*tokens(3, 1, 4, dtype=torch.float64), *state[:2])]

    def step(q, k, v, keys, values):
        y, after = window_attention_step(
            q,
            k,
            v,
            WindowState(keys, values, state.num_read),
            rope_width=2,
        )
        return y, after.keys, after.values

    assert torch.autograd.gradcheck(step, operands)


def test_a_step_is_an_operation_that_torch_can_trace():
    from recallkit.kernels.window_attention.triton_impl import (
        window_attention_step_inplace,
        window_attention_step_new,
    )

    state, (q, k, v) = filled([1, 9], 1, 4, 16), tokens(2, 1, 16)
    for operation in (window_attention_step_new, window_attention_step_inplace):
        torch.library.opcheck(operation, (q, k, v, *copied(state), 10000.0, 16))
    for inplace in (False, True):

        def step(
            q: Tensor,
            state: WindowState,
            inplace: bool = inplace,
        ) -> tuple[Tensor, WindowState]:
            return window_attention_step(
                q,
                k,
                v,
                state,
                rope_width=16,
                inplace=inplace,
                impl="triton",
            )

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        with torch.inference_mode():
            y, after = compiled(q, copied(state))
            wanted, left = step(q, copied(state))
        assert torch.equal(y, wanted)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(after, left, strict=True))


def test_a_kernel_refuses_gradients_that_torch_gives():
    state, (q, k, v) = filled([1], 1, 4, 16), tokens(1, 1, 16)
    with pytest.raises(ValueError, match="no backward"):
        window_attention_step(q.requires_grad_(), k, v, state, rope_width=16, impl="triton")
    assert window_attention_step(q, k, v, state, rope_width=16)[0].requires_grad


@pytest.mark.parametrize(
    "options",
    [{"qk_norm": True, "rope_fraction": 0.5}, {"short_conv": 3, "rope_fraction": 0.0}],
)
def test_the_mixer_steps_with_the_kernel(options, monkeypatch):
    from recallkit.kernels.window_attention import triton_impl

    torch.manual_seed(0)
    mixer = SlidingWindow(16, num_heads=2, window=5, **options).eval().to(DEVICE)
    u, launched = draw(1, 12, 16), []
    launch = triton_impl._launch
    monkeypatch.setattr(
        triton_impl,
        "_launch",
        lambda *operands: launched.append(1) or launch(*operands),
    )
    with preferring("triton"), torch.no_grad():
        wanted = mixer.reference(u)
        assert_close(mixer(u), wanted, times=5)
        y, state = mixer.read(u[:, :3], mixer.initial_state(1))
        stepped = [y]
        for i in range(3, 12):
            y, state = mixer.step(u[:, i], state)
            stepped.append(y.unsqueeze(1))
    assert_close(torch.cat(stepped, 1), wanted, times=5)
    assert len(launched) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 3, 4)}, "one shape"),
        ({"v": torch.zeros(2, 1, 8, dtype=torch.float64)}, "one floating type"),
        ({"keys": torch.zeros(2, 1, 4, 6)}, "rings must be"),
        ({"values": torch.zeros(2, 1, 5, 8)}, "rings must be"),
        ({"keys": torch.zeros(2, 1, 0, 8), "values": torch.zeros(2, 1, 0, 8)}, "sees nothing"),
        ({"num_read": torch.zeros(2, dtype=torch.int32)}, "num_read must be int64"),
        ({"num_read": torch.zeros(3, dtype=torch.int64)}, "num_read must be int64"),
        ({"rope_width": 3}, "rope_width"),
        ({"rope_width": 10}, "rope_width"),
        ({"keys": torch.zeros(2, 1, 8, 4).transpose(2, 3), "inplace": True}, "contiguous"),
        ({"impl": "fast"}, "impl"),
    ],
)
def test_what_does_not_fit_a_step_is_named(change, message):
    operands = {
        "q": torch.zeros(2, 1, 8),
        "k": torch.zeros(2, 1, 8),
        "v": torch.zeros(2, 1, 8),
        "keys": torch.zeros(2, 1, 4, 8),
    }
    operands |= {
        "values": torch.zeros(2, 1, 4, 8),
        "num_read": torch.zeros(2, dtype=torch.int64),
        "rope_width": 8,
    } | change
    state = WindowState(operands.pop("keys"), operands.pop("values"), operands.pop("num_read"))
    with pytest.raises(ValueError, match=message):
        window_attention_step(
            operands.pop("q"),
            operands.pop("k"),
            operands.pop("v"),
            state,
            **operands,
        )


def test_what_does_not_fit_a_text_is_named():
    x = torch.zeros(1, 1, 4, 8)
    for q, k, window, message in (
        (x, x[:, :, :3], 4, "one shape"),
        (x[0], x[0], 4, "one shape"),
        (x, x.double(), 4, "floating type"),
        (x, x, 0, "sees"),
    ):
        with pytest.raises(ValueError, match=message):
            window_attention(q, k, q, window)


def compiled_cases() -> list[Case]:
    """The step in every configuration: heads of 64 with windows of 64 and 128 in half precision,
    and a ring of several tiles."""
    module, results = "recallkit.kernels.window_attention.triton_impl", []
    tensors = (
        "q_ptr",
        "k_ptr",
        "v_ptr",
        "keys_ptr",
        "values_ptr",
        "y_ptr",
        "new_keys_ptr",
        "new_values_ptr",
    )
    # A new ring takes more registers than one that is written in place.
    kinds = [("bf16", 64, 64, 64, False, config) for config in range(2)] + [
        ("fp32", 64, 64, 64, False, config) for config in range(2)
    ]
    kinds += [
        ("bf16", 64, 64, 64, True, 0),
        ("fp16", 128, 64, 32, False, 0),
        ("bf16", 128, 128, 128, False, 0),
        ("fp32", 130, 100, 0, True, 0),
    ]
    for kind, window, width, rope_width, inplace, config in kinds:
        operands = dict.fromkeys(tensors, f"*{kind}") | {
            "seen_ptr": "*i64",
            "new_seen_ptr": "*i64",
            "turns_ptr": "*i64" if rope_width else None,
        }
        operands |= {
            f"{name}_{axis}": size
            for name in "qkv"
            for axis, size in (("row", 48 * width), ("head", width))
        }
        operands |= {
            "num_heads": 16,
            "scale": width**-0.5,
            "WINDOW": window,
            "WIDTH": width,
            "HALF": rope_width // 2,
        }
        operands |= {
            "BLOCK_K": 1 << (width - 1).bit_length(),
            "MOST_SLOTS": 1 << (window - 1).bit_length(),
        }
        launcher = f"{module}:{'FLOAT_STEP' if kind == 'fp32' else 'HALF_STEP'}"
        results.append(
            Case(f"{module}:step_kernel", operands | {"INPLACE": inplace}, launcher, config),
        )
    return results


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills():
    assert_compiles(compiled_cases(), matrix=None)


# On a GPU.


@of_the_compiler
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    ("t", "window", "width"),
    [(1000, 64, 64), (513, 100, 100), (65, 1, 16), (2048, 128, 128)],
)
def test_on_a_gpu_a_whole_text_equals_reference(t, window, width, dtype):
    q, k, v = tokens(2, 3, t, width, dtype=dtype)
    exact = window_attention(q.double(), k.double(), v.double(), window, impl="torch")
    # FlexAttention multiplies float32 in TF32 where torch allows it.
    assert_close(
        window_attention(q, k, v, window, impl="triton"),
        exact,
        times=1 if dtype in HALVES else 500,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("std", [1.0, 3.0])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("window", "width", "rope_width"), SIZES)
def test_on_a_gpu_steps_in_half_precision_equal_reference(window, width, rope_width, dtype, std):
    state, (q, k, v) = (
        filled([0, 1, window - 1, 100_000], 2, window, width, dtype, std),
        tokens(4, 2, width, std=std, dtype=dtype),
    )
    exact = exact_step(q, k, v, state, rope_width=rope_width)
    actual = window_attention_step(q, k, v, state, rope_width=rope_width, impl="triton")
    # The new key is rounded, which a score of a few dozen feels.
    assert_steps(actual, exact, dtype, times=4)
    y, after = window_attention_step(
        q,
        k,
        v,
        state,
        rope_width=rope_width,
        inplace=True,
        impl="triton",
    )
    assert_close(y, actual[0].double())
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(after, actual[1], strict=True))


@pytest.mark.gpu
def test_on_a_gpu_rings_of_more_than_2_to_31_numbers_are_addressed():
    rows, last = 2**31 // (16 * 64 * 64) + 64, 64
    state = empty_window(rows, 16, 64, 64, like=torch.zeros(1, dtype=torch.bfloat16, device=DEVICE))
    state = state._replace(num_read=torch.full((rows,), 70, device=DEVICE))
    for ring in state[:2]:
        ring[-last:].normal_()
    q, k, v = (torch.randn(rows, 16, 64, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))
    y, after = window_attention_step(q, k, v, state, rope_width=64, impl="triton")
    few = WindowState(*(part[-last:] for part in state))
    wanted, left = window_attention_step(
        *(x[-last:] for x in (q, k, v)),
        few,
        rope_width=64,
        impl="triton",
    )
    assert torch.equal(y[-last:], wanted)
    assert all(torch.equal(mine[-last:], theirs) for mine, theirs in zip(after, left, strict=True))


@pytest.mark.gpu
def test_on_a_gpu_a_step_goes_into_a_graph():
    state, (q, k, v) = (
        filled([3, 90], 4, 64, 64, torch.bfloat16),
        tokens(2, 4, 64, dtype=torch.bfloat16),
    )
    wanted, after = window_attention_step(q, k, v, state, rope_width=64, impl="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, new = window_attention_step(q, k, v, state, rope_width=64, impl="triton")
    graph.replay()
    assert torch.equal(y, wanted)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(new, after, strict=True))
