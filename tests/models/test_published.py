"""Released checkpoints: files of their layouts give what their equations say, written out here;
what does not fit is refused."""

from __future__ import annotations

import functools
import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from recallkit.errors import UserError
from recallkit.models.kinds import kind_of
from recallkit.models.language_model import LanguageModel
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.published import is_published, read_published
from recallkit.models.spec import ModelSpec

WIDTH, MLP, ROWS, VOCAB = 32, 48, 56, 51
"""The vocabulary is padded to a multiple of 8."""

GPT = {
    "vocab_size": VOCAB,
    "n_embd": WIDTH,
    "n_head": 2,
    "n_inner": None,
    "activation_function": "swiglu",
    "rms_norm": True,
    "layer_norm_epsilon": 1e-3,
    "pad_vocab_size_multiple": 8,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}
BASED = GPT | {
    "n_layer": 4,
    "rotary_emb_fraction": 1,
    "mixer": {
        "_target_": "based.models.mixers.convolution.BaseConv",
        "expand_proj": 4,
        "kernel_sizes": 3,
        "use_bias": True,
    },
    "alt_mixer": {
        "_target_": "based.models.mixers.linear_attention.LinearAttention",
        "feature_dim": 6,
        "feature_map": {
            "_target_": "based.models.mixers.linear_attention.TaylorExp",
            "input_dim": 6,
        },
        "num_heads": 4,
    },
    "alt_mixer_2": {
        "_target_": "based.models.mixers.slide_attention.SlidingAttention",
        "window_size": 9,
        "num_heads": 2,
    },
    "alt_mixer_layers": [1],
    "alt_mixer_2_layers": [2],
}
OLDER = GPT | {
    "n_layer": 2,
    "rotary_emb_fraction": 1,
    "mixer": {
        "_target_": "based.models.mixers.base_conv.BaseConv",
        "expand_proj": 4,
        "kernel_sizes": [3],
        "use_bias": True,
    },
    "alt_mixer": {
        "_target_": "based.models.mixers.linear_attn.LinearAttention",
        "feature_dim": 6,
        "feature_name": "taylor_exp",
        "num_heads": 4,
        "use_rotary_apply": False,
    },
    "alt_mixer_layers": [1],
    "fixed_decay": True,
    "decay_const": -3,
    "decay_denom": False,
}
"""As the checkpoints of 30B tokens are configured (HazyResearch/prefix-linear-attention,
baselines/based-360m-30b.yaml)."""
ATTENTION = GPT | {"n_layer": 2, "rotary_emb_fraction": 0.5}
MAMBA = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "n_layer": 2,
    "ssm_cfg": {},
    "rms_norm": True,
    "pad_vocab_size_multiple": 8,
}
MAMBA2 = MAMBA | {
    "ssm_cfg": {"layer": "Mamba2", "ngroups": 2, "headdim": 8, "chunk_size": 16},
    "d_intermediate": 0,
}

CONVOLUTION = {
    "in_proj.weight": (4 * WIDTH, WIDTH),
    "in_proj.bias": (4 * WIDTH,),
    "conv.conv.weight": (2 * WIDTH, 1, 3),
    "out_proj.weight": (WIDTH, 2 * WIDTH),
    "out_proj.bias": (WIDTH,),
}
OLDER_CONVOLUTION = {
    name.replace("conv.conv", "conv1.conv"): shape for name, shape in CONVOLUTION.items()
}
LINEAR = {
    "proj_q.weight": (24, WIDTH),
    "proj_k.weight": (24, WIDTH),
    "proj_v.weight": (WIDTH, WIDTH),
    "out_proj.weight": (WIDTH, WIDTH),
}
SOFTMAX = {"Wqkv.weight": (3 * WIDTH, WIDTH), "out_proj.weight": (WIDTH, WIDTH)}


