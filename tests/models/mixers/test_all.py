"""All mixers: the battery for each of them and its options, options that do not fit, precision in
long texts, sizes counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from recallkit.kernels.choice import preferring
from recallkit.kernels.taylor_attention import torch_impl
from recallkit.models import mixers
from recallkit.models.mixers import MIXERS, make_mixer
from recallkit.models.mixers.feature_maps import FEATURE_MAPS
from recallkit.models.mixers.mamba import DT_RANGE
from tests.kernels.fla_stand_in import stand_in_for_the_library
from tests.models.mixers.battery import check_mixer, difference, inputs, randomised

MAP_OPTIONS = {"cosformer": {"max_length": 40}, "performer": {"num_features": 20}}

CASES: dict[str, list[dict[str, Any]]] = {
    "attention": [
        {},
        {"num_heads": 2, "rope_fraction": 0.5, "rope_base": 500.0},
        {"num_heads": 1, "qk_norm": True, "short_conv": 3},
    ],
    "sliding_window": [
        {"window": 1, "rope_fraction": 0.0},
        {"window": 5, "qk_norm": True, "short_conv": 4},
        {"window": 20, "rope_fraction": 0.5},
        {"window": 64},
    ],
    "blocked_window": [{"window": 5, "short_conv": 1}, {"window": 64}],
    "sparse_attention": [
        {"stride": 4},
        {"stride": 5, "configuration": "multihead", "rope_fraction": 0.5},
        {"stride": 4, "configuration": "sequential", "layer": 3},
        {"pattern": "fixed", "stride": 5, "configuration": "multihead"},
        {"pattern": "fixed", "stride": 4, "configuration": "sequential"},
        {"pattern": "star", "stride": 5, "length": 256},
        {"pattern": "random", "sparsity": 0.7, "seed": 3},
        {"pattern": "random", "sparsity": 0.7, "configuration": "multihead"},
        {"pattern": "longformer", "stride": 4, "num_global": 2},
        {"pattern": "bigbird", "stride": 3, "length": 256},
    ],
    "entmax_attention": [
        {},
        {"alpha": 2.0, "num_heads": 2, "short_conv": 3},
        {"alpha": 1.0, "qk_norm": True},
    ],
    "selective_attention": [
        {},
        {"keys": "matches"},
        {"keys": "matches", "qk_norm": True, "short_conv": 3},
        {"selection": "full", "num_heads": 2, "rope_fraction": 0.5},
        {"selection": "random", "share": 0.6},
        {"selection": "learned", "rope_fraction": 0.0},
        {"selection": "learned", "k": 12},
    ],
    "gau": [{"key_dim": 6}, {"key_dim": 4, "expand": 1}],
    "long_conv": [{"max_length": 40}, {"max_length": 40, "squash": 0.01}],
    "base_conv": [
        {"max_length": 40},
        {"max_length": 40, "frequency": 14.0, "slow_decay": 1.2},
        {"filter": "short"},
        {"filter": "short", "kernel": 5},
    ],
    "gated_short_conv": [{}, {"kernel": 1, "expand": 1}, {"kernel": 4, "bias": False}],
    "hyena": [
        {"max_length": 40},
        {"max_length": 40, "short_kernel": 2, "frequency": 4.0},
    ],
    "programmatic_conv": [{}],
    "autocorrelation_conv": [{}, {"top": 2}, {"top": 99}],
    "linear_attention": [
        *(
            {"num_heads": 2, "feature_dim": 6, "feature_map": name, **MAP_OPTIONS.get(name, {})}
            for name in FEATURE_MAPS
        ),
        {"num_heads": 2, "feature_dim": 6, "decay": "fixed"},
        {"num_heads": 2, "feature_dim": 6, "decay": "input"},
        {
            "num_heads": 2,
            "feature_dim": 6,
            "decay": "input",
            "feature_map": "identity",
            "short_conv": 3,
        },
    ],
    "prefix_linear_attention": [
        {"num_heads": 2, "feature_dim": 6, "prefix": 11},
        {"num_heads": 2, "feature_dim": 6, "prefix": 1, "feature_map": "identity"},
        {"num_heads": 1, "feature_dim": 4, "prefix": 26, "feature_map": "elu"},
    ],
    "retnet": [{"num_heads": 2, "value_factor": 2.0}, {"num_heads": 2, "value_factor": 1.25}],
    "gla": [
        {"num_heads": 2, "gate_rank": 4},
        # Gates close to e^-50 and less: their products are zero in float32, and their inverses no
        # numbers.
        {"num_heads": 2, "gate_rank": 4, "temperature": 0.02},
        {"num_heads": 2, "key_factor": 0.25, "value_factor": 0.5},
    ],
    "hgrn": [{}, {"expand": 1.5, "lower_bound": 0.7}],
    "hgrn2": [{"num_heads": 2}, {"num_heads": 4, "key_factor": 0.5, "lower_bound": 0.7}],
    "delta_net": [{"num_heads": 2}],
    "gated_delta": [
        {"num_heads": 2},
        {"num_heads": 1, "key_factor": 0.5, "short_conv": 1, "value_factor": 0.25},
    ],
    "kda": [
        {"num_heads": 2},
        {"num_heads": 1, "key_factor": 0.5, "short_conv": 1, "value_factor": 0.25},
    ],
    "rwkv4": [{"layer": 0, "num_layers": 1}, {"layer": 1, "num_layers": 3}],
    "rwkv5": [{"head_size": 8}, {"head_size": 4, "layer": 1, "num_layers": 2, "eps": 1e-5}],
    "rwkv7": [
        {"head_size": 8},
        {"head_size": 4, "layer": 1, "num_layers": 2, "rate_rank": 3, "gate_rank": 5},
    ],
    "mamba": [{}, {"state": 3, "expand": 1, "conv_kernel": 1, "dt_rank": 2}],
    "mamba2": [
        {"state": 8, "head_dim": 8},
        {"state": 3, "expand": 1, "head_dim": 4, "groups": 2, "conv_kernel": 2},
    ],
    "mamba3": [
        {"state": 6, "head_dim": 8},
        {"state": 4, "head_dim": 8, "groups": 2, "rope_fraction": 1.0},
        {"state": 7, "head_dim": 16, "expand": 1, "rope_fraction": 0.3},
    ],
    "h3": [{"state": 12}, {"state": 4, "head_dim": 2}, {"state": 6, "head_dim": 8}],
    "s4": [{"state": 8}],
    "s4d": [{"state": 8}],
    "gss": [{"state": 16}, {"state": 5, "width": 3, "expand": 1}],
}
"""Options of every mixer with which it is checked. The longest text of the battery has 33
tokens."""

WIDTHS = dict.fromkeys(MIXERS, 16) | dict.fromkeys(
    ("gau", "long_conv", "gated_short_conv", "hyena", "h3"),
    8,
)
WIDTHS |= dict.fromkeys(("base_conv", "gss"), 12) | dict.fromkeys(
    ("programmatic_conv", "autocorrelation_conv", "s4", "s4d"),
    6,
)


def test_every_mixer_is_checked():
    assert set(CASES) == set(MIXERS)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for kind, item in CASES.items() for options in item],
    ids=str,
)
def test_battery(kind, options, monkeypatch):
    """Chunks are of 5 tokens, so that a text has several, the last one not full."""
    monkeypatch.setattr(torch_impl, "CHUNK", 5)
    if hasattr(type(make_mixer(kind, WIDTHS[kind], **options)), "chunk"):
        monkeypatch.setattr(type(make_mixer(kind, WIDTHS[kind], **options)), "chunk", 5)
    # Nothing need be selected in one or two tokens, and then zeros are right.
    lengths = {"lengths": (7, 33)} if kind == "selective_attention" else {}
    check_mixer(lambda: make_mixer(kind, WIDTHS[kind], **options), **lengths)


NARROW = ["linear_attention", "retnet", "gla", "hgrn", "hgrn2", "gated_delta", "kda", "mamba3"]


@pytest.mark.parametrize("kind", NARROW)
def test_states_stay_wide_where_weights_are_narrow(kind):
    mixer = make_mixer(kind, 16, **CASES[kind][0]).bfloat16()
    u = inputs(mixer, 20)[0].bfloat16()
    with torch.no_grad():
        y, state = mixer.read(u, mixer.initial_state(2))
    assert y.dtype == torch.bfloat16
    assert {value.dtype for name, value in state.items() if name != "num_read"} == {torch.float32}


@pytest.mark.parametrize("kind", NARROW)
def test_float32_of_a_thousand_tokens_is_within_rounding_of_float64(kind):
    """Of several chunks of full length; the angles of Mamba-3 add up to hundreds of turns."""
    narrow = randomised(make_mixer(kind, 16, **CASES[kind][0])).eval()
    if kind == "mamba3":
        narrow.dt_bias.data.fill_(1.0)
    wide = make_mixer(kind, 16, **CASES[kind][0]).double().eval()
    wide.load_state_dict(narrow.state_dict())
    u = 3 * inputs(wide, 1000)[0] if kind in NARROW[:2] else inputs(wide, 1000)[0]
    with torch.no_grad():
        actual, wanted = narrow(u.float()), wide(u)
        first, state = wide.read(u[:, :301], wide.initial_state(2))
        second, _ = wide.read(u[:, 301:], state)
    assert difference(actual, wanted) < 2e-5
    assert difference(torch.cat([first, second], dim=1), wanted) < 1e-9


@pytest.mark.parametrize(
    ("kind", "bias"),
    [
        ("mamba", "dt_proj.bias"),
        *((kind, "dt_bias") for kind in ("mamba2", "mamba3", "gated_delta", "kda")),
    ],
)
def test_steps_start_in_the_range_of_the_papers(kind, bias):
    torch.manual_seed(0)
    heads = {
        "mamba2": {"head_dim": 1},
        "mamba3": {"state": 4, "head_dim": 2},
        "gated_delta": {"num_heads": 256},
    }.get(kind, {})
    dt = functional.softplus(make_mixer(kind, 1024, **heads).get_parameter(bias))
    assert DT_RANGE[0] * 0.99 < dt.min() < DT_RANGE[0] * 2
    assert DT_RANGE[1] / 2 < dt.max() < DT_RANGE[1] * 1.01


@pytest.mark.parametrize(
    ("kind", "options", "size"),
    [
        ("sliding_window", {"window": 6}, 2 * 64 * 6),
        ("blocked_window", {"window": 6}, 2 * 64 * 6),
        ("gla", {"num_heads": 4}, 4 * 8 * 16),
        ("hgrn", {"expand": 2}, 2 * 64),
        ("hgrn2", {"num_heads": 4}, 4 * 16 * 16),
        ("gated_delta", {"num_heads": 4}, 4 * 12 * 24),
        ("kda", {"num_heads": 4}, 4 * 16 * 16),
        ("mamba", {"state": 4}, 2 * 64 * 4),
        ("mamba2", {"state": 4, "head_dim": 4}, 2 * 64 * 4),
        ("mamba3", {"state": 16, "head_dim": 32}, 4 * (16 * 32 + 4 + 16 + 32)),
        ("rwkv4", {}, 4 * 64),
        ("rwkv5", {"head_size": 4}, 64 + 64 * 4),
        ("rwkv7", {"head_size": 4}, 64 + 64 * 4),
        ("base_conv", {"filter": "short", "kernel": 3}, 3 * 64),
        ("base_conv", {}, 64 * 1000),
        ("hyena", {}, 64 * 1000),
        ("s4", {"state": 8}, 64 * 8),
        ("h3", {"state": 6}, 64 * 6),
        ("selective_attention", {}, 2 * 64 * 1000 + 1000),
        ("linear_attention", {"feature_map": "identity"}, 64 * 16),
    ],
)
def test_states_hold_what_is_counted_by_hand(kind, options, size):
    assert make_mixer(kind, 64, **options).state_size(1000) == size


OPERATIONS = [
    ("linear_attention", {"num_heads": 2, "feature_dim": 4}, 109_640, 3_574_850),
    # Linear attention; of 30 tokens two projections, features (22 operations for 15) and their sums
    # by head; of the first chunk, of 40 and of 128 tokens, features, a product with the encoder's
    # state and its sum, and where there is a second one, the sum of the states.
    (
        "prefix_linear_attention",
        {"num_heads": 2, "feature_dim": 4, "prefix": 30},
        173_380,
        3_823_724,
    ),
    ("retnet", {"num_heads": 2}, 258_920, 9_434_684),
    ("gla", {"num_heads": 2, "gate_rank": 3}, 124_632, 3_276_528),
    # Four layers and 24 operations of each channel; or 17 of each key channel (4 of them
    # doublings), 5 of each value, chunks of 16.
    ("hgrn", {}, 40 * (4 * 2 * 16 * 16 + 24 * 16), 300 * (4 * 2 * 32 * 32 + 24 * 32)),
    ("hgrn2", {"num_heads": 2}, 137_008, 3_626_592),
    ("delta_net", {"num_heads": 2}, 286_688, 6_975_440),
    ("gated_delta", {"num_heads": 2}, 345_984, 8_582_120),
    ("kda", {"num_heads": 2}, 293_376, 6_895_520),
    ("rwkv4", {}, 105_600, 2_812_800),
    ("rwkv5", {"head_size": 8}, 198_016, 4_909_440),
    ("rwkv7", {"head_size": 8, "rate_rank": 3, "gate_rank": 5}, 358_008, 6_932_740),
    ("mamba2", {"state": 4, "head_dim": 8}, 269_300, 6_383_400),
    ("mamba3", {"state": 6, "head_dim": 8}, 313_988, 7_548_960),
    ("hyena", {}, 1_003_408, 12_122_144),
    ("long_conv", {}, 177_168, 4_317_344),
    ("s4d", {"state": 6}, 184_848, 4_432_544),
    ("h3", {"state": 4, "head_dim": 2}, 350_496, 8_577_088),
    ("gss", {"state": 3, "expand": 2}, 144_932, 3_894_536),
    ("programmatic_conv", {}, 23_648, 662_336),
    ("autocorrelation_conv", {"top": 3}, 75_940, 4_280_550),
]
"""Operations on 40 tokens of width 16, and on 300 of width 32, several chunks, the last one not
full."""


@pytest.mark.parametrize(("kind", "options", "few", "many"), OPERATIONS, ids=str)
def test_operations_are_those_counted_from_the_equations(kind, options, few, many):
    """A sum, product, division, comparison, exp and log are one each; so a sigmoid is four, a
    softplus three, a gelu and a norm eight."""
    assert make_mixer(kind, 16, **options).flops(40) == few
    assert make_mixer(kind, 32, **options).flops(300) == many


REFUSED = [
    ("attention", {"num_heads": 3}, "heads"),
    ("attention", {"rope_fraction": 1.5}, "rope_fraction"),
    ("sliding_window", {"window": 0}, "sees nothing"),
    ("blocked_window", {"window": 0}, "sees nothing"),
    ("sparse_attention", {"pattern": "zigzag"}, "no sparse pattern"),
    ("sparse_attention", {"configuration": "both"}, "no configuration"),
    (
        "sparse_attention",
        {"pattern": "star", "configuration": "multihead", "length": 9},
        "one part",
    ),
    ("sparse_attention", {"pattern": "bigbird", "length": 1}, "set length"),
    ("sparse_attention", {"pattern": "bigbird", "length": 9, "num_random": 65}, "num_random"),
    ("sparse_attention", {"num_heads": 1, "configuration": "multihead"}, "half of the heads"),
    ("sparse_attention", {"stride": 0}, "stride"),
    ("entmax_attention", {"alpha": 0.5}, "at least 1"),
    ("selective_attention", {"selection": "some"}, "no selection"),
    ("selective_attention", {"keys": "matches", "selection": "learned"}, "matches"),
    ("selective_attention", {"keys": "few"}, "keys few"),
    ("selective_attention", {"share": 0.0}, "share"),
    ("selective_attention", {"k": 4}, "where a selection is learned"),
    ("gau", {"key_dim": 1}, "at least 2"),
    ("gau", {"key_dim": 7}, "cannot be paired"),
    ("long_conv", {"max_length": 0}, "at least 1 tap"),
    ("base_conv", {"filter": "long"}, "filter"),
    ("base_conv", {"slow_decay": 0.0}, "positive"),
    ("gated_short_conv", {"expand": 0}, "expand"),
    ("gated_short_conv", {"kernel": 0}, "at least 1 tap"),
    ("autocorrelation_conv", {"top": 0}, "top"),
    ("linear_attention", {"num_heads": 3}, "num_heads"),
    ("linear_attention", {"feature_map": "tailor"}, "not one of taylor"),
    ("linear_attention", {"feature_map": "cosformer"}, "max_length"),
    ("linear_attention", {"feature_dim": 0}, "feature_dim"),
    ("linear_attention", {"num_features": 9}, "Performer"),
    ("linear_attention", {"decay": "fixed", "decay_exponent": 0}, "decay_exponent"),
    ("linear_attention", {"decay": "learned"}, "decay 'learned'"),
    ("prefix_linear_attention", {"prefix": 0}, "use linear_attention"),
    ("prefix_linear_attention", {"feature_map": "cosformer"}, "choose another feature_map"),
    ("retnet", {"num_heads": 3}, "num_heads"),
    ("retnet", {"value_factor": 0.0}, r"16 \(keys\) and 0"),
    ("gla", {"gate_rank": 0}, "num_heads|gate_rank"),
    ("gla", {"temperature": 0}, "temperature"),
    ("hgrn", {"lower_bound": 1.0}, "lower_bound 1.0 must be"),
    ("hgrn2", {"num_heads": 3}, "num_heads 3 does not divide"),
    ("delta_net", {"num_heads": 5}, "num_heads"),
    ("delta_net", {"short_conv": 0}, "short_conv"),
    ("rwkv4", {"layer": 2, "num_layers": 2}, "layer is 2, not one of 2"),
    ("rwkv5", {"head_size": 3}, "d_model 16 is not a multiple of head_size 3"),
    ("rwkv7", {"head_size": 8, "gate_rank": 0}, "gate_rank 0 must be positive"),
    ("mamba", {"state": 0}, "state is 0"),
    ("mamba2", {"head_dim": 5}, "32 channels are not 1 groups of heads of 5"),
    ("mamba3", {"head_dim": 8, "groups": 3}, "not 3 groups"),
    ("mamba3", {"head_dim": 8, "state": 3}, "rope_fraction 0.5 of a state of 3"),
    ("s4", {"state": 7}, "an even number"),
    ("s4d", {"state": 3}, "even|pairs"),
    ("h3", {"head_dim": 3}, "head_dim"),
    ("gss", {"expand": 0}, "expand|width"),
]


@pytest.mark.parametrize(("kind", "options", "said"), REFUSED, ids=str)
def test_options_that_do_not_fit_are_refused(kind, options, said):
    with pytest.raises(ValueError, match=said):
        make_mixer(kind, 16, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("base_conv", {"max_length": 5}),
        ("hyena", {"max_length": 5}),
        ("long_conv", {"max_length": 5}),
        ("linear_attention", {"max_length": 5, "feature_map": "cosformer", "feature_dim": 4}),
        ("sparse_attention", {"pattern": "star", "length": 5, "num_heads": 1}),
    ],
)
def test_more_tokens_than_a_mixer_is_made_for_are_refused(kind, options):
    mixer = make_mixer(kind, 4, **options)
    assert mixer.max_length == 5
    u = torch.zeros(1, 6, 4)
    mixer(u[:, :5])
    with pytest.raises(ValueError, match=r"max_length 5|at most 5 tokens"):
        mixer(u)
    _, state = mixer.read(u[:, :5], mixer.initial_state(1))
    with pytest.raises(ValueError, match=r"max_length 5|at most 5 tokens"):
        mixer.step(u[:, 5], state)


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [
        ("gla", "gla"),
        ("hgrn2", "gla"),
        ("retnet", "simple_gla"),
        ("rwkv5", "rwkv6"),
        ("rwkv7", "rwkv7"),
        ("mamba2", "simple_gla"),
        ("mamba3", "simple_gla"),
        ("delta_net", "delta_rule"),
        ("gated_delta", "gated_delta_rule"),
        ("kda", "kda"),
    ],
)
def test_recurrences_reach_the_kernels(kind, kernel, monkeypatch):
    """The library that has them is not here: see what stands for it. Each mixer is as its
    reference, at once and token by token."""
    mixer = randomised(make_mixer(kind, 16, **CASES[kind][0])).eval()
    u = inputs(mixer, 9)[0].float()
    with torch.no_grad():
        wanted = mixer.reference(u)
        called = stand_in_for_the_library(monkeypatch)
        with preferring("triton"):
            at_once, state, stepped = mixer(u), mixer.initial_state(2), []
            for i in range(9):
                y, state = mixer.step(u[:, i], state)
                stepped.append(y)
    assert called == ["fused_recurrent_" + kernel] * 10
    assert difference(at_once, wanted) < 2e-5
    assert difference(torch.stack(stepped, dim=1), wanted) < 2e-5


def test_every_public_method_is_documented_here_or_where_it_is_inherited_from():
    import importlib
    import inspect
    import pkgutil

    modules = [
        importlib.import_module(f"{mixers.__name__}.{results.name}")
        for results in pkgutil.iter_modules(mixers.__path__)
    ]
    classes = {
        item
        for module in modules
        for item in vars(module).values()
        if inspect.isclass(item) and item.__module__ == module.__name__
    }
    methods = {
        method
        for item in classes
        for name, method in vars(item).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert len(methods) > 150
    assert [method.__qualname__ for method in methods if not inspect.getdoc(method)] == []
