"""`lookup_attention`: pair by pair, by mask and on a GPU, each query attends to its own list as the
reference does, and to no more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from recallkit.kernels import choice
from recallkit.kernels.choice import preferring
from recallkit.kernels.lookup_attention import torch_impl
from recallkit.kernels.lookup_attention.api import lookup_attention
from recallkit.models.mixers.selection import follower_lists
from recallkit.models.mixers.selective_attention import SelectiveAttention
from tests.kernels.checks import DEVICE, assert_close, draw
from tests.kernels.compilation import Case, assert_compiles

KERNEL = "recallkit.kernels.lookup_attention.triton_impl"


def qkv(batch, heads, t, width, *, std=1.0, dtype=torch.float32):
    q, k = (draw(batch, heads, t, width, std=std, dtype=dtype, seed=i) for i in range(2))
    return q, k, draw(batch, heads, t, width, dtype=dtype, seed=2)


def lists(counts: list[int], t: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """So many different keys for each query, at random over the whole row."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(t, generator=generator)[:count] for count in counts]
    offsets = torch.tensor([0, *counts]).cumsum(0)
    return offsets.to(DEVICE), torch.cat([torch.zeros(0, dtype=torch.int64), *drawn]).to(DEVICE)


def counts_of(kind: str, batch: int, t: int) -> list[int]:
    """How many keys queries have."""
    generator = torch.Generator().manual_seed(t)
    some = torch.randint(0, min(t, 5) + 1, (batch * t,), generator=generator).tolist()
    ragged = [0] * t + [min(t, 3 * i) for i in range((batch - 1) * t)]
    return {
        "none": [0] * (batch * t),
        "one": [1] * (batch * t),
        "some": some,
        "all": [t] * (batch * t),
        "ragged": ragged,
    }[kind]


def exact(q, k, v, offsets, keys):
    return lookup_attention(q.double(), k.double(), v.double(), offsets, keys, impl="reference")


def check(impl, q, k, v, offsets, keys, **options):
    actual = lookup_attention(q, k, v, offsets, keys, impl=impl)
    wanted = exact(q, k, v, offsets, keys)
    assert actual.dtype == q.dtype
    assert_close(actual, wanted, **options)
    empty = (offsets.diff() == 0).view(q.shape[0], q.shape[2])
    assert (actual.transpose(1, 2)[empty] == 0).all()


@pytest.fixture(params=["by pair", "by mask", "in pieces", "in strips"])
def way(request, monkeypatch):
    """Each way through the torch implementation, also in pieces of a few pairs and in strips of a
    few queries."""
    monkeypatch.setattr(
        torch_impl,
        "MASKED",
        0 if request.param in ("by pair", "in pieces") else 10**9,
    )
    if request.param == "in pieces":
        monkeypatch.setattr(torch_impl, "PIECE", 200)
        monkeypatch.setattr(torch_impl, "CUDA_PIECE", 200)
    if request.param == "in strips":
        monkeypatch.setattr(torch_impl, "MOST_MASKED", 300)


@pytest.mark.parametrize("kind", ["none", "one", "some", "all", "ragged"])
@pytest.mark.parametrize("t", [1, 17, 40])
@pytest.mark.usefixtures("way")
def test_torch_equals_reference(kind, t):
    operands = lists(counts_of(kind, 2, t), t)
    for width, std, dtype in (
        (16, 1, torch.float32),
        (24, 3, torch.float32),
        (100, 1, torch.float64),
        (7, 1, torch.bfloat16),
    ):
        check("torch", *qkv(2, 3, t, width, std=std, dtype=dtype), *operands)