def drawn(shapes):
    """Weights of these shapes: norms and embeddings near one in size, matrices so that a layer
    keeps the size of its input."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in shapes.items():
        scale = 1.0 if "embedding" in name or len(shape) != 2 else shape[1] ** -0.5
        weights[name] = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    return weights


def gpt_weights(mixers):
    shapes = {
        "transformer.embeddings.word_embeddings.weight": (ROWS, WIDTH),
        "transformer.ln_f.weight": (WIDTH,),
    }
    for i, mixer in enumerate(mixers):
        prefix = f"transformer.layers.{i}"
        shapes |= {f"{prefix}.mixer.{name}": shape for name, shape in mixer.items()}
        shapes |= {f"{prefix}.norm1.weight": (WIDTH,), f"{prefix}.norm2.weight": (WIDTH,)}
        shapes |= {
            f"{prefix}.mlp.fc1.weight": (2 * MLP, WIDTH),
            f"{prefix}.mlp.fc2.weight": (WIDTH, MLP),
        }
    weights = drawn(shapes)
    return weights | {"lm_head.weight": weights["transformer.embeddings.word_embeddings.weight"]}


@functools.cache
def mamba_of_transformers(name):
    """A random model of transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "vocab_size": ROWS,
        "tie_word_embeddings": True,
    }
    sizes |= (
        {"state_size": 5}
        if name == "mamba"
        else {"state_size": 6, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16}
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def as_released(model):
    """Its weights in Mamba's own layout."""
    return {
        key.replace("backbone.embeddings.", "backbone.embedding."): value
        for key, value in model.state_dict().items()
    }


CHECKPOINTS = {
    "based": (BASED, lambda: gpt_weights([CONVOLUTION, LINEAR, SOFTMAX, CONVOLUTION])),
    "older, decay of the input": (
        OLDER,
        lambda: gpt_weights([OLDER_CONVOLUTION, LINEAR | {"decay_proj.weight": (4, WIDTH)}]),
    ),
    "older, fixed decay": (OLDER, lambda: gpt_weights([OLDER_CONVOLUTION, LINEAR])),
    "attn": (ATTENTION, lambda: gpt_weights([SOFTMAX, SOFTMAX])),
    "mamba": (MAMBA, lambda: as_released(mamba_of_transformers("mamba"))),
    "mamba2": (MAMBA2, lambda: as_released(mamba_of_transformers("mamba2"))),
}


@pytest.fixture
def write(tmp_path):
    """Writes a folder as it was released: names behind `model.`, counters of the training among the
    weights."""

    def write(config, weights):
        (tmp_path / "config.json").write_text(json.dumps(config))
        saved = {f"model.{name}": value for name, value in weights.items()} | {
            "train_metrics.num-tokens.count": torch.tensor(7),
        }
        torch.save(saved, tmp_path / "pytorch_model.bin")
        return tmp_path

    return write


def norm(x, weight, eps):
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def convolution(w, x):
    u1, u2 = F.linear(x, w["in_proj.weight"], w["in_proj.bias"]).split(2 * WIDTH, dim=-1)
    kernel = next(value for name, value in w.items() if name.endswith("conv.weight"))
    mixed = F.conv1d(F.pad(u1.transpose(1, 2), (2, 0)), kernel, groups=2 * WIDTH).transpose(1, 2)
    return F.linear(F.silu(mixed) * u2, w["out_proj.weight"], w["out_proj.bias"])


def heads(x, num):
    return x.unflatten(-1, (num, -1)).transpose(1, 2)


def taylor_attention(w, x):
    q, k, v = (heads(F.linear(x, w[f"proj_{name}.weight"]), 4) for name in "qkv")
    s = q @ k.mT / math.sqrt(6)
    weights = torch.tril(1 + s + s**2 / 2)
    return F.linear(
        (weights / weights.sum(dim=-1, keepdim=True) @ v).transpose(1, 2).flatten(2),
        w["out_proj.weight"],
    )


def decayed_attention(w, x):
    q, k, v = (heads(F.linear(x, w[f"proj_{name}.weight"]), 4) for name in "qkv")
    s = q @ k.mT / math.sqrt(6)
    weights = torch.tril(1 + s + s**2 / 2)
    apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    fading = (1 - 2.0 ** -(3 + torch.arange(4, dtype=x.dtype)))[:, None, None] ** apart.clamp(min=0)
    factors = F.linear(x, w["decay_proj.weight"]).mT[..., None] if "decay_proj.weight" in w else 1
    read = factors * weights * fading @ v / weights.sum(dim=-1, keepdim=True)
    return F.linear(read.transpose(1, 2).flatten(2), w["out_proj.weight"])


def softmax_attention(w, x, rotated, reach=None):
    """`rotated` entries of a head of 16; a query sees `reach` keys before its own."""
    q, k, v = (heads(part, 2) for part in F.linear(x, w["Wqkv.weight"]).chunk(3, dim=-1))
    q, k = (
        torch.cat([turned(part[..., :rotated]), part[..., rotated:]], dim=-1) for part in (q, k)
    )
    apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    hidden = (apart < 0) | (apart > (x.shape[1] if reach is None else reach))
    weights = (q @ k.mT / math.sqrt(16)).masked_fill(hidden, -math.inf).softmax(dim=-1)
    return F.linear((weights @ v).transpose(1, 2).flatten(2), w["out_proj.weight"])


def turned(x):
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 10000 ** (
        -torch.arange(half, dtype=x.dtype) / half
    )
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            first * angles.sin() + second * angles.cos(),
        ],
        dim=-1,
    )


def part(weights, prefix):
    return {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }


def gpt_logits(weights, ids, mixers):
    x = weights["transformer.embeddings.word_embeddings.weight"][ids]
    for i, mixer in enumerate(mixers):
        w = part(weights, f"transformer.layers.{i}.")
        x = x + mixer(part(w, "mixer."), norm(x, w["norm1.weight"], 1e-3))
        y, gate = F.linear(norm(x, w["norm2.weight"], 1e-3), w["mlp.fc1.weight"]).chunk(2, dim=-1)
        x = x + F.linear(y * F.silu(gate), w["mlp.fc2.weight"])
    return norm(x, weights["transformer.ln_f.weight"], 1e-3) @ weights["lm_head.weight"].T


LOGITS = {
    "based": lambda weights, ids: gpt_logits(
        weights,
        ids,
        [convolution, taylor_attention, lambda w, x: softmax_attention(w, x, 16, 4), convolution],
    ),
    "older, decay of the input": lambda weights, ids: gpt_logits(
        weights,
        ids,
        [convolution, decayed_attention],
    ),
    "older, fixed decay": lambda weights, ids: gpt_logits(
        weights,
        ids,
        [convolution, decayed_attention],
    ),
    "attn": lambda weights, ids: gpt_logits(
        weights,
        ids,
        [lambda w, x: softmax_attention(w, x, 8)] * 2,
    ),
}


