"""`rwkv7_attention`: chunks equal the recurrence, with decays from none to all, and what it takes away under another key."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recallkit.kernels.delta_rule.api import delta_rule
from recallkit.kernels.gated_linear_attention.api import gated_linear_attention
from recallkit.kernels.rwkv7.api import rwkv7_attention
from tests.kernels.checks import assert_close, draw
from tests.kernels.recurrences import Inputs, Recurrence, of_all_sizes


def drawn(b, h, t, k, v, dtype, *, std=1.0, strength=1.0) -> Inputs:
    """As in the mixer: what is read has length one, what is written under is a share of it channel by channel."""
    wide = torch.promote_types(dtype, torch.float32)
    r, keys, read, share, logs = (draw(b, h, t, k, std=s, dtype=wide, seed=i) for i, s in enumerate([std, std, 1.0, 1.0, 1.0]))
    erase = functional.normalize(read, dim=-1)
    write, decays = torch.sigmoid(share) * erase, strength * functional.logsigmoid(logs)
    values = draw(b, h, t, v, dtype=dtype, seed=5)
    return {"r": r.to(dtype), "k": keys.to(dtype), "v": values, "erase": erase.to(dtype), "write": write.to(dtype), "log_decay": decays}


RWKV7 = Recurrence(rwkv7_attention, drawn)


@of_all_sizes
def test_torch_equals_reference(sizes, dtype, std):
    RWKV7.check(drawn(2, 2, *sizes, dtype, std=std))


@pytest.mark.parametrize("chunk", [1, 5, 16, 64, 1000])
def test_any_chunk_gives_the_result(chunk):
    RWKV7.check(drawn(1, 2, 70, 8, 24, torch.float32), torch.randn(1, 2, 8, 24), chunk=chunk)


@pytest.mark.parametrize("strength", [0.01, 30.0, math.inf])
def test_from_little_forgetting_to_all_of_it(strength):
    """Log decays of -30 and beyond, and of minus infinity, of chunks that are full and not."""
    for t in (64, 70):
        given = drawn(2, 2, t, 8, 24, torch.float32, strength=strength)
        given["write"] = given["write"] * given["log_decay"].exp()
        RWKV7.check(given, torch.randn(2, 2, 8, 24))


def test_where_nothing_is_taken_away_it_is_gated_linear_attention():
    given, state = drawn(2, 3, 70, 8, 12, torch.float64), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    wanted = gated_linear_attention(given["r"], given["k"], given["v"], given["log_decay"], state)
    for name in ("erase", "write"):
        for one, other in zip(rwkv7_attention(**given | {name: torch.zeros_like(given[name])}, state=state), wanted, strict=True):
            assert_close(one, other)


@pytest.mark.parametrize("t", [1, 31, 70])
def test_what_is_taken_away_under_the_key_that_is_written_is_the_delta_rule(t):
    given, state = drawn(2, 3, t, 8, 12, torch.float64), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    k, b = given["erase"], torch.sigmoid(draw(2, 3, t, dtype=torch.float64, seed=7))
    wanted = delta_rule(given["r"], k, given["v"], b, given["log_decay"], state)
    b = b[..., None]
    alike = {"k": k, "v": b * given["v"], "erase": b * given["log_decay"].exp() * k, "write": k}
    for one, other in zip(rwkv7_attention(**given | alike, state=state), wanted, strict=True):
        assert_close(one, other)


def test_a_state_can_swap_its_rows():
    """Taking e1 - e2 away under e1 - e2 exchanges two rows: what no decay does (arXiv 2503.14456, on tracking states)."""
    pair = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64).expand(1, 1, 3, 4)
    none, state = torch.zeros(1, 1, 3, 4, dtype=torch.float64), torch.randn(1, 1, 4, 5, dtype=torch.float64)
    _, after = rwkv7_attention(none, none, torch.zeros(1, 1, 3, 5, dtype=torch.float64), pair, pair, none, state)
    assert_close(after, state[:, :, [1, 0, 2, 3]])


@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_pieces_and_steps_are_the_whole(chunk):
    RWKV7.check_cuts(chunk)


def test_any_size_and_strides():
    RWKV7.check_sizes_and_strides()


@pytest.mark.parametrize(("t", "chunk"), [(1, 4), (4, 4), (7, 4), (3, 8)])
def test_gradients_are_the_derivatives(t, chunk):
    RWKV7.check_gradients(t, chunk)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"k": (1, 2, 5, 4)}, "do not fit"),
        ({"v": (1, 4, 5, 3)}, "the same number of heads, not 2 and 4"),
        ({"erase": (1, 2, 5)}, r"erase must have the shape of k, \(1, 2, 5, 8\), not \(1, 2, 5\)"),
        ({"write": (1, 2, 5, 3)}, "write must have the shape of k"),
        ({"log_decay": (1, 2, 5)}, "log_decay must have the shape of k"),
        ({"state": (1, 2, 3, 8)}, r"the state must be \(b, h, k, v\) = \(1, 2, 8, 3\)"),
        ({"chunk": 0}, "chunk is 0"),
        ({"impl": "fast"}, "impl must be one of"),
    ],
)
def test_what_does_not_fit_is_named(changed, said):
    shapes = dict.fromkeys(("r", "k", "erase", "write", "log_decay"), (1, 2, 5, 8)) | {"v": (1, 2, 5, 3)} | changed
    given = {name: torch.zeros(value) if isinstance(value, tuple) else value for name, value in shapes.items()}
    with pytest.raises(ValueError, match=said):
        rwkv7_attention(**given)


def test_without_the_library_a_kernel_says_what_to_install(monkeypatch, caplog):
    RWKV7.check_without_the_library(monkeypatch, caplog)


def test_the_library_is_called_as_it_documents(monkeypatch):
    from recallkit.kernels.rwkv7.triton_impl import rwkv7_attention_triton

    RWKV7.check_calls_of_the_library(monkeypatch, rwkv7_attention_triton, "rwkv7")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("t", "widths"), [(1, (64, 64)), (17, (64, 64)), (130, (64, 128)), (1000, (64, 64))])
def test_on_a_gpu_the_library_equals_the_reference(t, widths, dtype):
    """Weak decays, as in the mixer."""
    RWKV7.check_on_a_gpu(t, dtype, widths, 0.1)
