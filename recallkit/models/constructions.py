"""Models with set weights that solve MQAR, `construct:NAME`: nothing is trained, so what they miss
is a fault of ours.

A token is a word of b bits, -1 and 1: its id in binary, the lowest bit first, and ones up to a
multiple of 8. Two tokens differ in at least one bit. Both models are a `LanguageModel` of one block
without MLP, the norms as they are, and a head of its own.

`construct:attention` is Zoology's proposition H.27 (arXiv 2312.04927). u = [x, 0] for a word x,
width 2 b, one head:

    q[i] = x[i],   k[j] = x[j - 1],   v[j] = [0, x[j]],   y = softmax(c q . k) v,   logits = HEAD
        [0, W] (u + y)

with the words W of all tokens. At a query, k is equal at the place of its value alone, elsewhere at
least one bit differs, which is worth `MARGIN` nats. What differs from the proposition: its first
layer only brings a value up to its key's place, by a bias; here the short convolution of keys
brings keys down to their values, so that the block is causal and one is enough. Its tokens are
one-hot, in 3 c channels which say whether one is key, value or query; ids do not say that, so every
token is all three, in words of log c bits (as in Based's proposition F.16, arXiv 2402.18668, which
sharpens the match by ReLU and MLPs). It needs no softmax; ours has one, with a margin that makes it
a choice. No positions are rotated.

`construct:base-conv` is theorem H.38, with filters found by id (`ProgrammaticConv`). u = [x, x],
gate [0, 1]:

    y[i] = [0, 1] * u[j + 1],   j the latest place before i with the token of i,   logits = HEAD
        [-W, W] (u + y)

What differs: the theorem's autocorrelation finds t distances for a whole sequence, so its second
filter must be gated by whether query and key agree at a distance; a filter of each place has a tap
only where they do, and needs no gate. The theorem's own computation, and the proposition's, are in
`examples/theory/3_mqar.py`.

Either answers every query of MQAR, whatever the length, number of pairs and vocabulary: at each,
one earlier token is equal. In other text the first answers with a mixture of what followed all
earlier occurrences, the second with what followed the latest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from recallkit import registry
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.devices import memory_errors
from recallkit.models.language_model import LanguageModel, WithoutStorage
from recallkit.models.native_model import run_native
from recallkit.models.protocol import ModelFacts
from recallkit.storage import hashing

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from recallkit.models.native_model import NativeModel
    from recallkit.models.plan import ModelPlan

PREFIX = "construct:"

MARGIN = 64.0
"""Nats by which a bit that differs lowers a key's score: other places of a sequence of any length
get less than float32 resolves."""

HEAD = 16.0
"""Logits of a bit: at a query, a token that differs in a bit is at most e^-20 times as probable as
the value."""

_MULTIPLE = 8
"""Words are padded to a multiple of it, which fast attention wants of a head's width."""

_VERSION = 1
"""Of the constructions, part of their identity in results."""


def construct_attention(vocab_size: int) -> LanguageModel:
    """A model of `vocab_size` tokens that solves MQAR by attention (Zoology, proposition H.27),
    float32; see the module."""
    words = token_words(vocab_size)
    b = words.shape[1]
    mixer = {"num_heads": 1, "rope_fraction": 0.0, "short_conv": 2}
    model = _skeleton(words, LayerConfig("attention", mixer))
    word, empty = torch.eye(b), torch.zeros(b, b)
    scale = MARGIN / 2 * math.sqrt(2 * b)  # a bit that differs takes two from the product of words
    query, key, value = (
        scale * _blocks([[word, empty], [empty, empty]]),
        _blocks([[word, empty], [empty, empty]]),
        _blocks([[empty, empty], [word, empty]]),
    )
    now, before = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    taps = torch.stack([now, before, now]).repeat_interleave(2 * b, dim=0)
    return _with_weights(
        model,
        {
            "embedding.weight": torch.cat([words, torch.zeros_like(words)], dim=1),
            # Half of the channels are zero.
            "blocks.0.mixer_norm.weight": torch.full((2 * b,), math.sqrt(0.5)),
            "blocks.0.mixer.qkv.weight": torch.cat([query, key, value]),
            "blocks.0.mixer.short_conv.conv.weight": taps.unsqueeze(1),
            "blocks.0.mixer.out_proj.weight": torch.eye(2 * b),
            "head.weight": HEAD * torch.cat([torch.zeros_like(words), words], dim=1),
        },
    )