@pytest.mark.parametrize("name", LOGITS)
def test_logits_are_those_of_the_equations(write, name):
    config, make = CHECKPOINTS[name]
    weights = make()
    folder = write(config, weights)
    assert is_published(folder)
    architecture, ours = read_published(folder)
    model = LanguageModel(architecture).double()
    model.load_state_dict(ours)
    ids = torch.randint(VOCAB, (2, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = LOGITS[name](weights, ids)
        assert wanted.shape == (2, 23, ROWS)
        torch.testing.assert_close(model(ids), wanted, rtol=1e-9, atol=1e-9)


def test_numbers_of_the_config_reach_the_mixers(write):
    config, make = CHECKPOINTS["based"]
    changed = {
        "rotary_emb_base": 500,
        "rotary_emb_fraction": 0.25,
        "alt_mixer": BASED["alt_mixer"] | {"eps": 1e-6},
    }
    layers = read_published(write(config | changed, make()))[0].layers
    assert [layer.mixer for layer in layers] == [
        "gated_short_conv",
        "linear_attention",
        "sliding_window",
        "gated_short_conv",
    ]
    assert layers[1].options["eps"] == 1e-6
    assert (layers[2].options["rope_base"], layers[2].options["rope_fraction"]) == (500, 0.25)


def test_an_untied_head_is_read(write):
    config, make = CHECKPOINTS["attn"]
    weights = make() | {"lm_head.weight": torch.ones(ROWS, WIDTH, dtype=torch.float64)}
    architecture, ours = read_published(write(config | {"tie_word_embeddings": False}, weights))
    assert not architecture.tied_head
    assert torch.equal(ours["head.weight"], weights["lm_head.weight"])
    with pytest.raises(UserError, match=r"lm_head\.weight differs"):
        read_published(write(config, weights))


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
@pytest.mark.parametrize("place", ["directory", "hub id of the authors"])
def test_scores_are_those_of_transformers(write, hub, name, place):
    config, make = CHECKPOINTS[name]
    model, folder = mamba_of_transformers(name), write(config, make())
    spec = str(folder)
    if place != "directory":
        spec = f"state-spaces/{name}-130m"
        hub(spec, folder)
    plan = ModelPlan(ModelSpec(spec), VOCAB, device="cpu")
    lengths = [33, 40, 2]
    ids, offsets = (
        torch.randint(VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(1)).numpy(),
        np.cumsum([0, *lengths]),
    )
    scores = load_model(plan).score(ids, offsets)
    with torch.no_grad():
        logits = [
            model(torch.from_numpy(ids[a : b - 1])[None]).logits[0]
            for a, b in itertools.pairwise(offsets)
        ]
    targets = torch.from_numpy(
        np.concatenate([ids[a + 1 : b] for a, b in itertools.pairwise(offsets)]),
    )
    np.testing.assert_allclose(
        scores.nll,
        F.cross_entropy(torch.cat(logits), targets, reduction="none"),
        rtol=0,
        atol=1e-5,
    )
    assert (scores.argmax == torch.cat(logits).argmax(1).numpy()).mean() > 0.98
    tokenizer = {"directory": None, "hub id of the authors": "EleutherAI/gpt-neox-20b"}[place]
    assert kind_of(spec).own_tokenizer(spec) == tokenizer
    assert identify_model(plan) == identify_model(
        ModelPlan(ModelSpec(spec), VOCAB, dtype="bfloat16")
    )


def test_buffers_of_older_code_are_left_out(write):
    config, make = CHECKPOINTS["based"]
    wanted = read_published(write(config, make()))[1]
    extra = {
        "transformer.layers.2.mixer.rotary_emb.inv_freq": torch.ones(8),
        "transformer.decay.decay": torch.ones(2),
    }
    assert set(read_published(write(config | {"fixed_decay": True}, make() | extra))[1]) == set(
        wanted,
    )


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_weight_is_needed_and_no_other_one_is_taken(write, name):
    config, make = CHECKPOINTS[name]
    weights = make()
    last = max(key for key in weights if key.endswith("out_proj.weight"))
    changed = {
        "(Missing key.*)?mixer.out_proj.weight( is missing)?": {
            key: value for key, value in weights.items() if key != last
        },
        "Unexpected key.*mixer.out_proj.scale": weights
        | {last.replace("weight", "scale"): torch.ones(2)},
        "size mismatch for .*mixer.out_proj.weight": weights
        | {last: torch.ones(WIDTH + 1, weights[last].shape[1])},
    }
    for said, wrong in changed.items():
        with pytest.raises(UserError, match=said):
            load_model(ModelPlan(ModelSpec(str(write(config, wrong))), VOCAB, device="cpu"))
    with pytest.raises(UserError, match="Unexpected key"):
        load_model(
            ModelPlan(
                ModelSpec(str(write(config | {"n_layer": config["n_layer"] - 1}, weights))),
                VOCAB,
                device="cpu",
            ),
        )


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("based", {"activation_function": "gelu"}, "activation_function"),
        ("based", {"rms_norm": False}, "rms_norm"),
        ("based", {"n_head": 0}, "n_head"),
        ("based", {"n_embd": 64}, "n_embd|width of 32"),
        ("based", {"vocab_size": 57}, "fewer than the vocabulary"),
        (
            "based",
            {"alt_mixer": BASED["alt_mixer"] | {"feature_map": {"_target_": "x.Squared"}}},
            "Squared",
        ),
        ("based", {"alt_mixer_2": {"_target_": "x.SlidingAttention"}}, "window_size"),
        ("based", {"mixer": {"_target_": "x.Hyena"}}, "Hyena"),
        ("based", {"n_layer": 10**9}, "n_layer"),
        ("based", {"mixer": "x.BaseConv"}, "not a JSON object"),
        ("older, decay of the input", {"fixed_decay": False}, "fixed_decay"),
        ("older, decay of the input", {"decay_denom": True}, "decay_denom"),
        ("older, decay of the input", {"decay_const": 0}, "-decay_const"),
        ("older, decay of the input", {"decay_const": None}, "-decay_const"),
        (
            "older, fixed decay",
            {"alt_mixer": OLDER["alt_mixer"] | {"use_rotary_apply": True}},
            "use_rotary_apply",
        ),
        ("attn", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("mamba", {"attn_layer_idx": [1]}, "attn_layer_idx"),
        ("mamba", {"ssm_cfg": {"d_state": 16}}, "d_state of ssm_cfg is 16"),
        ("mamba", {"ssm_cfg": {"layer": "Mamba2"}}, r"norm\.weight is missing"),
        ("mamba", {"ssm_cfg": [1]}, "ssm_cfg is .*not a JSON object"),
        ("mamba2", {"ssm_cfg": {}}, "A_log has 1 axes"),
        ("mamba2", {"ssm_cfg": {"layer": "Mamba2", "ngroups": 5}}, "not those of 5 groups"),
        (
            "mamba2",
            {"ssm_cfg": {"layer": "Mamba2", "dt_limit": [0.01, 0.1]}},
            "dt_limit of ssm_cfg",
        ),
    ],
)
def test_entries_that_are_not_understood_are_refused(write, name, changed, said):
    config, make = CHECKPOINTS[name]
    with pytest.raises(UserError, match=said):
        read_published(write(config | changed, make()))


def test_files_that_are_no_checkpoints_are_refused(write, tmp_path):
    folder = write(*(MAMBA, CHECKPOINTS["mamba"][1]()))
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(UserError, match=r"cannot be read|could run code"):
        read_published(folder)
    for other in ([1, 2], {"weight": 1}, {1: torch.ones(1)}):
        torch.save(other, folder / "pytorch_model.bin")
        with pytest.raises(UserError, match="not a mapping"):
            read_published(folder)
    torch.save({"weight": pytest.raises}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="could run code"):
        read_published(folder)
    for unreadable in ("[]", "{"):
        (folder / "config.json").write_text(unreadable)
        assert not is_published(folder)
    assert not is_published(tmp_path / "nowhere")
    for read_by_transformers in (
        {"model_type": "gpt2", "n_embd": 8},
        MAMBA | {"model_type": "mamba"},
    ):
        (folder / "config.json").write_text(json.dumps(read_by_transformers))
        assert not is_published(folder)