def test_the_reference_by_hand():
    """Scores of zero weigh a list's values alike."""
    v = torch.tensor([1.0, 2.0, 4.0, 8.0], device=DEVICE).view(1, 1, 4, 1)
    zeros = torch.zeros_like(v)
    offsets, keys = (
        torch.tensor([0, 0, 2, 3, 6], device=DEVICE),
        torch.tensor([0, 3, 2, 1, 1, 0], device=DEVICE),
    )
    for impl in ("reference", "torch", "triton"):
        actual = lookup_attention(zeros, zeros, v, offsets, keys, impl=impl)
        assert actual.flatten().tolist() == pytest.approx([0, 4.5, 4, 5 / 3]), impl


def test_scores_are_scaled_by_the_root_of_the_width():
    q, k, v = qkv(2, 3, 12, 20, dtype=torch.float64)
    offsets = torch.arange(25, device=DEVICE) * 12
    every = torch.arange(12, device=DEVICE).repeat(24)
    assert_close(exact(q, k, v, offsets, every), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.usefixtures("way")
def test_a_list_of_thousands_beside_empty_ones():
    t = 3000
    counts = [0] * t
    counts[5], counts[6], counts[2999] = 3000, 1, 2500
    check("torch", *qkv(1, 2, t, 16), *lists(counts, t))


@pytest.mark.usefixtures("way")
def test_a_key_that_is_listed_twice_counts_twice():
    q, k, v = qkv(1, 2, 6, 16, dtype=torch.float64)
    offsets, keys = (
        torch.tensor([0, 0, 0, 3, 3, 5, 5], device=DEVICE),
        torch.tensor([1, 4, 1, 0, 0], device=DEVICE),
    )
    check("torch", q, k, v, offsets, keys)


@pytest.mark.usefixtures("way")
def test_gradients_are_those_of_the_formula():
    operands = lists([0, 2, 5, 1, 0, 3, 0, 4, 5, 0], 5)
    parts = [part.requires_grad_() for part in qkv(2, 2, 5, 3, dtype=torch.float64)]
    assert torch.autograd.gradcheck(
        lambda *tensors: lookup_attention(*tensors, *operands, impl="torch"),
        parts,
    )
    weights = draw(2, 2, 5, 3, dtype=torch.float64, seed=5)
    results = [
        torch.autograd.grad((lookup_attention(*parts, *operands, impl=impl) * weights).sum(), parts)
        for impl in ("torch", "reference")
    ]
    for one, other in zip(*results, strict=True):
        assert_close(one, other)


@pytest.mark.usefixtures("way")
def test_gradients_of_half_precision_are_half_and_near():
    operands = lists(counts_of("some", 2, 20), 20)
    parts = [part.requires_grad_() for part in qkv(2, 2, 20, 16, dtype=torch.bfloat16)]
    wide = [part.detach().double().requires_grad_() for part in parts]
    actual = torch.autograd.grad(lookup_attention(*parts, *operands).float().square().sum(), parts)
    wanted = torch.autograd.grad(
        lookup_attention(*wide, *operands, impl="reference").square().sum(),
        wide,
    )
    for one, other in zip(actual, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        assert_close(one, other, times=2)


@pytest.mark.usefixtures("way")
def test_a_query_does_not_depend_on_the_others():
    """Its list alone decides, to the last bit, whoever else is in the batch."""
    q, k, v = qkv(2, 3, 30, 16)
    offsets, keys = lists(counts_of("some", 2, 30), 30)
    both = lookup_attention(q, k, v, offsets, keys, impl="torch")
    second = offsets[30:] - offsets[30]
    alone = lookup_attention(q[1:], k[1:], v[1:], second, keys[offsets[30] :], impl="torch")
    assert_close(alone, both[1:])


@pytest.mark.parametrize(
    "rows",
    [
        [[3] * 30],
        [list(range(30))],
        [list(range(30)), [7] * 30],
        [[1, 2, 1, 2, 3] * 6, [0] * 15 + list(range(15))],
    ],
)
def test_followers_of_texts(rows):
    """All tokens equal, all different, a row without repeats beside one with many."""
    ids = torch.tensor(rows, device=DEVICE)
    q, k, v = qkv(len(rows), 2, 30, 16)
    offsets, keys = follower_lists(ids)
    for impl in ("torch", "triton"):
        check(impl, q, k, v, offsets, keys)
    actual = lookup_attention(q, k, v, offsets, keys)
    for row, tokens in enumerate(rows):
        for i in (0, 1, 29):
            after = [j + 1 for j in range(i) if tokens[j] == tokens[i]]
            scores = (k[row][:, after] @ q[row, :, i, :, None])[..., 0] / 4
            wanted = (torch.softmax(scores, 1)[..., None] * v[row][:, after]).sum(1)
            assert_close(actual[row, :, i], wanted, times=3)


def test_ties_of_large_scores_do_not_overflow():
    q, k, v = qkv(1, 2, 8, 16)
    operands = lists([0, 1, 3, 8, 2, 0, 5, 8], 8)
    for impl in ("torch", "triton"):
        large = lookup_attention(q * 0 + 100, k * 0 + 100, v, *operands, impl=impl)
        assert_close(large, lookup_attention(q * 0, k * 0, v, *operands, impl=impl))


def test_an_empty_batch_and_an_empty_text():
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    for impl in ("reference", "torch", "triton"):
        for shape in ((0, 2, 5, 16), (2, 2, 0, 16)):
            actual = lookup_attention(
                *(torch.zeros(shape, device=DEVICE),) * 3,
                torch.zeros(1, dtype=torch.int64, device=DEVICE),
                none,
                impl=impl,
            )
            assert actual.shape == shape


@pytest.mark.parametrize(
    ("offsets", "keys", "message"),
    [
        ([0, 1, 2, 3], [0, 0, 0], "length b t \\+ 1 = 5, not 4"),
        ([0, 1, 2, 3, 3], [0, 0], "from 0 to the number of keys, 2, not from 0 to 3"),
        ([1, 1, 2, 2, 2], [0, 0], "not from 1 to 2"),
        ([0, 2, 1, 2, 2], [0, 0], "after place 1 they go from 2 to 1"),
        ([0, 1, 1, 2, 2], [0, 2], "positions from 0 to 1, not from 0 to 2"),
        ([0, 1, 1, 2, 2], [-1, 1], "not from -1 to 1"),
        ([0, 1, 1, 2, 2], [0.0, 1.0], "keys must be int64"),
        ([[0, 1, 1, 2, 2]], [0, 1], "offsets must be int64 with one axis"),
    ],
)
def test_lists_that_do_not_fit_are_named(offsets, keys, message):
    with pytest.raises(ValueError, match=message):
        lookup_attention(*(torch.zeros(2, 1, 2, 4),) * 3, torch.tensor(offsets), torch.tensor(keys))


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        ([(2, 1, 2, 4), (2, 1, 2, 4), (2, 1, 2, 5)], [torch.float32] * 3, "one shape"),
        ([(2, 1, 2, 4)] * 3, [torch.float32, torch.float16, torch.float32], "one floating type"),
        ([(2, 2, 4)] * 3, [torch.float32] * 3, "one shape"),
    ],
)
def test_queries_and_keys_that_do_not_fit_are_named(shapes, dtypes, message):
    parts = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    with pytest.raises(ValueError, match=message):
        lookup_attention(
            *parts,
            torch.zeros(5, dtype=torch.int64),
            torch.zeros(0, dtype=torch.int64),
        )


