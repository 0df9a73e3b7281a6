"""`short_conv`: PyTorch's and the kernel equal the float64 sum, with every option, whole, in pieces and step by step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recallkit.kernels.choice import preferring
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.base_conv import BaseConv, GatedShortConv
from tests.kernels.checks import DEVICE, TOLERANCES, assert_close, draw, pairwise
from tests.kernels.compilation import Case, assert_compiles

OPTIONS = ("bias", "history", "gate")


def given(b: int, t: int, c: int, k: int, dtype: torch.dtype = torch.float64, *, options: Sequence[str] = OPTIONS) -> dict[str, Tensor]:
    """The tensors by name; the history is wide."""
    shapes = {"u": (b, t, c), "taps": (c, k), "bias": (c,), "history": (b, k - 1, c), "gate": (b, t, c)}
    wide = {"history": torch.promote_types(dtype, torch.float32)}
    return {
        name: draw(*shape, dtype=wide.get(name, dtype), seed=seed)
        for seed, (name, shape) in enumerate(shapes.items())
        if name not in OPTIONS or name in options
    }


def doubled(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in tensors.items()}


def check(tensors: dict[str, Tensor], impl: str, activation: str | None = "silu") -> None:
    """y against the sum in float64; the new history to the last bit."""
    exact, exact_latest = short_conv(**doubled(tensors), activation=activation, impl="reference")
    y, latest = short_conv(**tensors, activation=activation, impl=impl)
    assert y.dtype == tensors["u"].dtype
    assert latest.dtype == tensors.get("history", tensors["u"]).dtype
    assert_close(y, exact)
    assert torch.equal(latest.double(), exact_latest)


def test_a_sum_by_hand():
    """Taps 10 (the present), 1 and 0.5; before 1, 2, 3 came 4 and 6."""
    u = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1).to(DEVICE)
    taps, history = torch.tensor([[0.5, 1.0, 10.0]], device=DEVICE), torch.tensor([4.0, 6.0], device=DEVICE).view(1, 2, 1)
    for impl in ("reference", "torch", "triton"):
        y, latest = short_conv(u, taps, impl=impl)
        assert y.flatten().tolist() == [10, 20 + 1, 30 + 2 + 0.5]
        y, latest = short_conv(u, taps, bias=torch.tensor([100.0], device=DEVICE), history=history, gate=2 * u, impl=impl)
        assert y.flatten().tolist() == [2 * (110 + 6 + 2), 4 * (120 + 1 + 3), 6 * (130 + 2 + 0.5)]
        assert latest.flatten().tolist() == [2, 3]
        assert short_conv(u[:, :1], taps, history=history, impl=impl)[1].flatten().tolist() == [6, 1]
        assert short_conv(u[:, :1], taps, impl=impl)[1].flatten().tolist() == [0, 1]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_is_the_convolution_of_torch(k):
    tensors = given(2, 9, 6, k, options=("bias",))
    wanted = functional.conv1d(tensors["u"].mT, tensors["taps"].unsqueeze(1), tensors["bias"], padding=k - 1, groups=6)[..., :9].mT
    for impl in ("reference", "torch"):
        assert_close(short_conv(**tensors, impl=impl)[0], wanted)


@pytest.mark.parametrize(("k", "dtype", "options"), pairwise([1, 2, 3, 4, 7, 12], list(TOLERANCES), [(), ("bias",), ("history",), OPTIONS]))
def test_torch_equals_reference(dtype, k, options):
    for t in (1, 2, 5, 40):
        check(given(2, t, 6, k, dtype, options=options), "torch", "silu" if options else None)
        with torch.no_grad():
            check(given(2, t, 6, k, dtype, options=options), "torch", "silu" if options else None)


@pytest.mark.parametrize(
    ("sizes", "options", "impl"), pairwise([(1, 3), (2, 4), (3, 3), (6, 2), (3, 1)], [(), ("bias",), OPTIONS], ["torch", "reference"])
)
def test_gradients_are_the_derivatives(sizes, options, impl):
    t, k = sizes
    tensors = given(2, t, 3, k, options=options)

    def convolve(*values: Tensor) -> tuple[Tensor, Tensor]:
        return short_conv(**dict(zip(tensors, values, strict=True)), activation="silu" if options else None, impl=impl)

    assert torch.autograd.gradcheck(convolve, [value.requires_grad_() for value in tensors.values()])


@pytest.mark.parametrize(("impl", "offsets"), [("torch", range(10)), ("triton", (0, 1, 2, 5))])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_a_text_in_two_pieces_is_the_whole(impl, offsets, k):
    tensors = given(2, 9, 5, k, torch.float32)
    exact, exact_latest = short_conv(**doubled(tensors), impl="reference")
    rest = {name: tensors[name] for name in ("taps", "bias")}
    for offset in offsets:
        outputs, history = [], tensors["history"]
        for piece in (slice(0, offset), slice(offset, 9)):
            y, history = short_conv(tensors["u"][:, piece], **rest, gate=tensors["gate"][:, piece], history=history, impl=impl)
            outputs.append(y)
        assert_close(torch.cat(outputs, 1), exact)
        assert torch.equal(history.double(), exact_latest)


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
@pytest.mark.parametrize("k", [1, 3])
def test_a_beginning_and_then_steps_are_the_whole(impl, k):
    tensors = given(2, 6, 5, k, torch.float32, options=("bias",))
    exact, _ = short_conv(**doubled(tensors), activation="silu", impl="reference")
    rest = {name: tensors[name] for name in ("taps", "bias")} | {"activation": "silu", "impl": impl}
    y, history = short_conv(tensors["u"][:, :2], **rest)
    outputs = [y]
    for i in range(2, 6):
        before = history.clone()
        y, new = short_conv(tensors["u"][:, i : i + 1], **rest, history=history)
        assert torch.equal(history, before), "a step changed the history it was given"
        history = new
        outputs.append(y)
    assert_close(torch.cat(outputs, 1), exact)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_history_does_not_keep_a_text_in_memory(impl):
    for t in (1, 2, 50):
        tensors = given(1, t, 4, 3, torch.float32, options=())
        _, latest = short_conv(**tensors, impl=impl)
        assert latest.untyped_storage().nbytes() == 2 * 4 * 4
        assert latest.data_ptr() != tensors["u"].data_ptr()


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_any_strides_and_the_output_is_laid_out_as_the_input(impl):
    tensors = given(3, 6, 8, 4, torch.float32)
    exact, exact_latest = short_conv(**tensors, impl="reference")
    half = dict(zip(("u", "gate"), torch.cat([tensors["u"], tensors["gate"]], dim=-1).chunk(2, -1), strict=True))
    time_first = {name: tensors[name].transpose(0, 1).contiguous().transpose(0, 1) for name in ("u", "gate", "history")}
    channels_first = {name: tensors[name].mT.contiguous().mT for name in ("u", "gate", "taps", "history")}
    for way in (half, time_first, channels_first):
        y, latest = short_conv(**(tensors | way), impl=impl)
        assert_close(y, exact)
        assert torch.equal(latest, exact_latest)
        if way is time_first:
            assert y.transpose(0, 1).is_contiguous()
        if way is half:
            assert y.is_contiguous()


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_large_sums_close_or_open_the_activation(impl):
    tensors = given(1, 5, 4, 2, torch.float32, options=("bias",))
    check(tensors | {"u": 1e4 * tensors["u"]}, impl)
    check(tensors | {"u": 1e-4 * tensors["u"]}, impl)


@pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
def test_no_inputs_leave_the_history_as_it_is(impl):
    tensors = given(2, 0, 3, 4, torch.float32)
    y, latest = short_conv(**tensors, impl=impl)
    assert y.shape == (2, 0, 3)
    assert torch.equal(latest, tensors["history"])
    tensors.pop("history")
    assert torch.equal(short_conv(**tensors, impl=impl)[1], torch.zeros(2, 3, 3, device=DEVICE))
    y, latest = short_conv(**given(0, 5, 3, 4, torch.float32), impl=impl)
    assert (y.shape, latest.shape) == ((0, 5, 3), (0, 3, 3))


# The kernel for GPUs: interpreted where there is none.


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("options", [(), OPTIONS])
def test_triton_equals_reference(k, options):
    for b, t, c in ((2, 1, 5), (1, 2, 130), (1, 17, 24), (2, 33, 3)):
        check(given(b, t, c, k, torch.float32, options=options), "triton", "silu" if options else None)


@pytest.mark.parametrize("t", [*range(3, 17), 32, 65])
def test_triton_at_more_lengths(t):
    check(given(1, t, 4, 4, torch.float32), "triton")


@pytest.mark.parametrize("options", [("bias",), ("history",), ("gate",)])
def test_triton_takes_each_option_alone(options):
    check(given(1, 18, 4, 3, torch.float32, options=options), "triton", None)


@pytest.mark.parametrize("config", [0, 1])
def test_every_configuration_gives_the_result(config):
    from recallkit.kernels.short_conv.triton_impl import FLOAT_TILES, HALF_TILES, short_conv_triton

    assert len(FLOAT_TILES.configs) == len(HALF_TILES.configs) == 2
    tensors = given(2, 19, 140, 3, torch.float32)
    exact, exact_latest = short_conv(**doubled(tensors), activation="silu", impl="reference")
    y, latest = short_conv_triton(*(tensors[name] for name in ("u", "taps", "bias", "history")), True, tensors["gate"], config)
    assert_close(y, exact)
    assert torch.equal(latest.double(), exact_latest)


def test_a_row_does_not_depend_on_the_others():
    tensors = given(3, 18, 5, 4, torch.float32)
    y, latest = short_conv(**tensors, impl="triton")
    row = {name: value[1:2] if value.ndim == 3 else value for name, value in tensors.items()}
    alone, alone_latest = short_conv(**row, impl="triton")
    assert torch.equal(alone, y[1:2])
    assert torch.equal(alone_latest, latest[1:2])


def test_triton_is_an_operation_that_torch_can_trace():
    from recallkit.kernels.short_conv.triton_impl import short_conv_triton

    tensors = given(1, 5, 4, 3, torch.float32)
    rest = tuple(tensors[name] for name in ("taps", "bias", "history"))
    torch.library.opcheck(short_conv_triton, (tensors["u"], *rest, True, tensors["gate"]))
    time_first = tensors["u"].transpose(0, 1).contiguous().transpose(0, 1)
    torch.library.opcheck(short_conv_triton, (time_first, rest[0], None, None, False, None))
    others = {name: value for name, value in tensors.items() if name != "u"}
    compiled = torch.compile(lambda u: short_conv(u, **others, impl="triton")[0], backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(tensors["u"]), short_conv(**tensors, impl="triton")[0])


def test_auto_falls_back_where_the_kernel_has_no_room():
    tensors = given(1, 3, 2, 9, torch.float32)
    with preferring("triton"):
        assert torch.equal(short_conv(**tensors)[0], short_conv(**tensors, impl="torch")[0])
    with pytest.raises(ValueError, match="9 taps are more than 8"):
        short_conv(**tensors, impl="triton")


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("u", (4, 3), r"u \(b, t, c\) and taps"),
        ("taps", (4, 2), r"u \(b, t, c\) and taps"),
        ("taps", (3, 0), r"u \(b, t, c\) and taps"),
        ("bias", (2,), r"bias must have shape \(3,\), not \(2,\)"),
        ("history", (2, 3, 3), r"history must have shape \(2, 1, 3\)"),
        ("gate", (2, 1, 3), r"gate must have shape \(2, 5, 3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, shape, message):
    with pytest.raises(ValueError, match=message):
        short_conv(**(given(2, 5, 3, 2) | {name: torch.zeros(shape)}))


def test_an_activation_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="'silu' or None, not 'relu'"):
        short_conv(**given(1, 2, 3, 2), activation="relu")


@torch.no_grad()
@pytest.mark.parametrize(
    "make",
    [
        lambda: GatedShortConv(6, bias=False),
        lambda: BaseConv(6, filter="short", kernel=4),
        lambda: BaseConv(6, filter="short", activation="silu", residual=True),
        lambda: BaseConv(6, filter="short", kernel=9, activation="silu"),
    ],
)
def test_mixers_on_the_kernel_are_their_references(make):
    """A text at once, and a beginning and then steps; nine taps are more than the kernel takes."""
    torch.manual_seed(0)
    mixer = make().to(DEVICE)
    u = draw(2, 9, 6)
    with preferring("triton"):
        wanted = mixer.reference(u)
        assert_close(mixer(u), wanted)
        y, state = mixer.read(u[:, :5], mixer.initial_state(2))
        outputs = [y]
        for i in range(5, 9):
            y, state = mixer.step(u[:, i], state)
            outputs.append(y.unsqueeze(1))
    assert_close(torch.cat(outputs, 1), wanted)


KERNEL = "recallkit.kernels.short_conv.triton_impl"


def compiled_cases() -> list[Case]:
    """Both configurations of both widths with all options and the most taps that there may be; a step."""
    sizes = {"t": 2048, "c": 2048, "u_b": 1 << 22, "u_t": 2048, "gate_b": 1 << 22, "gate_t": 2048, "y_b": 1 << 22, "y_t": 2048}
    options = dict.fromkeys(("HAS_BIAS", "HAS_HISTORY", "SILU", "HAS_GATE"), True) | {"history_ptr": "*fp32", "latest_ptr": "*fp32"}

    def case(kind: str, k: int, tiles: str, config: int = 0, **other: object) -> Case:
        narrow = dict.fromkeys(("u_ptr", "taps_ptr", "bias_ptr", "gate_ptr", "y_ptr"), f"*{kind}")
        taps = {"taps_c": 1, "taps_k": 2048, "K": k}
        return Case(f"{KERNEL}:conv_kernel", sizes | options | narrow | taps | other, f"{KERNEL}:{tiles}", config)

    halves = [case("bf16", 8, "HALF_TILES"), case("fp16", 8, "HALF_TILES", 1)]
    floats = [case("fp32", 8, "FLOAT_TILES"), case("fp32", 8, "FLOAT_TILES", 1)]
    return [*halves, *floats, case("bf16", 4, "STEP", t=1, taps_c=4, taps_k=1)]


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills():
    assert all(not resources.shared for resources in assert_compiles(compiled_cases(), matrix=None)[:-1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("b", "t", "c", "k"), [(3, 257, 100, 3), (16, 2048, 2048, 4), (1, 65537, 96, 7), (64, 1, 4096, 4)])
def test_on_a_gpu_triton_equals_torch(b, t, c, k, dtype):
    check(given(b, t, c, k, dtype), "triton")


@pytest.mark.gpu
def test_on_a_gpu_offsets_past_two_billion():
    u = torch.randn(9, 65537, 4096, device=DEVICE, dtype=torch.bfloat16)
    taps = draw(4096, 4, dtype=torch.bfloat16)
    y, latest = short_conv(u, taps, gate=u, activation="silu", impl="triton")
    alone, alone_latest = short_conv(u[8:].clone(), taps, gate=u[8:].clone(), activation="silu", impl="triton")
    assert torch.equal(y[8:], alone)
    assert torch.equal(latest[8:], alone_latest)
    along = u.view(1, 9 * 65537, 4096)
    y, _ = short_conv(along, taps, impl="triton")
    end, _ = short_conv(along[:, -1000:].clone(), taps, history=along[:, -1003:-1000].clone(), impl="triton")
    assert torch.equal(y[:, -1000:], end)
