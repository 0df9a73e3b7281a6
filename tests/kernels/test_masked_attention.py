"""`masked_attention`: the dense mask and FlexAttention see the pairs of the rule, for every
pattern, and give the reference's result."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from recallkit.kernels.choice import preferring
from recallkit.kernels.masked_attention import triton_impl
from recallkit.kernels.masked_attention.api import masked_attention
from recallkit.models.mixers.sparse_attention import SparseAttention
from tests.kernels.checks import assert_close, draw, of_the_compiler

CPU = torch.device("cpu")


def rule_of(**options):
    """A sparse pattern as the mixer hands it over, and whether it differs by head."""
    mixer = SparseAttention(8, num_heads=4, **options)
    return functools.partial(mixer._rule(), **mixer._numbers()), options.get(
        "configuration",
    ) == "multihead"


RULES = {
    "strided": rule_of(stride=7),
    "strided, first part": rule_of(stride=7, configuration="sequential"),
    "strided, second part": rule_of(stride=7, configuration="sequential", layer=1),
    "strided, by head": rule_of(stride=7, configuration="multihead"),
    "fixed": rule_of(pattern="fixed", stride=6),
    "fixed, by head": rule_of(pattern="fixed", stride=6, configuration="multihead"),
    "star": rule_of(pattern="star", stride=9, length=400),
    "random": rule_of(pattern="random", sparsity=0.9, seed=3),
    "random, by head": rule_of(pattern="random", sparsity=0.9, configuration="multihead"),
    "longformer": rule_of(pattern="longformer", stride=20, num_global=3),
    "bigbird": rule_of(pattern="bigbird", stride=8, num_random=2, length=400),
    "fixed, long blocks": rule_of(pattern="fixed", stride=150, configuration="multihead"),
    "window": (lambda queries, keys: (keys <= queries) & (keys > queries - 5), False),
    "all": (lambda queries, keys: keys >= 0, False),
}


def qkv(t, *, std=1.0, dtype=torch.float32, width=16, heads=4):
    return (
        *(draw(2, heads, t, width, std=std, dtype=dtype, seed=i) for i in range(2)),
        draw(2, heads, t, width, dtype=dtype, seed=2),
    )


def exact(q, k, v, rule, by_head):
    return masked_attention(
        q.double(),
        k.double(),
        v.double(),
        rule,
        by_head=by_head,
        impl="reference",
    )


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("t", [1, 17, 65])
def test_torch_equals_reference(name, t):
    rule, by_head = RULES[name]
    for std, width, dtype in (
        (1, 16, torch.float32),
        (3, 20, torch.float32),
        (1, 5, torch.bfloat16),
        (1, 8, torch.float64),
    ):
        parts = qkv(t, std=std, width=width, dtype=dtype)
        actual = masked_attention(*parts, rule, by_head=by_head)
        assert actual.dtype == dtype
        assert_close(actual, exact(*parts, rule, by_head))


def test_the_reference_by_hand():
    """Positions see the one before and themselves in head 0, the first and themselves in head 1;
    scores are 0 and so weights equal."""

    def rule(queries, keys, heads):
        other = torch.where(heads == 0, (queries - 1).clamp(min=0), 0)
        return (keys == queries) | (keys == other)

    v = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(1, 1, 4, 1).expand(1, 2, 4, 1)
    zeros = torch.zeros_like(v)
    for impl in ("reference", "torch"):
        actual = masked_attention(zeros, zeros, v, rule, by_head=True, impl=impl)
        assert actual[0, :, :, 0].tolist() == [[1.0, 1.5, 3.0, 6.0], [1.0, 1.5, 2.5, 4.5]]


def test_scores_are_scaled_and_softmaxed_over_what_is_seen():
    rule, by_head = RULES["all"]
    q, k, v = qkv(9, dtype=torch.float64)
    assert_close(exact(q, k, v, rule, by_head), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.parametrize("name", RULES)
def test_flex_attention_asks_the_rule_for_each_pair_and_head(name):
    """Not compiled, it is dense, and its mask is the rule asked scalar by scalar."""
    from torch.nn.attention.flex_attention import flex_attention

    rule, by_head = RULES[name]
    parts = [part.cpu() for part in qkv(130)]
    table = triton_impl.block_mask(rule, by_head, 4, 130, CPU)
    with torch.no_grad():
        assert_close(flex_attention(*parts, block_mask=table), exact(*parts, rule, by_head))


@pytest.mark.parametrize("name", ["strided", "fixed, long blocks", "random", "window", "all"])
@pytest.mark.parametrize(("t", "most_pairs"), [(400, 1 << 26), (400, 1), (384, 1), (100, 1)])
def test_blocks_without_pairs_are_left_out_and_only_full_ones_are_not_asked_about(
    name,
    t,
    most_pairs,
    monkeypatch,
):
    monkeypatch.setattr(triton_impl, "MOST_PAIRS", most_pairs)
    rule, by_head = RULES[name]
    table = triton_impl.block_mask(rule, by_head, 4, t, CPU)
    positions, heads = torch.arange(t), [torch.arange(4).view(-1, 1, 1)] if by_head else []
    visible = rule(positions[:, None], positions[None], *heads).expand(4, t, t)
    num = -(-t // 128)
    assert table.kv_num_blocks.shape == (1, 4 if by_head else 1, num)
    for head in range(4):
        own = head if by_head else 0
        for i in range(num):
            blocks = [
                visible[head, i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128] for j in range(num)
            ]
            full = [
                j for j, block in enumerate(blocks) if block.numel() == 128 * 128 and block.all()
            ]
            some = [j for j, block in enumerate(blocks) if j not in full and block.any()]
            assert listed(table.full_kv_num_blocks, table.full_kv_indices, own, i) == full
            assert listed(table.kv_num_blocks, table.kv_indices, own, i) == some


def listed(num_blocks, indices, head, row):
    return indices[0, head, row, : num_blocks[0, head, row]].tolist()


def test_one_mask_serves_all_heads_where_they_agree():
    shapes = []

    def rule(queries, keys):
        shapes.append(torch.broadcast_shapes(queries.shape, keys.shape))
        return keys <= queries

    q, k, v = qkv(20)
    assert_close(
        masked_attention(q, k, v, rule),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    assert shapes == [(1, 1, 20, 20)]


def test_a_rule_that_makes_its_own_heads_is_refused_where_it_would_compile_to_something_else():
    rule = lambda queries, keys: (keys <= queries) & (torch.arange(4).view(-1, 1, 1) >= 0)  # noqa: E731
    parts = [part.cpu() for part in qkv(20)]
    assert_close(
        masked_attention(*parts, rule),
        F.scaled_dot_product_attention(*parts, is_causal=True),
    )
    with pytest.raises(ValueError, match="by_head"):
        triton_impl.block_mask(rule, False, 4, 20, CPU)


@pytest.fixture
def no_tables(monkeypatch):
    monkeypatch.setattr(triton_impl, "_tables", type(triton_impl._tables)())


def test_tables_are_kept_by_key_length_and_heads(no_tables, monkeypatch):
    monkeypatch.setattr(triton_impl, "MOST_TABLES", 3)
    rule, _ = RULES["strided"]
    actual = functools.partial(triton_impl.kept_block_mask, rule, False)
    first = actual("one", 4, 50, CPU)
    assert actual("one", 4, 50, CPU) is first
    others = [actual("two", 4, 50, CPU), actual("one", 4, 51, CPU)]
    assert all(other is not first for other in others)
    assert actual("one", 4, 50, CPU) is first
    actual("three", 4, 50, CPU)
    assert len(triton_impl._tables) == 3
    assert actual("one", 4, 50, CPU) is first, "the latest used stay"
    assert actual("two", 4, 50, CPU) is not others[0]
    before = dict(triton_impl._tables)
    assert actual(None, 4, 50, CPU) is not actual(None, 4, 50, CPU)
    assert dict(triton_impl._tables) == before


def test_a_kept_table_keeps_no_model(no_tables):
    mixer = SparseAttention(8, configuration="multihead")
    triton_impl.kept_block_mask(mixer._rule(), True, "key", 4, 30, CPU)
    gone = weakref.ref(mixer)
    del mixer
    gc.collect()
    assert gone() is None


def test_a_table_made_in_inference_mode_serves_outside(no_tables):
    with torch.inference_mode():
        table = triton_impl.kept_block_mask(RULES["star"][0], False, "key", 4, 30, CPU)
    assert not table.kv_indices.is_inference()


def test_gradients_are_those_of_the_formula():
    rule, by_head = RULES["strided, by head"]
    parts = [part.requires_grad_() for part in qkv(9, dtype=torch.float64, width=3)]
    assert torch.autograd.gradcheck(
        lambda *operands: masked_attention(*operands, rule, by_head=by_head),
        parts,
    )


def test_strided_inputs():
    rule, by_head = RULES["fixed"]
    parts = qkv(33)
    spread = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in parts]
    assert_close(masked_attention(*spread, rule, by_head=by_head), exact(*parts, rule, by_head))


@pytest.mark.skipif(torch.cuda.is_available(), reason="what CPU cannot do")
def test_without_a_gpu_the_compiled_one_is_refused_and_auto_is_dense():
    rule, by_head = RULES["fixed"]
    parts = qkv(20)
    with pytest.raises(ValueError, match="compiled for a GPU, and the tensors are on cpu"):
        masked_attention(*parts, rule, impl="triton")
    with preferring("triton"), torch.no_grad():
        assert_close(masked_attention(*parts, rule, key="fixed"), exact(*parts, rule, by_head))


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        ([(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 5, 8)], [torch.float32] * 3, "one shape"),
        ([(4, 5, 8)] * 3, [torch.float32] * 3, "one shape"),
        ([(2, 4, 5, 8)] * 3, [torch.float32, torch.float32, torch.bfloat16], "one floating type"),
        ([(2, 4, 5, 8)] * 3, [torch.int64] * 3, "one floating type"),
    ],
)
def test_what_does_not_fit_is_named(shapes, dtypes, message):
    parts = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    with pytest.raises(ValueError, match=message):
        masked_attention(*parts, RULES["all"][0])


# What PyTorch's compiler warns of is its own.
@of_the_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["strided, by head", "star", "random, by head", "bigbird"])
def test_compiled_the_rule_is_the_same(name):
    """Inductor's own way to compile a rule, here for CPU: an axis of heads inside a rule came out
    wrong."""
    rule, by_head = RULES[name]
    parts = [part.cpu() for part in qkv(300)]
    with torch.no_grad():
        assert_close(
            triton_impl.masked_attention_triton(*parts, rule, by_head, None),
            exact(*parts, rule, by_head),
        )


@of_the_compiler
@pytest.mark.slow
def test_compiled_a_rule_serves_other_numbers_and_lengths():
    """Numbers that a rule held itself became variables of the compiled code at their second value,
    and broke it."""

    def latest(queries, keys, window):
        return (keys <= queries) & (keys > queries - window)

    for t, window in ((300, 64), (300, 100), (200, 33), (513, 64)):
        parts = [part.cpu() for part in qkv(t)]
        with torch.no_grad():
            actual = triton_impl.masked_attention_triton(
                *parts,
                latest,
                False,
                "latest",
                {"window": window},
            )
            wanted = exact(*parts, functools.partial(latest, window=window), False)
        assert_close(actual, wanted)


def test_numbers_of_a_rule_are_given_by_name():
    def latest(queries, keys, window):
        return (keys <= queries) & (keys > queries - window)

    parts = qkv(40)
    wanted = exact(*parts, functools.partial(latest, window=7), False)
    for impl in ("torch", "reference"):
        assert_close(masked_attention(*parts, latest, numbers={"window": 7}, impl=impl), wanted)
    tables = [
        triton_impl.kept_block_mask(latest, False, "named", 1, 300, CPU, {"window": window})
        for window in (7, 200, 7)
    ]
    assert tables[0] is tables[2]
    assert int(tables[0].kv_num_blocks.sum()) < int(tables[1].kv_num_blocks.sum())


@of_the_compiler
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("t", [1, 100, 129, 1000])
@pytest.mark.parametrize("name", RULES)
def test_on_a_gpu_flex_attention_equals_the_dense_mask(name, t, dtype):
    rule, by_head = RULES[name]
    parts = qkv(t, width=64, dtype=dtype)
    with torch.inference_mode():
        actual = masked_attention(*parts, rule, by_head=by_head, key=name, impl="triton")
        assert_close(
            actual,
            masked_attention(
                *(part.double() for part in parts),
                rule,
                by_head=by_head,
                impl="torch",
            ),
            dtype=dtype,
        )


@of_the_compiler
@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {"stride": 64},
        {"pattern": "fixed", "stride": 64},
        {"pattern": "star", "stride": 64, "length": 4096},
        {"configuration": "multihead"},
    ],
)
def test_on_a_gpu_a_long_text_equals_the_dense_mask(options):
    rule, by_head = rule_of(**options)
    parts = qkv(4096, width=64, dtype=torch.bfloat16)
    with torch.no_grad():
        actual = masked_attention(*parts, rule, by_head=by_head, key=str(options))
        wide = masked_attention(
            *(part.float() for part in parts),
            rule,
            by_head=by_head,
            impl="torch",
        )
    assert_close(actual, wide)


@of_the_compiler
@pytest.mark.gpu
def test_on_a_gpu_mixers_take_kernels_and_keep_their_patterns_apart():
    u = draw(2, 300, 64, dtype=torch.bfloat16)
    for options in (
        {},
        {"stride": 5},
        {"pattern": "star", "length": 300},
        {"pattern": "fixed", "configuration": "multihead"},
        {"pattern": "random"},
    ):
        torch.manual_seed(0)
        mixer = SparseAttention(64, **options).eval().to("cuda", torch.bfloat16)
        with torch.inference_mode():
            assert_close(mixer(u), mixer.double()(u.double()), dtype=torch.bfloat16, times=4)