def construct_base_conv(vocab_size: int) -> LanguageModel:
    """A model of `vocab_size` tokens that solves MQAR by BaseConv with filters of the input
    (theorem H.38), float32; see the module."""
    words = token_words(vocab_size)
    b = words.shape[1]
    model = _skeleton(words, LayerConfig("programmatic_conv"))
    return _with_weights(
        model,
        {
            "embedding.weight": torch.cat([words, words], dim=1),
            "blocks.0.mixer.gate.weight": torch.zeros(2 * b, 2 * b),
            "blocks.0.mixer.gate.bias": torch.cat([torch.zeros(b), torch.ones(b)]),
            "blocks.0.mixer.bias": torch.zeros(2 * b),
            "head.weight": HEAD * torch.cat([-words, words], dim=1),
        },
    )


CONSTRUCTIONS: dict[str, Callable[[int], LanguageModel]] = {
    "attention": construct_attention,
    "base-conv": construct_base_conv,
}
"""By the names after `construct:`."""


def token_words(vocab_size: int) -> Tensor:
    """The words of all tokens (vocab_size, b), -1 and 1, different for each; b = log2 vocab_size,
    rounded up to a multiple of 8."""
    num_bits = max(1, (vocab_size - 1).bit_length())
    ids = torch.arange(vocab_size)
    bits = (ids[:, None] >> torch.arange(num_bits)) & 1
    spare = torch.ones(vocab_size, -num_bits % _MULTIPLE)
    return torch.cat([2.0 * bits - 1.0, spare], dim=1)


def identify(plan: ModelPlan) -> str:
    """Digest of the construction; its vocabulary is that of the tokenizer in use. Raises UserError
    for an unknown name."""
    _find(plan.location)
    return hashing.digest_json([plan.location, _VERSION])


def facts(plan: ModelPlan) -> ModelFacts:
    """As many entries as the tokenizer in use has, and no limit of context. Raises UserError for an
    unknown name."""
    _find(plan.location)
    return ModelFacts(vocab_size=plan.vocab_size)


def load(plan: ModelPlan) -> NativeModel:
    """Makes `construct:NAME` for the tokenizer in use. Raises UserError for an unknown name."""
    make = _find(plan.location)
    with memory_errors():
        return run_native(plan, make(plan.vocab_size))


def _find(spec: str) -> Callable[[int], LanguageModel]:
    return registry.look_up(CONSTRUCTIONS, spec.removeprefix(PREFIX), "construction")


def _skeleton(words: Tensor, layer: LayerConfig) -> LanguageModel:
    vocab_size, b = words.shape
    with WithoutStorage():
        return LanguageModel(
            ArchitectureConfig(
                vocab_size,
                2 * b,
                (layer,),
                mlp="none",
                norm_eps=0.0,
                tied_head=False,
            ),
        )


def _with_weights(model: LanguageModel, weights: dict[str, Tensor]) -> LanguageModel:
    """The model with these weights, norms that are not named with ones. Every other weight must be
    named."""
    names = [name for name in model.state_dict() if name.endswith("norm.weight")]
    norms = {name: torch.ones(model.config.d_model) for name in names}
    model.load_state_dict(norms | weights, assign=True)
    return model


def _blocks(rows: list[list[Tensor]]) -> Tensor:
    return torch.cat([torch.cat(row, dim=1) for row in rows])