# The kernel for GPUs: interpreted where there is none.


@pytest.mark.parametrize("kind", ["none", "one", "some", "all", "ragged"])
@pytest.mark.parametrize(
    ("t", "heads", "width", "std"),
    [(1, 1, 16, 1), (17, 3, 64, 3), (20, 1, 24, 1), (9, 2, 100, 3)],
)
def test_triton_equals_reference(kind, t, heads, width, std):
    check("triton", *qkv(2, heads, t, width, std=std), *lists(counts_of(kind, 2, t), t), times=2)


@pytest.mark.parametrize("config", range(2))
def test_every_configuration_gives_the_result(config):
    """With lists of a block and one more, of two blocks, and longer ones."""
    from recallkit.kernels.lookup_attention.triton_impl import LOOKUPS, lookup_attention_triton

    assert len(LOOKUPS.configs) == 2
    operands = lists([0, 1, 15, 16, 17, 31, 32, 33, 64, 65, 70, 70] + [0] * 58, 70)
    parts = qkv(1, 3, 70, 40, std=3)
    assert_close(
        lookup_attention_triton(*parts, *operands, config),
        exact(*parts, *operands),
        times=2,
    )


def test_triton_takes_any_strides_and_its_result_lies_head_beside_head():
    parts = qkv(2, 3, 12, 16)
    operands = lists(counts_of("some", 2, 12), 12)
    wanted = exact(*parts, *operands)
    by_token = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in parts]
    across = [part.mT.contiguous().mT for part in parts]
    spread = [torch.cat([part, part], 3)[..., 16:] for part in parts]
    for q, k, v in (by_token, across, spread, (parts[0], by_token[1], across[2])):
        actual = lookup_attention(q, k, v, *operands, impl="triton")
        assert_close(actual, wanted)
        assert actual.transpose(1, 2).is_contiguous()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_triton_says_where_a_key_is_outside_the_row_and_reads_nothing_there():
    from recallkit.kernels.lookup_attention.triton_impl import lookup_attention_triton

    q, k, v = qkv(1, 2, 6, 16)
    offsets = torch.tensor([0, 1, 3, 5, 5, 6, 7], device=DEVICE)
    keys = torch.tensor([0, 6, 2, 1, -1, 5, 2**40], device=DEVICE)
    actual = lookup_attention_triton(q, k, v, offsets, keys)
    assert actual[0, :, [1, 2, 5]].isnan().all()
    assert torch.equal(actual[0, :, [0, 4]], v[0, :, [0, 5]])


