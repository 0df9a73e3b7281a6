"""Softmax attention, whole and in windows: against torch, transformers and itself where one form is
a case of another."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.blocked_window import BlockedWindow
from recallkit.models.mixers.rotary import rotary_width, rotate
from recallkit.models.mixers.sliding_window import SlidingWindow
from tests.models.mixers.battery import difference, inputs

D = 16


def same_parameters(mixer, other):
    other.load_state_dict(mixer.state_dict())
    return other.double().eval().requires_grad_(False)


def make(kind, **options):
    torch.manual_seed(0)
    return kind(D, **options).double().eval().requires_grad_(False)


def test_without_rotation_it_is_scaled_dot_product_attention():
    mixer = make(Attention, rope_fraction=0.0)
    u, _ = inputs(mixer, 21)
    q, k, v = (
        part.unflatten(-1, (4, 4)).transpose(1, 2)
        for part in (u @ mixer.qkv.weight.T).chunk(3, dim=-1)
    )
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    assert difference(mixer(u), context @ mixer.out_proj.weight.T) < 1e-12


def test_normalised_heads_do_not_feel_the_size_of_queries_and_keys():
    mixer = make(Attention, qk_norm=True)
    u, _ = inputs(mixer, 20)
    before = mixer(u)
    mixer.qkv.weight[: 2 * D] *= 100
    assert difference(mixer(u), before) < 1e-3  # but for the epsilon under the root
    mixer.q_norm.weight *= 0
    values = (u @ mixer.qkv.weight[2 * D :].T).cumsum(1) / torch.arange(1, 21)[:, None]
    # No score differs from another: means of the values.
    assert difference(mixer(u), values @ mixer.out_proj.weight.T) < 1e-12


def test_a_rotation_far_on_is_exact_in_single_precision():
    x = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    far = torch.tensor([2**20 + 1])
    assert difference(rotate(x, far, width=8), rotate(x.double(), far, width=8)) < 1e-6


def test_a_share_of_a_head_that_is_no_pairs_is_refused():
    assert [rotary_width(8, share) for share in (0, 0.25, 0.5, 1)] == [0, 2, 4, 8]
    for width, share in ((6, 0.5), (8, 1.5), (8, -0.1)):
        with pytest.raises(ValueError, match="rope_fraction"):
            rotary_width(width, share)


def test_a_partly_rotated_head_is_that_of_gpt_neox():
    from transformers.models.gpt_neox.modeling_gpt_neox import (
        GPTNeoXConfig,
        GPTNeoXRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    config = GPTNeoXConfig(hidden_size=32, num_attention_heads=2, rotary_pct=0.25)
    x = torch.randn(2, 2, 9, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cos, sin = GPTNeoXRotaryEmbedding(config)(x, torch.arange(9)[None])
    theirs, _ = apply_rotary_pos_emb(x, x, cos, sin)
    assert difference(theirs, rotate(x, torch.arange(9), width=rotary_width(16, 0.25))) < 1e-5


@pytest.mark.parametrize(
    ("window", "t"),
    [(1, 9), (3, 7), (4, 8), (4, 9), (7, 70), (16, 33), (16, 32)],
)
def test_a_sliding_window_is_attention_to_a_text_cut_before_the_window(window, t):
    mixer = make(SlidingWindow, window=window, rope_fraction=0.5)
    at_once = same_parameters(mixer, Attention(D, rope_fraction=0.5))
    u, _ = inputs(mixer, t)
    actual = mixer(u)
    for i in range(t):
        cut = u[:, max(0, i - window + 1) : i + 1]
        assert difference(actual[:, i], at_once(cut)[:, -1]) < 1e-9, i


@pytest.mark.parametrize(("window", "t"), [(1, 5), (3, 7), (4, 8), (16, 70)])
def test_blocks_are_texts_of_their_own(window, t):
    mixer = make(BlockedWindow, window=window)
    at_once = same_parameters(mixer, Attention(D))
    u, _ = inputs(mixer, t)
    alone = torch.cat([at_once(block) for block in u.split(window, dim=1)], dim=1)
    assert difference(mixer(u), alone) < 1e-9


@pytest.mark.parametrize("window", [1, 2, 5])
def test_reading_a_sliding_window_after_any_number_of_tokens_is_reading_at_once(window):
    """For every offset in the ring, of a text shorter than a window, of one, of two and of more."""
    mixer = make(SlidingWindow, window=window, qk_norm=True, short_conv=2)
    u, _ = inputs(mixer, 5 * window + 2)
    at_once = mixer(u)
    for split in range(1, 2 * window + 1):
        first, before = mixer.read(u[:, :split], mixer.initial_state(2))
        assert difference(first, at_once[:, :split]) < 1e-9
        for more in (1, window - 1, window, window + 1, 2 * window, 2 * window + 1, 3 * window + 1):
            if more:
                y, state = mixer.read(u[:, split : split + more], before)
                assert difference(y, at_once[:, split : split + more]) < 1e-9, (split, more)
                after = split + more
                assert difference(mixer.step(u[:, after], state)[0], at_once[:, after]) < 1e-9, (
                    split,
                    more,
                )


@pytest.mark.parametrize(
    "mixer",
    [
        Attention(D),
        SlidingWindow(D, window=1),
        SlidingWindow(D, window=7),
        BlockedWindow(D, window=1),
        BlockedWindow(D, window=7),
    ],
)
def test_pairs_are_those_of_the_mask(mixer):
    for t in (1, 6, 7, 8, 14, 15, 30):
        places = torch.arange(t)
        mask = mixer.sees(places[:, None], places[None, :])
        assert mixer.num_pairs(t) == mixer.num_heads * int(mask.sum())
