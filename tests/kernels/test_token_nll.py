"""`token_nll`: the tiled implementation equals the float64 reference, on awkward sizes, ties and
large logits."""

from __future__ import annotations

import math

import pytest
import torch

from recallkit.kernels.token_nll import torch_impl
from recallkit.kernels.token_nll.api import logits_nll, token_nll
from recallkit.kernels.token_nll.reference import TokenNll
from tests.kernels.checks import DEVICE, TOLERANCES, pairwise
from tests.kernels.compilation import Case, assert_compiles


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of at most 70 rows and 48 columns, so that small inputs have several of both."""
    monkeypatch.setattr(torch_impl, "ROWS", 70)
    monkeypatch.setattr(torch_impl, "COLUMNS", 48)


def draw(
    n: int,
    d: int,
    vocab: int,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Hidden states, weight, bias and targets."""
    generator = torch.Generator().manual_seed(seed + n + vocab)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in ((n, d), (vocab, d), (vocab,))
    )
    return hidden, weight, bias, torch.randint(0, vocab, (n,), generator=generator)


def draw_exact(n: int, d: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and weight whose products float32 holds exactly, in whatever order and place a
    processor adds them.

    Quarters from -2 to 2: a product is a multiple of 1/16, and a sum of fewer than 1000 of them is
    far below 2^20 of these.
    """
    generator = torch.Generator().manual_seed(n + vocab)
    hidden, weight = (
        torch.randint(-8, 9, shape, generator=generator) / 4 for shape in ((n, d), (vocab, d))
    )
    return hidden, weight


def assert_equal(fast: TokenNll, exact: TokenNll, tolerance: float = 1e-5) -> None:
    assert torch.allclose(fast.nll, exact.nll, rtol=tolerance, atol=tolerance)
    assert torch.equal(fast.argmax, exact.argmax)
    assert torch.equal(fast.rank, exact.rank)
    assert (fast.nll >= 0).all()
    assert [part.dtype for part in fast] == [torch.float32, torch.int64, torch.int64]


@pytest.mark.parametrize(
    ("sizes", "dtype", "with_bias"),
    pairwise(
        [(1, 8, 2), (17, 24, 257), (130, 64, 600), (0, 8, 50), (71, 1, 49), (64, 5, 48)],
        list(TOLERANCES),
        [False, True],
    ),
)
def test_torch_equals_reference(sizes, dtype, with_bias, small_tiles):
    hidden, weight, bias, targets = draw(*sizes, dtype)
    offset = bias if with_bias else None
    assert_equal(
        token_nll(hidden, weight, targets, bias=offset),
        token_nll(hidden, weight, targets, bias=offset, impl="reference"),
    )


def test_tiles_of_the_usual_size_equal_reference():
    hidden, weight, bias, targets = draw(700, 16, 4096)
    assert_equal(
        token_nll(hidden, weight, targets, bias=bias),
        token_nll(hidden, weight, targets, bias=bias, impl="reference"),
    )


def test_tiles_of_whole_rows_equal_reference(monkeypatch):
    """As they are on a GPU."""
    monkeypatch.setattr(torch_impl, "_tile_shape", lambda device, vocab: (70, vocab))
    hidden, weight, bias, targets = draw(150, 16, 300)
    exact = token_nll(hidden, weight, targets, bias=bias, impl="reference")
    assert_equal(token_nll(hidden, weight, targets, bias=bias), exact)
    assert_equal(logits_nll(torch.addmm(bias, hidden, weight.T), targets), exact)


@pytest.mark.gpu
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("n", "d", "vocab"), [(1, 64, 500), (700, 64, 5000), (1500, 256, 50257)])
def test_on_a_gpu_torch_equals_reference(n, d, vocab, dtype, with_bias):
    tensors = draw(n, d, vocab, dtype)
    exact = token_nll(
        *tensors[:2],
        tensors[3],
        bias=tensors[2] if with_bias else None,
        impl="reference",
    )
    hidden, weight, bias, targets = (tensor.cuda() for tensor in tensors)
    scores = token_nll(hidden, weight, targets, bias=bias if with_bias else None, impl="torch")
    assert torch.allclose(scores.nll.cpu(), exact.nll, rtol=1e-4, atol=1e-4)
    assert (scores.argmax.cpu() == exact.argmax).double().mean() > 0.99
    assert ((scores.rank.cpu() - exact.rank).abs() <= 2).all()
    large = logits_nll(
        torch.tensor([[1e4, 0.0], [1e4, 1e4]], device="cuda"),
        torch.tensor([1, 0], device="cuda"),
    )
    assert large.nll.tolist() == pytest.approx([1e4, 0.6931472])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_given_logits_equal_the_product_that_they_are(dtype, small_tiles):
    hidden, weight, _, targets = draw(100, 8, 200, torch.float64)
    logits = (hidden @ weight.T).to(dtype)
    identity = torch.eye(200, dtype=torch.float64)
    assert_equal(
        logits_nll(logits, targets),
        token_nll(logits.double(), identity, targets, impl="reference"),
    )


def test_no_rows_give_no_scores():
    none = torch.zeros(0, dtype=torch.int64)
    for scores in (
        logits_nll(torch.zeros(0, 5), none),
        token_nll(torch.zeros(0, 3), torch.zeros(5, 3), none),
    ):
        assert [tuple(part.shape) for part in scores] == [(0,), (0,), (0,)]


def test_targets_may_be_any_integers_and_operands_any_strides(small_tiles):
    hidden, weight, bias, targets = draw(90, 12, 100)
    exact = token_nll(hidden, weight, targets, bias=bias, impl="reference")
    spread = torch.randn(90, 24)
    spread[:, ::2] = hidden
    assert_equal(token_nll(spread[:, ::2], weight, targets.int(), bias=bias), exact)
    assert_equal(
        token_nll(hidden.T.contiguous().T, weight.T.contiguous().T, targets, bias=bias),
        exact,
    )
    logits = torch.addmm(bias, hidden, weight.T)
    assert_equal(logits_nll(logits.T.contiguous().T, targets), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_others(dtype, small_tiles):
    hidden, weight, bias, targets = draw(300, 96, 500, dtype)
    at_once = token_nll(hidden, weight, targets, bias=bias)
    for rows in (slice(0, 1), slice(5, 7), slice(100, 163), slice(299, 300), slice(0, 213)):
        part = token_nll(hidden[rows], weight, targets[rows], bias=bias)
        assert all(
            torch.equal(mine, theirs[rows]) for mine, theirs in zip(part, at_once, strict=True)
        )


def test_threads_do_not_change_a_bit(small_tiles):
    hidden, weight, bias, targets = draw(300, 96, 500)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(token_nll(hidden, weight, targets, bias=bias))
    torch.set_num_threads(before)
    assert all(
        torch.equal(mine, theirs)
        for other in results[1:]
        for mine, theirs in zip(other, results[0], strict=True)
    )


def test_ties_share_a_rank_and_argmax_is_the_lowest_id():
    hidden = torch.ones(3, 1)
    weight = torch.tensor([[1.0], [3.0], [3.0], [2.0]])
    scores = token_nll(hidden, weight, torch.tensor([1, 2, 0]))
    assert scores.argmax.tolist() == [1, 1, 1]
    assert scores.rank.tolist() == [0, 0, 3]


@pytest.mark.parametrize("n", [1, 3, 64, 150])
def test_equal_rows_of_the_head_tie_wherever_they_stand(n, small_tiles):
    """Untrained entries of a vocabulary are often equal: their logits must be, whatever tile they
    are in."""
    hidden, weight = draw_exact(n, 33, 200)
    weight[150:] = weight[:50]
    low, high = (
        token_nll(hidden, weight, torch.full((n,), 20)),
        token_nll(hidden, weight, torch.full((n,), 170)),
    )
    assert torch.equal(low.rank, high.rank)
    assert torch.equal(low.nll, high.nll)
    assert (low.argmax < 150).all()


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 31, 33, 48, 49, 96, 100, 1000])
def test_the_lowest_of_equal_maxima_is_found_at_any_width(vocab, small_tiles):
    generator = torch.Generator().manual_seed(vocab)
    largest = torch.randint(0, vocab, (75, 3), generator=generator)
    logits = torch.randn(75, vocab, generator=generator).clamp(max=3).scatter(1, largest, 4.0)
    targets = torch.randint(0, vocab, (75,), generator=generator)
    scores = logits_nll(logits, targets)
    assert torch.equal(scores.argmax, largest.amin(1))
    assert torch.equal(scores.rank == 0, (largest == targets[:, None]).any(1))


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_a_constant_added_to_all_logits_changes_nothing_that_float32_can_hold(offset, small_tiles):
    logits = (torch.randn(80, 120) * 64).round() / 64  # so that adding 1e4 rounds nothing away
    targets = torch.randint(0, 120, (80,))
    plain, shifted = logits_nll(logits, targets), logits_nll(logits + offset, targets)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(plain, shifted, strict=True))


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, 0.0], [1e4, 1e4]])
    assert logits_nll(logits, torch.tensor([1, 0])).nll.tolist() == pytest.approx([1e4, 0.6931472])


def test_a_certain_prediction_costs_nothing_and_no_nll_is_negative(small_tiles):
    logits = torch.randn(100, 150)
    targets = torch.randint(0, 150, (100,))
    logits[torch.arange(100), targets] = torch.linspace(0, 200, 100)
    scores = logits_nll(logits, targets)
    assert (scores.nll >= 0).all()
    assert scores.nll[-1] == 0


def test_entries_that_can_never_be_predicted_are_left_out(small_tiles):
    hidden, weight, _, targets = draw(80, 8, 200)
    masked = torch.zeros(200)
    masked[:60] = masked[150:] = -math.inf
    targets = 60 + targets % 90
    scores = token_nll(hidden, weight, targets, bias=masked)
    exact = token_nll(hidden, weight[60:150], targets - 60, impl="reference")
    assert_equal(scores, TokenNll(exact.nll, exact.argmax + 60, exact.rank))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_logit_makes_the_nll_say_so(value, small_tiles):
    logits = torch.randn(70, 200)
    logits[3, 130] = value
    finite = logits_nll(logits, torch.zeros(70, dtype=torch.int64)).nll.isfinite()
    assert not finite[3]
    assert finite.sum() == 69


def test_float64_is_kept(small_tiles):
    """In float32 the two NLLs could not be told apart."""
    hidden, weight = (
        torch.tensor([[1e9], [1e9]], dtype=torch.float64),
        torch.tensor([[1.0], [1.0 + 1e-9]], dtype=torch.float64),
    )
    nll = token_nll(hidden, weight, torch.tensor([0, 1])).nll
    assert nll.tolist() == pytest.approx([math.log(1 + math.e), math.log(1 + 1 / math.e)], rel=1e-6)


def test_weights_that_would_be_trained_are_no_obstacle():
    hidden, weight, bias, targets = draw(5, 4, 7)
    scores = token_nll(hidden, torch.nn.Parameter(weight), targets, bias=torch.nn.Parameter(bias))
    assert not scores.nll.requires_grad


@pytest.mark.parametrize(
    ("hidden", "weight", "targets", "message"),
    [
        ((3, 4), (5, 6), (3,), "do not fit"),
        ((3, 4), (5, 4), (2,), "targets"),
        ((2, 3, 4), (5, 4), (2,), "do not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_named(hidden, weight, targets, message):
    with pytest.raises(ValueError, match=message):
        token_nll(torch.zeros(hidden), torch.zeros(weight), torch.zeros(targets, dtype=torch.int64))


def test_an_unknown_implementation_raises():
    with pytest.raises(ValueError, match="impl"):
        token_nll(
            torch.zeros(1, 2),
            torch.zeros(3, 2),
            torch.zeros(1, dtype=torch.int64),
            impl="fast",
        )


# The kernel for GPUs: interpreted where there is none.

KERNEL = "recallkit.kernels.token_nll.triton_impl"
SHAPES = [(1, 8, 2), (17, 24, 257), (65, 64, 130), (130, 96, 63), (64, 16, 64)]


@pytest.mark.parametrize(("n", "d", "vocab"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_triton_equals_reference(n, d, vocab, with_bias):
    hidden, weight, bias, targets = (tensor.to(DEVICE) for tensor in draw(n, d, vocab))
    offset = bias if with_bias else None
    assert_equal(
        token_nll(hidden, weight, targets, bias=offset, impl="triton"),
        token_nll(hidden, weight, targets, bias=offset, impl="reference"),
    )


@pytest.mark.parametrize("config", range(2))
def test_every_configuration_gives_the_result(config):
    from recallkit.kernels.token_nll.triton_impl import (
        COLUMNS,
        FLOAT_COLUMNS,
        FLOAT_TILES,
        HALF_TILES,
        token_nll_triton,
    )

    assert len(FLOAT_TILES.configs) == 2
    for launcher, columns in ((FLOAT_TILES, FLOAT_COLUMNS), (HALF_TILES, COLUMNS)):
        assert {config.kwargs["BLOCK_N"] for config in launcher.configs} == {columns}, (
            "the number of tiles is known before one is chosen"
        )
    hidden, weight, bias, targets = (tensor.to(DEVICE) for tensor in draw(70, 40, 200))
    scores = TokenNll(*token_nll_triton(hidden, weight, targets, bias, config))
    assert_equal(scores, token_nll(hidden, weight, targets, bias=bias, impl="reference"))


def test_triton_does_many_rows_part_by_part_with_the_same_bits(monkeypatch):
    from recallkit.kernels.token_nll import triton_impl

    hidden, weight, bias, targets = (tensor.to(DEVICE) for tensor in draw(300, 24, 100))
    at_once = token_nll(hidden, weight, targets, bias=bias, impl="triton")
    monkeypatch.setattr(triton_impl, "MOST_PARTS", 2 * 128)  # 128 rows of two tiles
    parts = token_nll(hidden, weight, targets, bias=bias, impl="triton")
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(parts, at_once, strict=True))


def test_triton_leaves_out_rows_that_are_not_asked_for():
    hidden, weight, _, targets = (tensor.to(DEVICE) for tensor in draw(40, 8, 50))
    all_asked = token_nll(hidden, weight, targets, impl="triton")
    some = torch.where(torch.arange(40, device=DEVICE) % 3 == 0, -100, targets)
    for impl in ("triton", "torch", "reference"):
        scores = token_nll(hidden, weight, some, impl=impl)
        assert scores.nll[::3].tolist() == [0.0] * 14
        assert scores.rank[::3].tolist() == [-1] * 14
        assert torch.equal(scores.argmax, all_asked.argmax)
        assert torch.equal(scores.rank[1::3], all_asked.rank[1::3])
        assert torch.allclose(scores.nll[1::3], all_asked.nll[1::3], atol=1e-5)
        none = token_nll(hidden, weight, torch.full_like(targets, -1), impl=impl)
        assert (none.nll == 0).all()
        assert (none.rank == -1).all()


def test_triton_keeps_ties_large_logits_and_masked_entries():
    hidden, weight = (tensor.to(DEVICE) for tensor in draw_exact(30, 33, 200))
    weight[150:] = weight[:50]
    low, high = (
        token_nll(hidden, weight, torch.full((30,), y, device=DEVICE), impl="triton")
        for y in (20, 170)
    )
    assert torch.equal(low.rank, high.rank)
    assert torch.equal(low.nll, high.nll)
    assert (low.argmax < 150).all()
    masked = torch.zeros(200, device=DEVICE)
    masked[:70] = masked[140:] = -math.inf
    targets = torch.arange(30, device=DEVICE) % 70 + 70
    exact = token_nll(hidden, weight[70:140], targets - 70, impl="reference")
    assert_equal(
        token_nll(hidden, weight, targets, bias=masked, impl="triton"),
        TokenNll(exact.nll, exact.argmax + 70, exact.rank),
    )
    shifted = token_nll(
        hidden,
        weight,
        targets,
        bias=torch.full((200,), 1e4, device=DEVICE),
        impl="triton",
    )
    # 1e4 leaves logits 1e-3.
    assert (shifted.nll - token_nll(hidden, weight, targets, impl="triton").nll).abs().max() < 2e-2
    assert (shifted.nll >= 0).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
# Of numpy, with which Triton 3.9 interprets a maximum.
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_triton_says_where_a_logit_is_broken(value):
    hidden, weight, _, targets = (tensor.to(DEVICE) for tensor in draw(20, 8, 100))
    hidden[3] = value
    finite = token_nll(hidden, weight, targets, impl="triton").nll.isfinite()
    assert not finite[3]
    assert finite.sum() == 19


def test_triton_takes_no_rows_and_any_strides():
    hidden, weight, bias, targets = (tensor.to(DEVICE) for tensor in draw(33, 12, 100))
    assert [len(part) for part in token_nll(hidden[:0], weight, targets[:0], impl="triton")] == [
        0,
        0,
        0,
    ]
    exact = token_nll(hidden, weight, targets, bias=bias, impl="reference")
    assert_equal(
        token_nll(
            hidden.T.contiguous().T,
            weight.T.contiguous().T,
            targets.int(),
            bias=bias,
            impl="triton",
        ),
        exact,
    )
    assert_equal(
        token_nll(
            torch.cat([hidden, hidden], 1)[:, :12],
            weight,
            targets,
            bias=bias,
            impl="triton",
        ),
        exact,
    )


def test_triton_is_an_operation_that_torch_can_trace():
    from recallkit.kernels.token_nll.triton_impl import token_nll_triton

    hidden, weight, bias, targets = (tensor.to(DEVICE) for tensor in draw(5, 8, 20))
    torch.library.opcheck(token_nll_triton, (hidden, weight, targets, bias))
    compiled = torch.compile(
        lambda h: token_nll(h, weight, targets, impl="triton").nll,
        backend="aot_eager",
        fullgraph=True,
    )
    with torch.inference_mode():
        assert torch.equal(compiled(hidden), token_nll(hidden, weight, targets, impl="triton").nll)


def compiled_cases() -> list[Case]:
    """Both kernels with products, in every configuration, on a vocabulary and a width as models
    have."""
    common = {
        "bias_ptr": "*fp32",
        "targets_ptr": "*i64",
        "target_logits_ptr": "*fp32",
        "n": 32768,
        "vocab": 50257,
        "d": 1024,
    }
    common |= {"hidden_stride": 1024, "weight_stride": 1024, "HAS_BIAS": True, "EVEN": True}
    parts = {"largest_ptr": "*fp32", "sum_ptr": "*fp32", "argmax_ptr": "*i32", "ahead_ptr": "*i32"}
    outcome = []
    for kind, tiles, num, targets in (
        ("bf16", "HALF_TILES", 4, "TARGETS"),
        ("fp32", "FLOAT_TILES", 2, "FLOAT_TARGETS"),
    ):
        operands = common | {"hidden_ptr": f"*{kind}", "weight_ptr": f"*{kind}", "DOT": [kind]}
        outcome += [
            Case(f"{KERNEL}:tile_kernel", operands | parts, f"{KERNEL}:{tiles}", config)
            for config in range(num)
        ]
        outcome.append(Case(f"{KERNEL}:target_logits_kernel", operands, f"{KERNEL}:{targets}"))
    return outcome


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills_and_halves_use_matrix_instructions():
    assert_compiles(compiled_cases(), matrix="HGMMA")


def test_one_kernel_compiles_for_a_gpu_and_multiplies_halves_on_matrix_units():
    assert_compiles(compiled_cases()[:1], matrix="HGMMA")