def test_triton_is_an_operation_that_torch_can_trace():
    from recallkit.kernels.lookup_attention.triton_impl import lookup_attention_triton

    q, k, v = qkv(1, 2, 5, 16)
    operands = lists([0, 2, 1, 5, 0], 5)
    torch.library.opcheck(lookup_attention_triton, (q, k, v, *operands))
    compiled = torch.compile(
        lambda x: lookup_attention(x, k, v, *operands, impl="triton"),
        backend="aot_eager",
        fullgraph=True,
    )
    with torch.inference_mode():
        assert torch.equal(compiled(q), lookup_attention(q, k, v, *operands, impl="triton"))


def test_a_mixer_gives_its_reference_with_kernels():
    torch.manual_seed(0)
    mixer = SelectiveAttention(16, keys="matches", num_heads=2).eval().to(DEVICE)
    u, ids = (
        draw(2, 20, 16),
        torch.randint(5, (2, 20), generator=torch.Generator().manual_seed(0)).to(DEVICE),
    )
    with preferring("triton"), torch.no_grad():
        actual = mixer(u, ids)
        first, state = mixer.read(u[:, :17], mixer.initial_state(2), ids[:, :17])
        then, _ = mixer.step(u[:, 17], state, ids[:, 17])
        wanted = mixer.double().reference(u.double(), ids)
    assert_close(actual, wanted, times=3)
    assert_close(torch.cat([first, then[:, None]], dim=1), wanted[:, :18], times=3)


def test_auto_leaves_lists_of_many_pairs_to_the_mask(caplog):
    """A GPU's matrix units are for those. Why a kernel is not picked is logged; on CPU that is the
    second reason."""
    q, k, v = qkv(1, 2, 16, 16)
    choice.say_once.cache_clear()
    with caplog.at_level("INFO", logger="recallkit.kernels"):
        for count in (1, 2):
            operands = lists([count] * 16, 16)
            assert_close(lookup_attention(q, k, v, *operands), exact(q, k, v, *operands))
    few = (
        "torch, because the tensors are on CPU"
        if DEVICE == "cpu"
        else "triton, because the tensors are on a GPU"
    )
    wanted = [
        f"lookup_attention: {reason}"
        for reason in (few, "torch, because more than one pair in 16 is listed")
    ]
    assert [record.getMessage() for record in caplog.records] == wanted


def compiled_cases() -> list[Case]:
    """Every configuration, in half and single precision, for 16 heads of 64, and the first for one
    wide head."""
    outcome = []
    for kind, heads, width, configs in (
        ("bf16", 16, 64, range(2)),
        ("fp32", 16, 64, range(2)),
        ("bf16", 1, 200, range(1)),
    ):
        operands = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), f"*{kind}") | {
            "offsets_ptr": "*i64",
            "keys_ptr": "*i64",
        }
        operands |= {
            "batch": 4,
            "num_heads": heads,
            "t": 8192,
            "width": width,
            "num_keys": 200_000,
            "scale": 0.18,
        }
        operands |= {
            f"{name}_{axis}": size
            for name in "qkv"
            for axis, size in (("row", 2**25), ("head", width), ("place", 3 * heads * width))
        }
        operands |= {"WIDTH": 1 << (width - 1).bit_length(), "MOST_HEADS": heads}
        outcome += [
            Case(f"{KERNEL}:lookup_kernel", operands, f"{KERNEL}:LOOKUPS", config)
            for config in configs
        ]
    return outcome


@pytest.mark.slow
def test_compiled_for_a_gpu_nothing_spills():
    assert_compiles(compiled_cases(), matrix=None)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [16, 64, 100, 256])
def test_on_a_gpu_a_text_of_8192_equals_float64(width, dtype):
    from recallkit.kernels.lookup_attention.triton_impl import lookup_attention_triton

    generator = torch.Generator().manual_seed(0)
    # Few kinds, some of them frequent: lists from none to hundreds of keys.
    ids = (torch.rand(2, 8192, generator=generator) ** 3 * 2000).long().cuda()
    q, k, v = qkv(2, 4, 8192, width, dtype=dtype)
    offsets, keys = follower_lists(ids)
    for config in range(2):
        actual = lookup_attention_triton(q, k, v, offsets, keys, config)
        wanted = torch_impl.attend_by_pair(q.double(), k.double(), v.double(), offsets, keys)
        assert_close(actual, wanted, dtype=dtype)


@pytest.mark.gpu
def test_on_a_gpu_equal_tokens_have_lists_of_thousands():
    q, k, v = qkv(1, 2, 4096, 64, dtype=torch.bfloat16)
    offsets, keys = follower_lists(torch.zeros(1, 4096, dtype=torch.int64, device="cuda"))
    actual = lookup_attention(q, k, v, offsets, keys, impl="triton")
    # The query at i sees the keys 1 to i: causal attention without the first.
    wanted = F.scaled_dot_product_attention(
        *(part[:, :, 1:].double() for part in (q, k, v)),
        is_causal=True,
    )
    assert_close(actual[:, :, 1:], wanted, dtype=torch.bfloat16)
    assert (actual[:, :, 0] == 0).all()


@pytest.mark.gpu
def test_on_a_gpu_offsets_past_2_31_are_right():
    """70 rows of 8192 tokens with 60 heads of 64: 2.2e9 numbers each, and the last row is that of a
    small run."""
    batch, heads, t, width = 70, 60, 8192, 64
    parts = [
        torch.empty(batch, heads, t, width, dtype=torch.bfloat16, device="cuda").normal_()
        for _ in range(3)
    ]
    ids = torch.randint(3000, (batch, t), device="cuda")
    with torch.no_grad():
        actual = lookup_attention(*parts, *follower_lists(ids), impl="triton")
        for row in (0, batch - 1):
            small = lookup_attention(
                *(part[row : row + 1].clone() for part in parts),
                *follower_lists(ids[row : row + 1]),
                impl="triton",
            )
            assert torch.equal(actual[row : row + 1], small)
